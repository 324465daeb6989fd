"""Bodies in processes: tasks that ask for one, and suspects, which get one of their own.

A suspect was in flight when a whole worker died. Run beside others again it could take them along; alone it
can only harm itself. Processes are started when the first body needs one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from loguru import logger

from omniq.errors import (
    CallCancelled,
    CallTimeout,
    InvalidOption,
    OmniqError,
    PoolNotRunning,
    StartFailed,
    UnserializableArgument,
    WorkerDied,
)
from omniq.executors import CANCEL_GRACE_S, Flight, failure
from omniq.inchild import Body, run
from omniq.logic.retry import unserved_delay_s
from omniq.names import name_in_module
from omniq.pool import Message, WorkerPool
from omniq.processview import seen
from omniq.registry import Runnable
from omniq.reports import PoolInfo
from omniq.serializer import Serializer
from omniq.storage.base import Claimed
from omniq.task import Died, Interrupted, Outcome, Snoozed, StoredTask, one_line, shown
from omniq.workeroptions import ProcessLimits

# An interrupted body may clean up for this long; its worker expects it to be over soon after.
INTERRUPT_GRACE_S: Final = CANCEL_GRACE_S / 2
# Suspects are not CPU-bound for being suspects, so there may be more of them than CPUs.
SUSPECTS_AT_ONCE: Final = 16
# Processes that nobody needs go soon: most workers never see a suspect.
IDLE_S: Final = 15.0
# What was claimed should run: another process is started as soon as one has to wait.
AT_ONCE_S: Final = 0.001


class Processes:
    """The pools of one worker. One that was given is used, and left as it is at the end."""

    def __init__(
        self,
        given: WorkerPool | None,
        serializer: Serializer,
        max_payload: int | None,
        modules: Iterable[str],
        limits: ProcessLimits,
    ) -> None:
        """`modules` are imported once, where processes are made, so that each of those starts quickly."""
        self._given = given
        self._limits = limits
        self._started_given = False
        self._serializer = serializer
        self._max_payload = max_payload
        self._preload = (run.__module__, *modules)
        self._own: WorkerPool | None = None
        self._alone: WorkerPool | None = None
        self._starting = asyncio.Lock()
        self._tasks: dict[Message, Claimed] = {}  # which task each call is, for those who look

    @property
    def capacity(self) -> int:
        """How many bodies can be started at once."""
        return self._pool().max_workers

    @property
    def size(self) -> int:
        """How many processes live now, in all pools."""
        pools = (self._given, self._own, self._alone)
        return sum(len(pool.status().workers) for pool in pools if pool is not None)

    def free(self, running: int) -> int:
        """How many more bodies could start now, if `running` have; a pool that is shared may be busy."""
        free = self.capacity - running
        return free if self._given is None else min(free, self._given.free_workers)

    def seen(self, running: int, scarce: Iterable[str]) -> tuple[PoolInfo, ...]:
        """What there is, for the worker's beats; from any thread. `scarce` queues need processes."""
        pools = list[PoolInfo]()
        if (pool := self._given or self._own) is not None:
            pools.append(seen(pool, "tasks", self._tasks, free=self.free(running), queues=scarce))
        if (alone := self._alone) is not None:
            pools.append(seen(alone, "suspects", self._tasks, free=alone.free_workers))
        # One that was only asked for its size has decided nothing yet.
        return tuple(pool for pool in pools if pool.processes or pool.reason)

    def _pool(self) -> WorkerPool:
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = self._new(self._limits.processes, self._limits.tasks_per_process)
        return self._own

    def _isolation(self) -> WorkerPool:
        if self._alone is None:
            # Whatever one leaves behind must not meet the next.
            self._alone = self._new(SUSPECTS_AT_ONCE, max_tasks_per_worker=1)
        return self._alone

    def _new(self, max_workers: int | None, max_tasks_per_worker: int | None) -> WorkerPool:
        return WorkerPool(
            0,
            max_workers,
            scaledown_wait=IDLE_S,
            target_wait=AT_ONCE_S,
            max_tasks_per_worker=max_tasks_per_worker,
            worker_memory=self._limits.memory_per_process,
            grace=INTERRUPT_GRACE_S,
            preload=self._preload,
            preload_required=False,  # a module may exist in this process only
        )

    async def take_over(self) -> None:
        """Start a pool that was given and does not run yet; like a storage, it is then ended here as well."""
        assert self._given is not None
        if self._given.status().state == "new":
            self._started_given = True
            await self._given.start()
        try:
            self._given.check_running()
        except PoolNotRunning as exc:
            raise InvalidOption(
                f"process_pool cannot be used here: {exc}. Give one that is not started, or start the worker "
                "on the loop of the pool, with q.async_worker() or AsyncWorkerPool"
            ) from exc

    async def close(self) -> None:
        """End the processes that were started here."""
        given = self._given if self._started_given else None
        pools = [pool for pool in (self._own, self._alone, given) if pool is not None]
        await asyncio.gather(*(pool.shutdown(cancel=True) for pool in pools))
        self._own = self._alone = None

    def can_take(self, runnable: Runnable) -> bool:
        """Whether a process finds the function under its name. What lives here only can only run here."""
        return name_in_module(runnable.func) is not None

    # --- a body ----------------------------------------------------------------------------------

    async def run_task(self, flight: Flight) -> None:
        """For a task that asked for a process."""
        flight.end(await self.outcome(flight))

    async def outcome(self, flight: Flight) -> Outcome:
        outcome = await self._run(flight, self._pool())
        assert outcome is not None
        return outcome

    async def outcome_alone(self, flight: Flight) -> Outcome | None:
        """For any other task, because its last worker died. None: it asked for what only the worker has."""
        logger.info("runs alone: {task}, suspected of a death", task=one_line(flight.claim.id))
        return await self._run(flight, self._isolation(), suspect=True)

    async def _run(self, flight: Flight, pool: WorkerPool, *, suspect: bool = False) -> Outcome | None:
        try:
            async with self._starting:  # whoever comes second finds it running, or learns why it is not
                await pool.start()
            options = pool.options(
                timeout=flight.claim.timeout, on_note=lambda note: flight.context.progress(*note)
            )
            message = options.message(run, self._body_of(flight, suspect=suspect))
            self._tasks[message] = flight.claim
            try:
                await pool.dispatch_task(message)
                outcome: Outcome | None = await self._end_of(message, pool)
            finally:
                del self._tasks[message]
        except asyncio.CancelledError:
            return flight.interrupted()
        except CallTimeout:
            flight.reason = "timeout"
            return flight.interrupted()
        except WorkerDied as exc:
            return Died(exc.cause) if exc.has_begun else self._unserved(flight, exc)
        except CallCancelled:  # by somebody else who has the pool
            return Interrupted()
        except (StartFailed, PoolNotRunning) as exc:
            return self._unserved(flight, exc)
        except UnserializableArgument as exc:
            return failure(_untransportable(flight, exc))
        except OmniqError as exc:
            return failure(exc)
        return outcome

    @staticmethod
    def _unserved(flight: Flight, exc: OmniqError) -> Outcome:
        """The pool's fault, not the task's: it goes back with nothing spent."""
        logger.error("no process for {task}: {why}", task=one_line(flight.claim.id), why=str(exc))
        return Snoozed(unserved_delay_s(flight.claim.epoch))

    @staticmethod
    async def _end_of(message: Message, pool: WorkerPool) -> Outcome | None:
        try:
            outcome: Outcome | None = await message.result()
        except asyncio.CancelledError:
            await pool.cancel(id=message.id)  # its end is only its end when the process is free
            raise
        return outcome

    def _body_of(self, flight: Flight, *, suspect: bool) -> Body:
        task, runnable = flight.claim, flight.runnable
        assert runnable is not None
        carries_function = isinstance(task, StoredTask) and not task.func_path
        name = name_in_module(runnable.func)
        named = runnable.func if name is None else name.encode()
        function = None if carries_function else named
        call = task.payload if isinstance(task, StoredTask) else (task.args, task.kwargs)
        return Body(
            task.id,
            task.attempts + 1,
            task.epoch,
            function,
            call,
            self._serializer,
            self._max_payload,
            suspect,
        )


def _untransportable(flight: Flight, exc: UnserializableArgument) -> UnserializableArgument:
    return UnserializableArgument(
        f"{shown(flight.claim.func_path)} cannot travel to a process ({exc}); define it in a module that "
        "both can import"
    )
