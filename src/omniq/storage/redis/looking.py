"""Lists, counts, tallies and faults: many short scripts, because a long one stops everybody."""

from __future__ import annotations

import struct
from abc import abstractmethod
from datetime import datetime
from typing import Any, Final

from loguru import logger

from omniq.errors import CorruptRecord
from omniq.storage.batched import BatchedStorage, check_page, unknown
from omniq.storage.redis import records
from omniq.storage.redis.records import name_bytes
from omniq.storage.redis.wire import Argument
from omniq.storage.tallying import COLUMNS, FIRST_MINUTE
from omniq.task import (
    TOP_PRIORITY,
    Head,
    Page,
    Run,
    Tally,
    Task,
    TaskFilter,
    TaskStatus,
    Timing,
    count,
)

STRETCH: Final = 1000
# Of what runs, or has one of the ends, so many are looked at: no call may stop the server for all of them.
FEW: Final = 5_000
MAX_FAULTS: Final = 1000
# Keys that are looked at from one end to the other; those of queues, workers and histories are found by SCAN.
_KEYS: Final = (b"state", b"body", b"order", b"running", b"ended", b"expiring", b"unique", b"broken")
_FAMILIES: Final = (b"ready:", b"later:", b"own:", b"runs:", b"stretch:")
_TIMING: Final = struct.Struct(">dd")
_MINUTE_US: Final = 60_000_000
_PENDING, _ENQUEUED = COLUMNS.index("pending"), COLUMNS.index("enqueued")


