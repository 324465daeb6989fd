"""Kinds of options that several commands take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SCALES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE: Final = re.compile(r"(?P<number>\d+)(?P<scale>[KMG]?)(?:i?B)?", re.ASCII | re.IGNORECASE)
_AGE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhdw]?)")


class Seconds(click.FloatRange):
    """A number of seconds that somebody could wait for."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


POSITIVE: Final = Seconds(min=0, min_open=True)


class Whole(click.IntRange):
    name = "whole number"  # what a complaint calls it


class Size(click.ParamType[int]):
    """A number of bytes, as people write it."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value)
        size = 0 if match is None else int(match["number"]) * _SCALES[match["scale"].upper()]
        if size == 0:
            self.fail(f"{value!r} is no size, such as 500M or 2G.", param, ctx)
        return size


SIZE: Final = Size()


F = TypeVar("F", bound=Callable[..., Any])


class QueueName(click.types.StringParamType):
    """A name that a queue can have; whether there is such a queue is another question."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from omniq.checks import queue_name
        from omniq.errors import InvalidOption

        try:
            return queue_name(value)
        except InvalidOption as exc:
            self.fail(str(exc), param, ctx)


QUEUE: Final = QueueName()


def each_json_option(command: F) -> F:
    """For commands that take several names and say a line about each."""
    return click.option("--json", "as_json", is_flag=True, help="A list of objects instead of lines.")(
        command
    )


def one_json_option(command: F) -> F:
    """For commands that say one line."""
    return click.option("--json", "as_json", is_flag=True, help="One object instead of a line.")(command)


def age(_: click.Context, __: click.Parameter, value: str | None) -> float:
    """How long ago, in seconds, as durations are everywhere else where no unit is said."""
    match = _AGE.fullmatch("0" if value is None else value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no age, such as 90s, 30m, 12h, 7d or 2w")
    return float(match["number"]) * _UNITS[match["unit"]]


def call_options(command: F) -> F:
    """For commands that take what a function is to be called with."""
    by_name = _json_option("--kwargs", dict, "{}", """'{"body": "hi"}'""", "The arguments by name")
    in_order = _json_option("--args", list, "[]", """'["ann", 3]'""", "The arguments")
    return in_order(by_name(command))


def _json_option(name: str, kind: type, default: str, example: str, what: str) -> Callable[[F], F]:
    return click.option(
        name,
        metavar="JSON",
        default=default,
        callback=_json_value(kind, example),
        help=f"{what}, such as {example}.",
    )


def _json_value(kind: type, example: str) -> Callable[[click.Context, click.Parameter, str], Any]:
    """For an option that takes JSON, a list or an object."""

    def parse(_: click.Context, __: click.Parameter, value: str) -> Any:
        import json

        try:
            parsed = json.loads(value, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as exc:
            raise click.BadParameter(f"is no JSON ({exc}); write {example}") from None
        if not isinstance(parsed, kind):
            raise click.BadParameter(
                f"must be a JSON {'list' if kind is list else 'object'}, such as {example}"
            )
        return parsed

    return parse


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def app_path(_: click.Context, __: click.Parameter, value: str) -> str:
    from omniq.cli.wire import APP_PATH

    match = APP_PATH.fullmatch(value)
    if match is None or match[1].endswith(".py"):
        raise click.BadParameter(f"{value!r} is no module and name, such as {_with_a_name(value)}")
    return value


def _with_a_name(value: str) -> str:
    """What somebody may have meant who wrote a module alone, or a file."""
    from omniq.cli.wire import APP_PATH

    path, _, name = value.partition(":")
    meant = f"{path.removeprefix('./').removesuffix('.py').replace('/', '.')}:{name or 'q'}"
    return meant if APP_PATH.fullmatch(meant) else "myapp.tasks:q"
