"""The limits of queues in a namespace, and what moves to and from other stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from loguru import logger

from omniq.errors import CorruptRecord, StoreUnavailable
from omniq.parcel import Moved, Parcel, TakenIn
from omniq.storage import scheduling
from omniq.storage.batched import BatchedStorage
from omniq.storage.moving import BAD_RECORDS, MAX_PARCEL_TASKS, PARCEL_BYTES, check_parcel, id_conflict
from omniq.storage.redis import records
from omniq.storage.redis.records import name_bytes
from omniq.storage.redis.wire import Argument
from omniq.task import StoredTask, TaskStatus, count, new_id, queue_name, replace

# So often others may take everything that was found before the caller hears of it.
TRIES: Final = 20


class RedisMoving(BatchedStorage):
    """A part of `RedisStorage`."""

    @abstractmethod
    async def _ask(self, script: str, *arguments: Argument) -> Any: ...

    @abstractmethod
    async def _write(self, script: str, *arguments: Argument) -> Any: ...

    @abstractmethod
    async def _tell(self, script: str, *arguments: Argument) -> Any: ...

    @abstractmethod
    async def _command(self, *command: Argument) -> Any: ...

    @abstractmethod
    def _key(self, name: bytes) -> bytes: ...

    # --- limits ----------------------------------------------------------------------------------

    async def limit_queue(self, queue: str, max_depth: int | None) -> None:
        queue_name(queue)
        most = "" if max_depth is None else count(max_depth, "max_depth", least=0)
        await self._write("limit_queue", queue, most)

    async def queue_limits(self) -> dict[str, int]:
        found = await self._command("HGETALL", self._key(b"limits"))
        return {queue.decode(): int(most) for queue, most in zip(found[::2], found[1::2], strict=True)}

    # --- parcels ---------------------------------------------------------------------------------

    async def take_out(self, limit: int = 500) -> Parcel | None:
        most, parcel_id = min(MAX_PARCEL_TASKS, count(limit, "limit", least=1)), new_id()
        for _ in range(TRIES):
            found = await self._ask("movable", most + BAD_RECORDS, PARCEL_BYTES)
            ids = list(islice(_readable(found), most))
            _, _, *kept = await self._ask("schedules", "all")
            names = list(_readable_schedules(kept))
            parts = await self._tell("take_out", parcel_id, len(names), *names, *ids)
            if parts:
                return _parcel(iter(parts))
            if not ids and not names:
                return None
        raise StoreUnavailable("others take every task that could be moved; try again")

    async def take_in(self, parcel: Parcel) -> TakenIn:
        check_parcel(parcel)
        tasks: list[Argument] = []
        for one in parcel.tasks:
            state, body = records.pack_task(one.task, self._kept_until(one.task))
            tasks += (one.task.id.encode(), state, body, records.pack_runs(one.runs))
        schedules = _schedule_arguments(parcel.schedules)
        limits = [value for pair in parcel.limits.items() for value in pair]
        head = (int(self.failed_ttl_s * 1e6), name_bytes(parcel.id), len(parcel.tasks))
        settings = (
            len(schedules) // 4,
            *schedules,
            len(parcel.paused),
            *parcel.paused,
            len(limits) // 2,
            *limits,
        )
        code, *told = await self._tell("take_in", *head, *tasks, *settings)
        if not code:
            raise id_conflict(told[0].decode())
        made, known, blocked, scheduled, returned = told
        return TakenIn(made, known, blocked, scheduled, bool(returned))

    async def drop_parcel(self, parcel_id: str) -> None:
        await self._write("drop_parcel", name_bytes(parcel_id))

    def _kept_until(self, task: StoredTask) -> datetime | None:
        if task.finished_at is None:
            return None
        keep_s = self.failed_ttl_s
        if task.status is TaskStatus.SUCCESS:
            keep_s = self.result_ttl_s if task.result_ttl is None else task.result_ttl
        return task.finished_at + timedelta(seconds=keep_s)


def _readable(found: Sequence[bytes]) -> Iterator[bytes]:
    """The ids of what can be moved; what cannot be read stays where it is."""
    for task_id, state, body in zip(found[::3], found[1::3], found[2::3], strict=True):
        try:
            records.read_task(task_id, state, body)
        except CorruptRecord as corrupt:
            logger.error("passed over: {}", corrupt)
        else:
            yield task_id


def _readable_schedules(found: Sequence[bytes]) -> Iterator[bytes]:
    for name, record in zip(found[::2], found[1::2], strict=True):
        try:
            scheduling.unpack(record)
        except CorruptRecord as corrupt:
            logger.error("passed over: {}", corrupt)
        else:
            yield name


def _parcel(parts: Iterator[bytes]) -> Parcel:
    parcel_id = next(parts).decode()
    tasks: list[Moved] = []
    for _ in range(int(next(parts))):
        task_id, state, body, runs = islice(parts, 4)
        task = records.read_task(task_id, state, body)
        first = body[: records.DIGEST_BYTES]  # of the call that it was first enqueued with
        tasks.append(Moved(replace(task, first_content=first), records.read_runs(runs)))
    schedules = list(islice(parts, int(next(parts))))
    paused = sorted(name.decode() for name in islice(parts, int(next(parts))))
    limits = {next(parts).decode(): int(next(parts)) for _ in range(int(next(parts)))}
    return Parcel(id=parcel_id, tasks=tasks, schedules=schedules, paused=paused, limits=limits)


def _schedule_arguments(packed: Sequence[bytes]) -> list[Argument]:
    arguments: list[Argument] = []
    for record in packed:
        one = scheduling.unpack(record)
        next_at = "" if one.next_at is None else records.microseconds(one.next_at)
        arguments += (name_bytes(one.name), one.revision, next_at, record)
    return arguments