class RedisLooking(BatchedStorage):
    """A part of `RedisStorage`: what can be seen of it."""

    @abstractmethod
    async def _ask(self, script: str, *arguments: Argument) -> Any: ...

    @abstractmethod
    async def _command(self, *command: Argument) -> Any: ...

    @abstractmethod
    def _key(self, name: bytes) -> bytes: ...

    async def page(
        self, filter: TaskFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page:
        check_page(limit)
        wanted = filter or TaskFilter()
        below: Argument = "+inf"
        if after is not None:
            state, _ = await self._ask("get", name_bytes(after))
            if state is None:
                raise unknown(after)
            below = records.seq_of(state)
        if wanted.status not in (None, TaskStatus.PENDING):  # a backlog hides them from a look at the newest
            are_all, *parts = await self._ask("few", records.NUMBERS[wanted.status], FEW, limit, below)
            if are_all:
                full = len(parts) == 3 * limit
                return Page(self._tasks_in(parts, wanted), parts[-3].decode() if full else None)
        _, behind, *parts = await self._ask("list", below, STRETCH, limit, *_narrowed(wanted))
        return Page(self._tasks_in(parts, wanted), behind.decode() or None)

    async def longest_running(self, limit: int = 100) -> list[Task]:
        check_page(limit)
        _, *parts = await self._ask("few", records.NUMBERS[TaskStatus.RUNNING], FEW, limit, "")
        return self._tasks_in(parts, TaskFilter())

    def _tasks_in(self, parts: list[bytes], wanted: TaskFilter) -> list[Task]:
        tasks: list[Task] = []
        for task_id, state, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            try:
                task = self.decode(records.read_task(task_id, state, body))
            except CorruptRecord as corrupt:
                logger.error("passed over: {}", corrupt)
                continue
            if wanted.matches(task, task.func_path):
                tasks.append(task)
        return tasks

    async def history(self, task_id: str) -> list[Run]:
        lines = await self._command("LRANGE", self._key(b"runs:" + name_bytes(task_id)), 0, -1)
        return [records.read_run(line) for line in reversed(lines)]

    async def tallies(self) -> list[Tally]:
        told: list[Any] = await self._ask("tallies")
        found: dict[tuple[str, datetime], list[int]] = {}
        for minute, fields in zip(told[::2], told[1::2], strict=True):
            at = records.moment_of(int(minute) * _MINUTE_US) if int(minute) else FIRST_MINUTE
            for field, number in zip(fields[::2], fields[1::2], strict=True):
                column, _, queue = field.decode().partition(":")
                numbers = found.setdefault((queue, at), [0] * len(COLUMNS))
                numbers[int(column)] += int(number)
                if int(column) == _ENQUEUED:  # and so it waits: the script counts both at once
                    numbers[_PENDING] += int(number)
        return [Tally(queue, at, *numbers) for (queue, at), numbers in found.items()]

    async def heads(self) -> list[Head]:
        parts: list[Any] = await self._ask("heads")
        heads: list[Head] = []
        for queue, rank, due, task_id, body in zip(*(parts[n::5] for n in range(5)), strict=True):
            try:
                path = records.func_path_of(body)
            except CorruptRecord as corrupt:
                logger.error("passed over: {}", corrupt)
                continue
            due_at = records.from_raw(due)
            heads.append(Head(queue.decode(), TOP_PRIORITY - rank, task_id.decode(), path, due_at))
        return heads

    async def timings(self, limit: int = 1000) -> list[Timing]:
        check_page(limit)
        lines: list[bytes] = await self._command("LRANGE", self._key(b"timings"), -limit, -1)
        timings: list[Timing] = []
        for line in reversed(lines):
            wait_us, run_us = _TIMING.unpack_from(line)
            # Less than nothing: the server's clock was set back meanwhile.
            wait_s, run_s = max(0.0, wait_us / 1e6), max(0.0, run_us / 1e6)
            timings.append(Timing(line[_TIMING.size :].decode(), wait_s, run_s))
        return timings

    async def ahead(self, task_id: str, most: int = 10_000) -> int:
        count(most, "most", least=1)
        many = int(await self._ask("ahead", name_bytes(task_id), most))
        if many < 0:
            raise unknown(task_id)
        return many

    # --- what should not be ----------------------------------------------------------------------

    async def verify(self) -> list[str]:
        """One line each, and no line twice."""
        lines: dict[str, None] = {}
        for name in (*_KEYS, *await self._family_keys()):
            cursor = b"0"
            while len(lines) < MAX_FAULTS:
                cursor, *found = await self._ask("verify", name, cursor)
                lines.update(dict.fromkeys(line.decode(errors="backslashreplace") for line in found))
                if cursor == b"0":
                    break
        lines.update(dict.fromkeys(await self._miscounted()))
        return list(lines)[:MAX_FAULTS]

    async def _family_keys(self) -> list[bytes]:
        names: set[bytes] = set()
        for family in _FAMILIES:
            cursor = b"0"
            while True:
                # Braces mean nothing in a pattern, and a namespace has no other special character.
                pattern = self._key(family) + b"*"
                cursor, found = await self._command("SCAN", cursor, "MATCH", pattern, "COUNT", STRETCH)
                names.update(key.removeprefix(self._key(b"")) for key in found)
                if cursor == b"0":
                    break
        return sorted(names)

    async def _miscounted(self) -> list[str]:
        """Only where nothing changed meanwhile; a store at work is counted right or wrong by its own hand."""
        before = await self.counts()
        real: dict[str, dict[TaskStatus, int]] = {}
        below: Argument = "+inf"
        while below != -1:
            below, _, *parts = await self._ask("list", below, STRETCH, STRETCH, -1, "", "", "")
            for task_id, state, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                try:
                    task = records.read_task(task_id, state, body)
                except CorruptRecord:
                    continue
                real.setdefault(task.queue, dict.fromkeys(TaskStatus, 0))[task.status] += 1
        if before != await self.counts():
            return []
        return [
            f"{queue} has other numbers of tasks than it says: {real.get(queue)}"
            for queue in sorted({*real, *before})
            if real.get(queue) != before.get(queue)
        ]


def _narrowed(wanted: TaskFilter) -> tuple[Argument, ...]:
    """What the script itself looks at; the rest of a filter is for `matches`."""
    return (
        -1 if wanted.status is None else records.NUMBERS[wanted.status],
        name_bytes(wanted.queue or ""),
        name_bytes(wanted.unique_key or ""),
        "" if wanted.finished_before is None else records.microseconds(wanted.finished_before),
    )
