"""What a data pool may be told, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from omniq.data.stream import ErrorPolicy
from omniq.errors import InvalidOption
from omniq.pool.arena import default_limit_bytes
from omniq.task import Duration, positive_seconds

DEFAULT_ARENA_BYTES: Final = 256 * 1024**2
SMALLEST_ARENA_BYTES: Final = 1024**2


class Options(Struct, frozen=True):
    num_workers: int
    kind: str
    ordered: bool
    on_error: ErrorPolicy
    max_pending: int | None
    arena_bytes: int
    init: Callable[[], Any] | None
    timeout_s: float | None
    max_losses: int
    preload: tuple[str, ...]


def checked(
    *,
    num_workers: int,
    kind: str,
    ordered: bool,
    on_error: ErrorPolicy,
    max_pending: int | None,
    arena: int | None,
    init: Callable[[], Any] | None,
    timeout: Duration | None,
    max_losses: int,
    preload: Sequence[str],
) -> Options:
    check_count(num_workers, "num_workers", 1)
    check_one_of(kind, "kind", ("process", "thread"))
    check_one_of(on_error, "on_error", ("skip", "raise"))
    if max_pending is not None:
        check_count(max_pending, "max_pending", 1)
    if arena is not None:
        check_count(arena, "arena", SMALLEST_ARENA_BYTES)
    check_count(max_losses, "max_losses", 0)
    if init is not None and not callable(init):
        raise InvalidOption(f"init must be a function without arguments, not {init!r}")
    return Options(
        num_workers,
        kind,
        bool(ordered),
        on_error,
        max_pending,
        min(DEFAULT_ARENA_BYTES, default_limit_bytes()) if arena is None else arena,
        init,
        None if timeout is None else positive_seconds(timeout, "timeout"),
        max_losses,
        tuple(preload),
    )


def check_count(value: object, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_one_of(value: object, name: str, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise InvalidOption(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
