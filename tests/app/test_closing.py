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
