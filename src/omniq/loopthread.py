"""One event loop in a thread: every blocking face goes through it.

with LoopThread("omniq") as loop:
    answer = loop.run(coroutine(), "use `await ...` instead")
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

from omniq.errors import BlockingCallInLoop, StoreUnavailable

T = TypeVar("T")

# A signal that comes just before a thread begins to wait for a lock does not end that wait, and Python looks
# for it only afterwards: a wait without an end would swallow a Ctrl-C.
LOOK_FOR_SIGNALS_S: Final = 0.5
# At the end what is left on the loop is cancelled, and may take this long; then it is left alone.
LAST_WORDS_S: Final = 2.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it installs, the standard loop elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def forbid_running_loop(advice: str) -> None:
    """A blocking call inside a running loop would stop everything else on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCallInLoop(f"this call blocks, but an event loop is running in this thread; {advice}")


def outcome(future: concurrent.futures.Future[T]) -> T:
    """What `future` brings. Waits for it, and never past a signal."""
    while True:
        try:
            return future.result(LOOK_FOR_SIGNALS_S)
        except TimeoutError:
            if future.done():  # maybe with a TimeoutError of its own
                return future.result()


class LoopThread:
    """A loop that runs in its own thread until `stop`. The thread never keeps the interpreter alive."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = new_event_loop()
        self._executor = concurrent.futures.ThreadPoolExecutor(thread_name_prefix=f"{name}-blocking")
        self.loop.set_default_executor(self._executor)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = threading.Event()
        # Whatever is submitted comes before the end, or is refused: nothing is left to wait for ever.
        self._ending = threading.RLock()
        self._ended = False
        self._last: Callable[[], Coroutine[Any, Any, object]] | None = None

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._started.set)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self._let_end(left)
            if self._last is not None:
                self.loop.run_until_complete(self._last())
            self._let_end({self.loop.create_task(self.loop.shutdown_asyncgens())})
            self._shut_executor()
            self.loop.close()

    def _let_end(self, left: set[asyncio.Task[Any]]) -> None:
        if left:
            ended, _ = self.loop.run_until_complete(asyncio.wait(left, timeout=LAST_WORDS_S))
            for task in ended:
                _ = task.cancelled() or task.exception()  # nobody else asks for it any more

    def _shut_executor(self) -> None:
        """`loop.shutdown_default_executor` waits for its threads for ever, before Python 3.12 at least."""
        shutting = threading.Thread(target=self._executor.shutdown, name=f"{self.name}-end", daemon=True)
        try:
            shutting.start()
        except RuntimeError:  # while the interpreter ends, Python 3.12 and later start no threads
            self._executor.shutdown(wait=False)
        else:
            shutting.join(LAST_WORDS_S)

    def run(self, work: Coroutine[Any, Any, T], advice: str = "await the async twin instead") -> T:
        """Run `work` on the loop and wait for it. An interrupted wait cancels it.

        If the thread is stopped meanwhile, or has been, that is `StoreUnavailable`: another try begins anew.
        """
        try:
            forbid_running_loop(advice)
        except BlockingCallInLoop:
            work.close()
            raise
        future = self.submit(work)
        try:
            return outcome(future)
        except concurrent.futures.CancelledError:
            raise self._was_closed() from None
        except BaseException:
            future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._ending:
            if self._ended:
                work.close()
                raise self._was_closed()
            return asyncio.run_coroutine_threadsafe(work, self.loop)

    def _was_closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.name} was closed while this call was under way; repeat it")

    def call(self, function: Callable[[], object]) -> None:
        """Call `function` on the loop, soon, unless it has ended."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return

    def stop(self, last: Callable[[], Coroutine[Any, Any, object]] | None = None) -> None:
        """End the loop: what is left is cancelled, then `last` is done."""
        with self._ending:
            self._last = self._last or last
            first, self._ended = not self._ended, True
        if self._thread.is_alive():
            if first:  # another one would cut off what is done at the end
                self.call(self.loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
