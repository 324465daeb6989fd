"""Lists, counts, rates and faults: many short scripts, because a long one stops everybody."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from loguru import logger

from omniq.errors import CorruptRecord
from omniq.storage.redis import records
from omniq.storage.redis.wire import Argument
from omniq.task import Rates, StoredTask, TaskFilter, TaskStatus

Ask = Callable[..., Awaitable[Any]]
STRETCH: Final = 1000
MAX_FAULTS: Final = 1000
# Keys that are looked at from one end to the other; those of queues, workers and histories are found by SCAN.
_KEYS: Final = ("state", "body", "order", "running", "ended", "expiring", "unique", "broken")
_FAMILIES: Final = (b"ready:", b"later:", b"own:", b"runs:")


async def page_of(ask: Ask, wanted: TaskFilter, below: Argument, limit: int) -> AsyncIterator[StoredTask]:
    """At most `limit` tasks that match, newest first. What cannot be read is reported and passed over."""
    match: tuple[Argument, ...] = (
        -1 if wanted.status is None else records.NUMBERS[wanted.status],
        wanted.queue or "",
        (wanted.unique_key or "").encode(errors="backslashreplace"),
        "" if wanted.finished_before is None else records.microseconds(wanted.finished_before),
    )
    left = limit
    while left > 0:
        below, *parts = await ask("list", below, STRETCH, left, *match)
        for task_id, state, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            try:
                stored = records.read_task(task_id, state, body)
            except CorruptRecord as corrupt:
                logger.error("passed over: {}", corrupt)
                continue
            if wanted.func_path in (None, stored.func_path):
                left -= 1
                yield stored
        if below == -1:
            return


def counts_of(fields: list[bytes]) -> dict[str, dict[TaskStatus, int]]:
    counted: dict[str, dict[TaskStatus, int]] = {}
    for field, number in zip(fields[::2], fields[1::2], strict=True):
        status, _, queue = field.decode().partition(":")
        counted.setdefault(queue, dict.fromkeys(TaskStatus, 0))[records.STATUSES[int(status)]] = int(number)
    return counted


async def rates_of(ask: Ask, since: datetime) -> Rates:
    below: Argument = "+inf"
    total, now = [0, 0, 0, 0], 0.0
    while below != -1:
        below, *seen, told = await ask("rates", below, STRETCH, records.microseconds(since))
        total = [one + more for one, more in zip(total, seen, strict=True)]
        now = now or float(told)
    enqueued, succeeded, failed, cancelled = total
    return Rates(enqueued, succeeded, failed, cancelled, (now - records.microseconds(since)) / 1e6)


async def faults(ask: Ask, command: Ask, prefix: bytes) -> list[str]:
    """Everything that should not be, one line each, and no line twice."""
    lines: dict[str, None] = {}
    for name in (*(key.encode() for key in _KEYS), *await _family_keys(command, prefix)):
        cursor = b"0"
        while len(lines) < MAX_FAULTS:
            cursor, *found = await ask("verify", name, cursor)
            lines.update(dict.fromkeys(line.decode(errors="backslashreplace") for line in found))
            if cursor == b"0":
                break
    lines.update(dict.fromkeys(await _miscounted(ask, command, prefix)))
    return list(lines)[:MAX_FAULTS]


async def _family_keys(command: Ask, prefix: bytes) -> list[bytes]:
    names: set[bytes] = set()
    for family in _FAMILIES:
        cursor = b"0"
        while True:
            # Braces mean nothing in a pattern, and a namespace has no other special character.
            cursor, found = await command("SCAN", cursor, "MATCH", prefix + family + b"*", "COUNT", STRETCH)
            names.update(key.removeprefix(prefix) for key in found)
            if cursor == b"0":
                break
    return sorted(names)


async def _miscounted(ask: Ask, command: Ask, prefix: bytes) -> list[str]:
    """Only where nothing changed meanwhile; a store at work is counted right or wrong by its own hand."""
    before = counts_of(await command("HGETALL", prefix + b"count"))
    real: dict[str, dict[TaskStatus, int]] = {}
    below: Argument = "+inf"
    while below != -1:
        below, *parts = await ask("list", below, STRETCH, STRETCH, -1, "", "", "")
        for task_id, state, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            try:
                task = records.read_task(task_id, state, body)
            except CorruptRecord:
                continue
            real.setdefault(task.queue, dict.fromkeys(TaskStatus, 0))[task.status] += 1
    after = counts_of(await command("HGETALL", prefix + b"count"))
    return [
        f"{queue} has other numbers of tasks than it says: {real.get(queue)} instead of {before.get(queue)}"
        for queue in sorted({*real, *before})
        if before == after and real.get(queue) != before.get(queue)
    ]
