"""A worker process: `python -m omniq.cli.child MODULE:APP FD`, started by the supervisor only.

It imports the application, runs its tasks, and ends when the supervisor says so or is gone. FD is its end
of the socket pair (`omniq.cli.wire`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from loguru import logger

from omniq.app import OmniQ
from omniq.cli import log
from omniq.cli.application import load
from omniq.cli.errors import EXIT_FAILED, EXIT_USAGE, CommandFailed
from omniq.cli.renewal import keep_renewing
from omniq.cli.store import storage_at, storage_of
from omniq.cli.text import safe
from omniq.cli.wire import (
    MAX_MESSAGE_CHARS,
    Beat,
    Found,
    Link,
    Order,
    Plan,
    Ready,
    Refused,
    Start,
    Stop,
    to_supervisor,
)
from omniq.errors import InvalidOption, OmniqError, WorkerStuck
from omniq.loopthread import new_event_loop
from omniq.storage.base import BaseStorage
from omniq.storage.batched import BatchedStorage
from omniq.storage.url import open_storage
from omniq.worker import AsyncWorkerPool
from omniq.workeroptions import ProcessLimits

EXIT_STUCK: Final = 3
# What the application left running (threads that nobody joins, exit handlers) may take this long.
LEAVE_WITHIN_S: Final = 1.0


def main() -> int:
    end = socket.socket(fileno=int(sys.argv[2]))
    end.set_inheritable(False)  # a process that a task starts must not keep our line open
    loop = new_event_loop()
    link, start = loop.run_until_complete(_greet(end))
    if start is None:
        return EXIT_FAILED
    log.configure(start.plan.log_level, debug=start.plan.debug, form=start.plan.log_format)
    # Outside of a running loop, because modules may do at import what is refused inside one.
    try:
        pool = _prepare(start, link)
        # The application lives as long as this process. Every full collection would look through all of it,
        # with the loop standing still; the more tasks leave behind, as traces do, the more often.
        gc.freeze()
        with _metrics(pool, start.metrics_fd):
            return loop.run_until_complete(_Serving(link, pool, start).run())
    except OmniqError as exc:
        code = exc.exit_code if isinstance(exc, CommandFailed) else EXIT_FAILED
        if start.plan.debug:
            logger.opt(exception=exc).error("cannot start")
        link.send(Refused(safe(exc)[:MAX_MESSAGE_CHARS], code))
        return code
    finally:
        loop.run_until_complete(link.close())


async def _greet(end: socket.socket) -> tuple[Link[Order], Start | None]:
    link = await to_supervisor(end)
    order = await link.receive()
    return link, order if isinstance(order, Start) else None


def _prepare(start: Start, link: Link[Order]) -> AsyncWorkerPool:
    plan = start.plan
    app = load(plan.app)
    if plan.url is not None:
        app.use(storage_at(plan.url))
    storage = storage_of(app)
    can = storage.capabilities
    if plan.processes > 1 and can.batched and not can.durable:  # a built-in store that is no store for two
        raise CommandFailed(
            f"{plan.app} keeps its tasks in memory, which other processes cannot see; "
            "write --processes 1, or give it a file: --url sqlite:///jobs.db",
            EXIT_USAGE,
        )
    pool = _pool(app, plan).limited(
        ProcessLimits(plan.task_processes, plan.max_tasks_per_process, plan.max_memory_per_process)
    )
    address = _openable(storage.url)
    if address is not None:
        pool.supervised(start.identity)
    link.send(Found(address, *_kept(storage)))
    return pool


def _metrics(pool: AsyncWorkerPool, fd: int | None) -> AbstractContextManager[None]:
    if fd is None:
        return nullcontext()
    listening = socket.socket(fileno=fd)
    listening.set_inheritable(False)
    return pool.measured().served(listening)


def _openable(address: str | None) -> str | None:
    """An address that the supervisor can open as well; otherwise this process renews its own leases."""
    try:
        if address is not None:
            open_storage(address)
    except InvalidOption:
        return None
    return address


def _kept(storage: BaseStorage) -> tuple[float, float]:
    """How long results and failures are kept: the supervisor ends tasks too."""
    if isinstance(storage, BatchedStorage):
        return storage.result_ttl_s, storage.failed_ttl_s
    return BatchedStorage.result_ttl_s, BatchedStorage.failed_ttl_s


def _pool(app: OmniQ, plan: Plan) -> AsyncWorkerPool:
    return app.async_worker(
        concurrency=plan.concurrency,
        poll_interval=plan.poll_interval,
        queues=plan.queues,
        lease=plan.lease,
        allow=plan.allow,
    )


class _Serving:
    """From a pool that is ready to one that has stopped."""

    def __init__(self, link: Link[Order], pool: AsyncWorkerPool, start: Start) -> None:
        self._link = link
        self._pool = pool
        self._plan = start.plan
        self._identity = start.identity
        self._stops: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        await self._pool.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # However often it comes: a service manager may signal us as well as the supervisor.
            loop.add_signal_handler(number, self._stop, self._plan.grace)
        self._link.send(Ready())
        beside = [asyncio.create_task(work()) for work in (self._beat, self._obey)]
        try:
            return await self._until_stopped()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, *self._stops, return_exceptions=True)

    async def _until_stopped(self) -> int:
        """What breaks a pool that has worked is no refusal: another process may do better."""
        try:
            await self._pool.wait()
            await self._pool.stop()
        except (Exception, asyncio.CancelledError) as exc:  # a body may cancel every task there is
            logger.opt(exception=exc).error("the worker cannot go on")
            await asyncio.gather(self._pool.stop(), return_exceptions=True)
            return EXIT_STUCK if isinstance(exc, WorkerStuck) else EXIT_FAILED
        return 0

    def _stop(self, timeout_s: float) -> None:
        self._stops.add(asyncio.create_task(self._pool.stop(timeout=timeout_s)))

    async def _beat(self) -> None:
        while True:
            self._link.send(Beat())
            await asyncio.sleep(self._plan.beat_every_s)

    async def _obey(self) -> None:
        while (order := await self._link.receive()) is not None:
            if isinstance(order, Stop):
                self._stop(0 if order.now else self._plan.grace)
        logger.warning("the supervisor is gone; this worker process ends")
        self._stop(self._plan.grace)
        # Nobody else renews now, and what runs may need all of the grace time.
        await keep_renewing(lambda: [(self._pool.storage, self._identity)], self._plan.lease)


def leave(run: Callable[[], int]) -> None:
    """Run, and be gone soon afterwards, whatever threads and exit handlers are left."""
    try:
        code = run()
    except BaseException as exc:
        logger.opt(exception=exc).critical("the worker process ends")
        code = EXIT_FAILED
    threading.Thread(target=_cut, args=(code,), daemon=True).start()
    sys.exit(code)


def _cut(code: int) -> None:
    time.sleep(LEAVE_WITHIN_S)
    os._exit(code)


if __name__ == "__main__":
    leave(main)
