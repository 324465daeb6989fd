"""Pools that nobody stops: one that is forgotten ends by itself, and so do all when the program ends.

Python ignores what is raised where an object goes: a Ctrl-C that met a function of ours there would be lost.
So with uvloop nothing of this runs in Python in the thread that has let go of a pool. The loop does it all.
"""

from __future__ import annotations

import atexit
import os
import weakref
from functools import partial
from typing import Any, Final, Protocol

from loguru import logger

from omniq.data.engine import Engine
from omniq.data.stream import Hatch
from omniq.loopthread import LoopThread

EXIT_BOUND_S: Final = 1.5  # a program that ends waits no longer for a pool that it has not stopped


class Closeable(Protocol):
    def close(self) -> object: ...


class Farewell:
    """What a running pool leaves behind."""

    def __init__(self, hatch: Hatch, engine: Engine, thread: LoopThread, memory: Closeable | None) -> None:
        self._hatch = hatch
        self._engine = engine
        self._thread = thread
        self._memory = memory
        self._made_in = os.getpid()

    def when_gone(self, pool: object) -> None:
        """Take leave when `pool` is gone, or when the program ends, whichever is first."""
        call_soon: Any = self._thread.loop.call_soon_threadsafe
        _expected[self] = weakref.ref(pool, partial(call_soon, self._forgotten))

    def detach(self) -> None:
        """The pool was stopped."""
        _expected.pop(self, None)

    def _forgotten(self, _pool: object) -> None:
        if _expected.pop(self, None) is not None:
            loop = self._thread.loop
            loop.create_task(self._end()).add_done_callback(lambda _: loop.stop())

    async def _end(self) -> None:
        self._hatch.enter("stopped")
        try:
            await self._engine.end()
        finally:
            if self._memory is not None:
                self._memory.close()

    def at_exit(self) -> None:
        """Nothing may stay behind, and nobody waits for long."""
        if os.getpid() != self._made_in or not self._thread.is_alive:
            return
        ending = self._thread.submit(self._end())
        try:
            ending.result(EXIT_BOUND_S)
        except Exception as exc:  # nobody is left to whom it could be raised
            logger.debug("the data pool did not end in time: {error!r}", error=exc)
        self._thread.stop()


_expected: Final[dict[Farewell, weakref.ref[object]]] = {}


@atexit.register
def _at_exit() -> None:
    for farewell in tuple(_expected):
        if _expected.pop(farewell, None) is not None:
            farewell.at_exit()
