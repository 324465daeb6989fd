"""How the command writes its log: on stderr, one line per record. Only the command configures loguru."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING

from loguru import logger

from omniq.cli.text import masked, safe

if TYPE_CHECKING:
    from loguru import Message


def configure(level: str, *, debug: bool = False, form: str = "text") -> None:
    """Replace loguru's own handler. With `debug`, tracebacks follow their record, each line marked."""
    logger.remove()
    logger.add(
        (_JsonWriter(debug) if form == "json" else _Writer(debug)).write,
        level=level.upper(),
        format=lambda _: "",  # the writer makes its line from the record itself
        backtrace=False,
        diagnose=False,  # it would print the values of variables, and arguments are nobody's business
    )
    # Where nobody has set up the standard library's logging, it would write bare lines between ours.
    logging.lastResort = _Forwarding(logging.WARNING)


class _Forwarding(logging.Handler):
    """Records of the standard library's `logging`, on their way into this log."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level: str | int = logger.level(record.levelname).name
        except ValueError:
            level = record.levelno  # a level that somebody made up
        try:
            logger.patch(lambda line: line.update({"name": record.name})).opt(exception=record.exc_info).log(
                level, record.getMessage()
            )
        except Exception:
            self.handleError(record)  # as ever: arguments that do not fit the message


class _Writer:
    def __init__(self, debug: bool) -> None:
        self._debug = debug
        self._pid = os.getpid()

    def write(self, message: Message) -> None:
        record = message.record
        when = record["time"].isoformat(sep=" ", timespec="milliseconds")[:23]
        line = f"{when} {record['level'].name:<7} [{self._pid}] {safe(record['message'])}"
        exception = record["exception"]
        if exception is not None:
            line += f": {safe(getattr(exception.type, '__name__', exception.type))}: {safe(exception.value)}"
            if self._debug:
                line += self._traceback(exception.value)
        _put(line)

    @staticmethod
    def _traceback(exception: BaseException | None) -> str:
        if exception is None:
            return ""
        lines = masked("".join(traceback.format_exception(exception))).splitlines()
        return "".join(f"\n    | {safe(line)}" for line in lines)


class _JsonWriter(_Writer):
    """One object per line, ASCII only. What a record was logged with stands under its own key."""

    def write(self, message: Message) -> None:
        record = message.record
        entry: dict[str, object] = {
            "time": record["time"].isoformat(),
            "level": record["level"].name.lower(),
            "pid": self._pid,
            "logger": record["name"],
            "message": masked(record["message"]),
        }
        entry |= {key: _plain(value) for key, value in record["extra"].items() if key not in entry}
        exception = record["exception"]
        if exception is not None:
            kind = getattr(exception.type, "__name__", str(exception.type))
            entry["error"] = f"{kind}: {masked(str(exception.value))}"
            if self._debug and exception.value is not None:
                entry["traceback"] = masked("".join(traceback.format_exception(exception.value)))
        _put(json.dumps(entry))


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | bool | None) else masked(str(value))


def _put(line: str) -> None:
    # A reader of the log that went away must not take the worker along.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
