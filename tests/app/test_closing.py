"""Closing an application, or its loop, while another thread is in the middle of a call."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from omniq import OmniQ
from omniq.errors import StoreUnavailable
from omniq.loopthread import LoopThread
from omniq.storage import MemoryStorage


class SlowToOpen(MemoryStorage):
    """As a store that is locked: opening it takes until somebody gives up."""

    opening = threading.Event()
    closed = 0

    async def _connect(self) -> None:
        self.opening.set()
        await asyncio.Event().wait()

    def clone(self) -> "SlowToOpen":
        return self

    async def close(self) -> None:
        type(self).closed += 1
        await super().close()


def test_a_call_that_a_close_cuts_off_raises_an_error_of_ours() -> None:
    storage = SlowToOpen()
    q = OmniQ(storage)

    @q.task(name="app.job")
    def job() -> None: ...

    with ThreadPoolExecutor() as others:
        enqueueing = others.submit(job.enqueue)
        assert storage.opening.wait(10)
        q.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            enqueueing.result(10)
    assert SlowToOpen.closed == 2, "what opened it in between would have stayed open"


def test_nothing_waits_for_a_loop_that_has_ended() -> None:
    thread = LoopThread("test").start()
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    def last() -> Coroutine[Any, Any, object]:
        return note("last")

    thread.run(note("first"))
    thread.stop(last)
    thread.stop()
    with pytest.raises(StoreUnavailable, match="closed"):
        thread.run(note("too late"))
    assert done == ["first", "last"]


def test_a_second_stop_cuts_off_nothing_of_the_first() -> None:
    """What is done last takes its time; whoever stops meanwhile waits for it too."""
    thread = LoopThread("test").start()
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    async def take_time() -> None:
        begun.set()
        while not go_on.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.001)
        done.append("last")

    with ThreadPoolExecutor() as others:
        first = others.submit(thread.stop, take_time)
        assert begun.wait(10)
        second = others.submit(thread.stop)
        with pytest.raises(TimeoutError):
            second.result(0.05)
        go_on.set()
        first.result(10)
        second.result(10)
    assert done == ["last"]
