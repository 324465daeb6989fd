"""Checks of what people type, shared by every face: durations, moments, counts, names, options.

Each gives the value in the one form that the rest of the project uses, or raises `InvalidOption` with what to
write instead. Knows nothing of tasks, stores or clocks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, TypeAlias

from omniq.errors import InvalidOption

Duration: TypeAlias = float | int | timedelta

QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")
FUNC_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?")
MAX_NAME_CHARS: Final = 512
NAMES_KNOWN: Final = 1024
MAX_COUNT: Final = 2**31 - 1
MAX_DURATION_S: Final = 100 * 366 * 86400.0
MOST: Final = sys.float_info.max


def seconds(value: Duration, name: str) -> float:
    """A duration as seconds; `name` is what the caller called it."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(f"{name} must be seconds (int or float) or a timedelta, not {shown(value)}")
    if not -MAX_DURATION_S <= value <= MAX_DURATION_S:
        raise InvalidOption(
            f"{name} must be a finite number of seconds within a hundred years, not {shown(value)}"
        )
    return float(value)


def positive_seconds(value: Duration, name: str) -> float:
    duration_s = seconds(value, name)
    if duration_s <= 0:
        raise InvalidOption(f"{name} must be more than 0 seconds, not {shown(value)}")
    return duration_s


def moment(value: datetime, name: str) -> datetime:
    """An aware moment in UTC; a naive one is refused, because nobody can know what it means."""
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name} must be a datetime with a time zone, not {shown(value)}")
    if value.utcoffset() is None:
        raise InvalidOption(
            f"{name} {shown(value)} has no time zone; write datetime.now(UTC) + timedelta(...), "
            "or add tzinfo=ZoneInfo('Europe/Berlin')"
        )
    try:
        return value if value.tzinfo is UTC else value.astimezone(UTC)
    except OverflowError:
        raise InvalidOption(f"{name} {shown(value)} is beyond the last moment that UTC can name") from None


def count(value: int, name: str, *, least: int) -> int:
    if type(value) is int and least <= value <= MAX_COUNT:  # the usual answer, for every task
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
        raise InvalidOption(f"{name} must be a whole number from {least}, not {shown(value)}")
    return value


def check_progress(done: float, total: float | None) -> None:
    for value in (done,) if total is None else (done, total):
        # By comparing: what is not a number fails it, and a whole number may be beyond any float.
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST <= value <= MOST:
            raise InvalidOption(f"progress takes finite numbers, such as progress(3, 10), not {shown(value)}")


def refuse_unknown(given: Iterable[str], known: Iterable[str], whose: str) -> None:
    """An option that does not exist, with the one that was probably meant."""
    names = tuple(known)
    for name in given:
        if name not in names:
            import difflib  # for the message only

            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            raise InvalidOption(f"{whose} has no option {shown(name)}; {hint}")


# An application has few names and says them again and again.
_as_queue_name = lru_cache(NAMES_KNOWN)(QUEUE_NAME.fullmatch)
_as_func_path = lru_cache(NAMES_KNOWN)(FUNC_PATH.fullmatch)


def queue_name(value: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not _as_queue_name(value):
        raise InvalidOption(
            f"queue name {shown(value)} must be 1 to 128 characters of A-Z a-z 0-9 _ . : - "
            "and begin with a letter, digit or underscore"
        )
    return value


def func_path(value: str) -> str:
    """Check a path such as `myapp.jobs.resize`; whether it exists is for the worker to find out."""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not _as_func_path(value):
        raise InvalidOption(f"func_path {shown(value)} must look like 'package.module.function'")
    return value


def name_list(value: Iterable[str], name: str, example: str) -> tuple[str, ...]:
    """Several names. A single one, which is a sequence too, is what people write by mistake."""
    if isinstance(value, str):
        raise InvalidOption(f"{name} must be a list, such as [{shown(value)}], not a str")
    names = tuple(value) if isinstance(value, Iterable) else (value,)
    if not isinstance(value, Iterable) or not all(isinstance(one, str) for one in names):
        raise InvalidOption(f"{name} must be a list of str, such as [{example}], not {shown(value)}")
    return names


def check_text(value: str, name: str, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise InvalidOption(f"{name} must be 1 to {most} printable characters, not {shown(value)}")
    return value


def shown(value: object, limit: int = 80) -> str:
    """A value in a message or log line: one line, no control characters, never long."""
    try:
        text = ascii(value) if not isinstance(value, str) else ascii(value[: limit * 2])
    except Exception:  # its own doing, or a number too long to print
        text = f"<{type(value).__name__}>"
    if not text.isprintable():
        text = ascii(text)[1:-1]
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_line(name: str) -> str:
    """A name in a log line. Ours are printable; somebody else's backend may have others."""
    return name if name.isprintable() else shown(name)
