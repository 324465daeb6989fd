"""Schedules and limits as applications write them: a part of `OmniQ`.

q.schedule("nightly", report.call("all"), cron="0 2 * * *", tz="Europe/Berlin")
q.limit_queue("mail", max_depth=10_000)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from omniq.calls import TaskCall
from omniq.errors import InvalidOption, UnknownTask
from omniq.logic.schedule import every_s
from omniq.registry import Runnable
from omniq.schedule import CatchUp, Overlap, Schedule
from omniq.storage.base import BaseStorage
from omniq.task import Duration, shown

V = TypeVar("V")


class Scheduling:
    """What an application says about its schedules and queues."""

    _tasks: dict[str, Runnable]
    _allow: tuple[str, ...]

    @abstractmethod
    def run(self, work: Callable[[BaseStorage], Coroutine[Any, Any, V]], twin: str) -> V: ...

    @abstractmethod
    async def astorage(self) -> BaseStorage: ...

    def schedule(
        self,
        name: str,
        call: TaskCall[Any],
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "latest",
        overlap: Overlap = "allow",
    ) -> Schedule:
        """Make a task of `call` at every tick. Saving it again changes nothing: it may stand in a module.

        `every` counts from when it was first saved; `cron` is read in the time zone `tz`.
        """
        wanted = self._schedule(name, call, every, cron, tz, catch_up, overlap)
        return self.run(lambda storage: storage.save_schedule(wanted), "await q.aschedule(...)")

    async def aschedule(
        self,
        name: str,
        call: TaskCall[Any],
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "latest",
        overlap: Overlap = "allow",
    ) -> Schedule:
        wanted = self._schedule(name, call, every, cron, tz, catch_up, overlap)
        return await (await self.astorage()).save_schedule(wanted)

    def _schedule(
        self,
        name: str,
        call: TaskCall[Any],
        every: Duration | None,
        cron: str | None,
        tz: str,
        catch_up: CatchUp,
        overlap: Overlap,
    ) -> Schedule:
        if not isinstance(call, TaskCall):
            raise InvalidOption(f"a schedule takes a call made by task.call(...), not {shown(call)}")
        if call.task.func_path not in self._tasks and not self._allow:
            raise unknown_task(call.task.func_path, self._tasks)
        return Schedule(
            name=name,
            call=call.task,
            every=None if every is None else every_s(every),
            cron=cron,
            tz=tz,
            catch_up=catch_up,
            overlap=overlap,
        )

    def limit_queue(self, queue: str, max_depth: int | None) -> None:
        """Let at most `max_depth` tasks wait in `queue`: then `enqueue` raises `QueueFull`. None lifts it.

        The store keeps it, for every program that enqueues there.
        """
        self.run(lambda storage: storage.limit_queue(queue, max_depth), "await q.alimit_queue(...)")

    async def alimit_queue(self, queue: str, max_depth: int | None) -> None:
        await (await self.astorage()).limit_queue(queue, max_depth)


def unknown_task(name: str, known: Mapping[str, object]) -> UnknownTask:
    return UnknownTask(f"no task named {shown(name)} in this application; {near(name, known)}")


def near(name: str, known: Mapping[str, object]) -> str:
    """What may have been meant."""
    import difflib  # for the message only

    names = difflib.get_close_matches(name, known, 3) or sorted(known)[:10]
    return f"did you mean {', '.join(names)}?" if names else "it has no tasks yet"
