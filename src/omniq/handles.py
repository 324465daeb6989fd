"""What was enqueued, in the hands of whoever asked for it: one handle, or many at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from omniq.errors import InvalidOption, ResultTimeout, TaskCancelled, TaskFailed
from omniq.storage.base import BaseStorage
from omniq.storage.batched import unknown
from omniq.task import Duration, TaskResult, TaskStatus, seconds, shown

if TYPE_CHECKING:
    from omniq.app import OmniQ
    from omniq.progressbar import ProgressBar

T = TypeVar("T")
# A body's word on its progress is stored about twice a second; looking more often shows nothing new.
LOOK_EVERY_S: Final = 0.25


class TaskHandle(Generic[T]):
    """A task that was enqueued: ask for it, wait for it, steer it."""

    def __init__(self, app: OmniQ, task_id: str, *, created: bool) -> None:
        self.id = str(task_id)
        self.created = created
        self._app = app

    async def astatus(self) -> TaskStatus:
        return await self._status(await self._app.astorage())

    def status(self) -> TaskStatus:
        return self._app.run(self._status, "await handle.astatus()")

    async def _status(self, storage: BaseStorage) -> TaskStatus:
        task = await storage.get_task(self.id)
        if task is None:
            raise unknown(self.id)
        return task.status

    async def aresult(self, timeout: Duration | None = None) -> T:
        """What the task returned, as soon as it has ended."""
        return await self._result(await self._app.astorage(), timeout)

    def result(self, timeout: Duration | None = None) -> T:
        """What the task returned, as soon as it has ended."""
        return self._app.run(lambda storage: self._result(storage, timeout), "await handle.aresult()")

    async def _result(self, storage: BaseStorage, timeout: Duration | None) -> T:
        timeout_s = None if timeout is None else max(0.0, seconds(timeout, "timeout"))
        value: T = _value_of(await self.ended_in(storage, timeout_s))
        return value

    async def value_from(self, storage: BaseStorage) -> T:
        """For whoever waits for many, on a storage of the running loop."""
        return await self._result(storage, None)

    def wait(self, timeout: Duration | None = None, *, show: bool = False) -> TaskStatus:
        """Until the task has ended, however that is: its status. `show=True` draws a progress bar meanwhile.

        The bar shows what the body says with `ctx.progress(done, total)`. Inside a loop, `aresult` waits.
        """
        timeout_s = None if timeout is None else max(0.0, seconds(timeout, "timeout"))
        twin = "await handle.aresult()"
        if not show:
            return self._app.run(lambda storage: self.ended_in(storage, timeout_s), twin).status
        from omniq.progressbar import ProgressBar

        with ProgressBar() as bar:
            return self._app.run(lambda storage: self._shown(storage, timeout_s, bar), twin)

    async def ended_in(self, storage: BaseStorage, timeout_s: float | None) -> TaskResult:
        result = await storage.wait_result(self.id, timeout_s)
        if result is None:
            raise ResultTimeout(
                f"task {self.id} has not ended within {timeout_s:g} s; it goes on, "
                f"and `omniq why {self.id}` says what it waits for"
            )
        return result

    async def _shown(self, storage: BaseStorage, timeout_s: float | None, bar: ProgressBar) -> TaskStatus:
        ending = asyncio.ensure_future(self.ended_in(storage, timeout_s))
        try:
            while not ending.done():
                await asyncio.wait((ending,), timeout=LOOK_EVERY_S)
                task = await storage.get_task(self.id)
                if task is not None:
                    bar.show(task)
            return ending.result().status
        finally:
            ending.cancel()

    async def acancel(self) -> TaskStatus:
        return await (await self._app.astorage()).cancel(self.id)

    def cancel(self) -> TaskStatus:
        """End it if it waits, ask it to stop if it runs; the status afterwards."""
        return self._app.run(lambda storage: storage.cancel(self.id), "await handle.acancel()")

    async def aretry(self) -> None:
        await (await self._app.astorage()).retry(self.id)

    def retry(self) -> None:
        """Run a FAILED or CANCELLED task again, with all its chances."""
        self._app.run(lambda storage: storage.retry(self.id), "await handle.aretry()")

    async def aprogress(self) -> tuple[float, float | None] | None:
        return await self._progress(await self._app.astorage())

    def progress(self) -> tuple[float, float | None] | None:
        """What the body last said with `ctx.progress(done, total)`."""
        return self._app.run(self._progress, "await handle.aprogress()")

    async def _progress(self, storage: BaseStorage) -> tuple[float, float | None] | None:
        task = await storage.get_task(self.id)
        if task is None:
            raise unknown(self.id)
        return task.progress

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"


def _value_of(result: TaskResult) -> Any:
    match result.status:
        case TaskStatus.SUCCESS:
            return result.result
        case TaskStatus.CANCELLED:
            raise TaskCancelled(f"task {result.task_id} was cancelled")
        case _:
            raise TaskFailed(f"task {result.task_id} failed: {result.error}", result.error)


# --- many at once --------------------------------------------------------------------------------


def checked(handles: Iterable[TaskHandle[T]]) -> list[TaskHandle[T]]:
    """Refuse ids and coroutines at once, before anybody waits for the rest."""
    wanted = list(handles)
    for one in wanted:
        if not isinstance(one, TaskHandle):
            raise InvalidOption(
                f"it takes handles, not {shown(one)}; enqueue returns one (await what aenqueue returns), and "
                "q.handle(task_id) makes one"
            )
    return wanted


async def gathered(
    storage: BaseStorage, handles: list[TaskHandle[T]], timeout_s: float | None, return_exceptions: bool
) -> list[T]:
    """What all of them returned, in their order; the first that failed is raised at once."""
    if not handles:
        return []
    waiting = [asyncio.ensure_future(handle.value_from(storage)) for handle in handles]
    when = asyncio.ALL_COMPLETED if return_exceptions else asyncio.FIRST_EXCEPTION
    try:
        done, pending = await asyncio.wait(waiting, timeout=timeout_s, return_when=when)
        if not return_exceptions:
            for one in done:
                one.result()
        if pending:
            raise ResultTimeout(
                f"{len(pending)} of {len(waiting)} tasks have not ended within {timeout_s:g} s; they go on"
            )
        return await asyncio.gather(*waiting, return_exceptions=return_exceptions)  # type: ignore[return-value]
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


class Completed(Generic[T]):
    """Handles in the order in which their tasks end, however they end. To be iterated once."""

    def __init__(self, app: OmniQ, handles: Iterable[TaskHandle[T]], timeout_s: float | None) -> None:
        self._app = app
        self._handles = checked(handles)
        self._timeout_s = timeout_s
        self._until: float | None = None
        self._waiting: dict[asyncio.Future[TaskResult], TaskHandle[T]] = {}
        self._ended: list[TaskHandle[T]] = []
        self._begun = False

    def __iter__(self) -> Iterator[TaskHandle[T]]:
        try:
            while (
                handle := self._app.run(self._next, "async for handle in q.as_completed(...)")
            ) is not None:
                yield handle
        finally:
            self._drop()

    async def __aiter__(self) -> AsyncIterator[TaskHandle[T]]:
        storage = await self._app.astorage()
        try:
            while (handle := await self._next(storage)) is not None:
                yield handle
        finally:
            self._drop()

    async def _next(self, storage: BaseStorage) -> TaskHandle[T] | None:
        loop = asyncio.get_running_loop()
        if not self._begun:
            self._begun = True
            self._until = None if self._timeout_s is None else loop.time() + self._timeout_s
            self._waiting = {asyncio.ensure_future(one.ended_in(storage, None)): one for one in self._handles}
        while not self._ended and self._waiting:
            left_s = None if self._until is None else max(0.0, self._until - loop.time())
            done, _ = await asyncio.wait(self._waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise ResultTimeout(
                    f"{len(self._waiting)} of {len(self._handles)} tasks have not ended within "
                    f"{self._timeout_s:g} s; they go on"
                )
            for one in done:
                self._ended.append(self._waiting.pop(one))
                one.result()  # an unknown id, or a store that is away
        return self._ended.pop(0) if self._ended else None

    def _drop(self) -> None:
        """Wait for the rest no more; they belong to the loop that began, whichever thread this is."""
        for one in self._waiting:
            with contextlib.suppress(RuntimeError):  # that loop has closed, and everything with it
                one.get_loop().call_soon_threadsafe(one.cancel)
        self._waiting = {}
