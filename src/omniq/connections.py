"""Which store an application uses, and its connections to it: a part of `OmniQ`.

One storage for each event loop, and one in a thread of its own for the blocking faces; all made when they are
first needed. Knows nothing of tasks and calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

from loguru import logger

from omniq.config import configured_url, default_file
from omniq.errors import InvalidOption
from omniq.loopthread import LoopThread, forbid_running_loop
from omniq.serializer import Serializer
from omniq.storage.base import BaseStorage
from omniq.storage.batched import BatchedStorage
from omniq.storage.url import open_storage, safe_url

V = TypeVar("V")

_all: weakref.WeakSet[Connected] = weakref.WeakSet()


class Connected:
    """What an application knows of its store. It connects when it is first used."""

    def __init__(
        self,
        url_or_storage: str | BaseStorage | None,
        serializer: Serializer,
        ttl_s: tuple[float, float],
        max_payload: int,
    ) -> None:
        self.serializer = serializer
        self._where = url_or_storage
        self._ttl_s = ttl_s
        self._max_payload = max_payload
        self._storage: BaseStorage | None = None
        self._after_enqueue: Callable[[], Coroutine[Any, Any, object]] | None = None
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        """Start without connections; also in a forked child, whose parent's are not ours to use."""
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._blocking: BaseStorage | None = None
        self._by_loop: dict[asyncio.AbstractEventLoop, BaseStorage] = {}

    def storage(self) -> BaseStorage:
        """The storage that this application was given or configured with. Clone it to use it."""
        with self._lock:
            if self._storage is None:
                self._storage = self._find_storage()
                if isinstance(self._storage, BatchedStorage):
                    self._storage.keep_results(*self._ttl_s)
                    self._storage.max_payload = self._max_payload
                    self._storage.serializer = self.serializer
            return self._storage

    def _find_storage(self) -> BaseStorage:
        if isinstance(self._where, BaseStorage):
            return self._where
        # An empty address is that of a variable which is not set, no wish for the usual store: it is refused.
        url = configured_url() if self._where is None else self._where
        if url is not None:
            return open_storage(url)
        file = default_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        logger.info("no store configured (OMNIQ_URL, [tool.omniq] url): using {}", file)
        return open_storage(_url_of(file))

    def use(self, url_or_storage: str | BaseStorage) -> None:
        """Work on another store from now on. Only before the first use."""
        with self._lock:
            if self._storage is not None:
                raise InvalidOption("q.use(...) comes too late: the application has used its store already")
            self._where = url_or_storage

    @contextlib.contextmanager
    def on(
        self,
        storage: BaseStorage,
        after_enqueue: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> Generator[None]:
        """Work on another store inside the block, whatever was used before; for tests (`omniq.testing`)."""
        with self._lock:
            before = self._where, self._storage, self._thread, self._blocking, self._by_loop
            self._where, self._storage, self._thread, self._blocking, self._by_loop = (
                storage, None, None, None, {},
            )  # fmt: skip
            self._after_enqueue = after_enqueue
        try:
            yield
        finally:
            with self._lock:
                thread, blocking, by_loop = self._thread, self._blocking, self._by_loop
                self._where, self._storage, self._thread, self._blocking, self._by_loop = before
                self._after_enqueue = None
            for one in by_loop.values():
                one.abandon()
            if thread is not None and blocking is not None:
                thread.stop(blocking.close)

    @property
    def url(self) -> str:
        """Where the tasks are, for people to read: without a password."""
        if isinstance(self._where, BaseStorage):
            return repr(self._where)
        return safe_url(self._where or configured_url() or _url_of(default_file()))

    def _at_hand(self) -> BaseStorage | None:
        """The storage of the running loop, where it is open already."""
        storage = self._by_loop.get(asyncio.get_running_loop())
        return storage if storage is not None and storage.is_open else None

    async def astorage(self) -> BaseStorage:
        """The storage of the running loop."""
        loop = asyncio.get_running_loop()
        storage = self._by_loop.get(loop)
        if storage is None:
            with self._lock:  # only this thread could add this loop, but others add theirs
                self._drop_closed_loops()
                storage = self._by_loop[loop] = self.storage().clone()
        if not storage.is_open:
            await storage.open()
        return storage

    def _drop_closed_loops(self) -> None:
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            self._by_loop.pop(loop).abandon()

    def run(self, work: Callable[[BaseStorage], Coroutine[Any, Any, V]], twin: str) -> V:
        """Do `work` with a storage and wait for it; `twin` is what to await instead inside a loop."""
        return self._run(work, twin)

    def _run(
        self, work: Callable[[BaseStorage], Coroutine[Any, Any, V]], twin: str, *, inline: bool = False
    ) -> V:
        advice = f"write `{twin}` here"
        thread, storage = self._blocking_face()
        if inline:
            # The caller's own connection belongs to the caller's thread, so the work must stay there.
            return _run_here(self._with_own_storage(work), advice)
        return thread.run(work(storage), advice)

    def _blocking_face(self) -> tuple[LoopThread, BaseStorage]:
        with self._lock:
            if self._thread is None or self._blocking is None:
                self._blocking = self.storage().clone()
                self._thread = LoopThread("omniq-app").start()
            return self._thread, self._blocking

    async def _with_own_storage(self, work: Callable[[BaseStorage], Coroutine[Any, Any, V]]) -> V:
        async with self.storage().clone() as storage:
            return await work(storage)

    def close(self) -> None:
        """Give back what the blocking faces use. The application can be used again afterwards."""
        forbid_running_loop("write `await q.aclose()` here")
        with self._lock:
            thread, storage = self._thread, self._blocking
            self._thread = self._blocking = None
        if thread is not None and storage is not None:
            try:
                thread.run(storage.close(), "await q.aclose()")
            finally:
                # Again at the end: an enqueue in another thread may have opened it in between.
                thread.stop(storage.close)

    async def aclose(self) -> None:
        """Give back what this loop uses."""
        storage = self._by_loop.pop(asyncio.get_running_loop(), None)
        if storage is not None:
            await storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


def _url_of(file: Path) -> str:
    return f"sqlite:///{quote(str(file))}"


def _run_here(work: Coroutine[Any, Any, V], advice: str) -> V:
    try:
        forbid_running_loop(advice)
    except BaseException:
        work.close()
        raise
    return asyncio.run(work)


def _forget_in_child() -> None:
    for app in list(_all):
        app._forget()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
