"""The small process above the worker processes: it starts, watches, replaces and stops them.

It knows no task and imports nothing of the application. It renews the leases of its children, so that a
body that holds the interpreter for minutes loses nothing, and takes back at once what a dead one held.

    supervisor ─┬─ child: its own session, its own connections
                ├─ child
                └─ the store: renew(child), release(child)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from loguru import logger

from omniq.cli import log
from omniq.cli.aftermath import give_back, release
from omniq.cli.listening import metrics_sockets
from omniq.cli.process import Child
from omniq.cli.reload import changes
from omniq.cli.renewal import keep_renewing
from omniq.cli.wire import Beat, Found, Plan, Ready, Refused
from omniq.errors import OmniqError
from omniq.loopthread import new_event_loop
from omniq.storage.base import BaseStorage
from omniq.storage.batched import BatchedStorage
from omniq.storage.url import open_storage

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
# Applications may load a lot while they are imported.
START_WITHIN_S: Final = 600.0
# A child that lived this long has worked: the next pause is the shortest again.
SOON_S: Final = 10.0
# After the grace time: how long bodies may take to notice that they were cancelled, and the rest.
KILL_AFTER_S: Final = 3.0
# A process that a task forked may keep a dead child's line open; nobody waits for that.
LAST_REPORT_S: Final = 0.5
# At the end nobody waits longer than this for a store that is away.
LAST_WORD_S: Final = 1.0
TAKE_BACK_EVERY_S: Final = 0.2


def supervise(plan: Plan) -> Refused | None:
    """Until told to stop. What is returned says why it could not even begin."""
    log.configure(plan.log_level, debug=plan.debug, form=plan.log_format)
    with contextlib.ExitStack() as until_the_end, asyncio.Runner(loop_factory=new_event_loop) as runner:
        metrics = [until_the_end.enter_context(one) for one in metrics_sockets(plan)]
        return runner.run(Supervisor(plan, metrics).run())


class Supervisor:
    def __init__(self, plan: Plan, metrics: Sequence[socket.socket] = ()) -> None:
        self._plan = plan
        self._metrics = metrics
        self._children: set[Child] = set()
        self._stores: dict[str, BaseStorage] = {}
        self._stopping = asyncio.Event()
        self._at_once = False
        self._kill_at: float | None = None
        self._refusal: Refused | None = None
        self._files_changed = asyncio.Event()

    async def run(self) -> Refused | None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        renewing = asyncio.create_task(keep_renewing(self._supervised, self._plan.lease))
        renewing.add_done_callback(self._renewal_ended)
        watching = asyncio.create_task(self._watch_files()) if self._plan.reload else None
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(self._plan.processes):
                    metrics = self._metrics[place] if self._metrics else None
                    group.create_task(self._keep_one_running(metrics))
        finally:
            beside = [task for task in (renewing, watching) if task is not None]
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._close_stores()
        return self._refusal

    def _supervised(self) -> Iterator[tuple[BaseStorage, str]]:
        return ((c.storage, c.identity) for c in self._children if c.storage is not None and c.ready)

    def _renewal_ended(self, renewing: asyncio.Task[None]) -> None:
        """Never before we stop. If it does, others would soon take what our children still run."""
        if renewing.cancelled():
            return
        logger.critical("nobody renews leases any more, so this stops: {!r}", renewing.exception())
        if not self._stopping.is_set():
            self._stop(at_once=False)

    # --- stopping --------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        if self._stopping.is_set() and not self._at_once:
            logger.info("giving everything back at once")
            self._stop(at_once=True)
        elif not self._stopping.is_set():
            logger.info(
                "stopping: what runs has {grace:g} s to end; signal again to give it back at once",
                grace=self._plan.grace,
            )
            self._stop(at_once=False)

    def _stop(self, *, at_once: bool) -> None:
        self._at_once = at_once
        self._kill_at = time.monotonic() + (0 if at_once else self._plan.grace) + KILL_AFTER_S
        self._stopping.set()
        for child in self._children:
            child.stop(now=at_once)

    async def _watch_files(self) -> None:
        """For development: other files, other worker processes. What runs is given back."""
        async for changed in changes(Path.cwd()):
            logger.info("{file} changed: the worker processes start again", file=changed)
            for child in self._children:
                child.stop(now=True)
                child.kill_at = time.monotonic() + KILL_AFTER_S
            self._files_changed.set()
            self._files_changed = asyncio.Event()

    # --- one place -------------------------------------------------------------------------------

    async def _keep_one_running(self, metrics: socket.socket | None) -> None:
        """A child, and after its death another one, with growing pauses while they die soon."""
        pause_s = 0.0
        while not self._stopping.is_set():
            lived_s = 0.0
            try:
                child = await Child.spawn(self._plan, metrics)
            except OSError as exc:
                logger.error("cannot start a worker process: {}", exc)
            else:
                await self._see_through(child)
                lived_s = child.lived_s
                if child.refused or child.kill_at is not None:  # only with --reload
                    await self._until_files_changed(child)
                    continue
            pause_s = next_pause_s(pause_s, lived_s)
            if not self._stopping.is_set():
                logger.info("another worker process starts in {:g} s", pause_s)
                await self._sleep(pause_s)

    async def _until_files_changed(self, child: Child) -> None:
        """What refused to start would do so again before that; what made way for another need not wait."""
        if child.kill_at is not None or self._stopping.is_set():
            return
        logger.warning("waiting for a file to change")
        changed, stopping = (
            asyncio.ensure_future(one.wait()) for one in (self._files_changed, self._stopping)
        )
        try:
            await asyncio.wait((changed, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            stopping.cancel()

    async def _see_through(self, child: Child) -> None:
        """From its first word to what it leaves behind."""
        self._children.add(child)
        if self._stopping.is_set():
            child.stop(now=self._at_once)
        listening = asyncio.create_task(self._listen(child))
        try:
            await self._watch(child)
            # What it said last is still on the line, and that may be why it ended.
            await asyncio.wait([listening], timeout=LAST_REPORT_S)
        finally:
            listening.cancel()
            self._children.discard(child)
            await child.link.close()
        if not (self._stopping.is_set() or child.told_to_stop):
            logger.warning("worker process {} ended: {}", child.pid, child.how_it_ended())
        await self._take_back(child)

    async def _listen(self, child: Child) -> None:
        while (report := await child.link.receive()) is not None:
            match report:
                case Beat():
                    child.quiet_s = 0.0
                case Ready():
                    child.ready, child.quiet_s = True, 0.0
                case Found():
                    child.storage = self._store(report)
                case Refused() if self._plan.reload:
                    child.refused = True
                    logger.error("{why}", why=report.message)
                case Refused():
                    self._refusal = self._refusal or report
                    if not self._stopping.is_set():
                        self._stop(at_once=False)

    def _store(self, found: Found) -> BaseStorage | None:
        if found.url is None:
            return None
        if found.url not in self._stores:
            storage = self._stores[found.url] = open_storage(found.url)
            if isinstance(storage, BatchedStorage):
                storage.keep_results(found.result_ttl_s, found.failed_ttl_s)
        return self._stores[found.url]

    async def _watch(self, child: Child) -> None:
        """Until the process has ended; kill it if its loop stands still, or if it does not stop."""
        ended = asyncio.create_task(child.process.wait())
        tick_s = self._plan.beat_every_s
        try:
            while not ended.done():
                kill_at = self._kill_at or child.kill_at
                until_kill_s = tick_s if kill_at is None else kill_at - time.monotonic()
                await asyncio.wait([ended], timeout=max(0.01, min(tick_s, until_kill_s)))
                # Counted in ticks of this loop: time in which we stood still ourselves counts for nobody.
                child.quiet_s += tick_s
                if not ended.done():
                    self._kill_if_hopeless(child)
        finally:
            ended.cancel()

    def _kill_if_hopeless(self, child: Child) -> None:
        if child.killed:
            return
        kill_at = min((at for at in (self._kill_at, child.kill_at) if at is not None), default=math.inf)
        if time.monotonic() >= kill_at:
            logger.error("worker process {} does not stop; killing it", child.pid)
            child.kill()
        elif child.quiet_s >= (limit_s := self._plan.stall_limit if child.ready else START_WITHIN_S):
            logger.error("worker process {} has not moved for {:g} s; killing it", child.pid, limit_s)
            child.kill()

    async def _take_back(self, child: Child) -> None:
        """Nothing waits for a lease: this process is certainly gone."""
        if child.storage is None or not child.ready:
            return
        give_up_at = time.monotonic() + self._plan.lease  # by then others have taken it back
        while time.monotonic() < give_up_at:
            try:
                async with asyncio.timeout(LAST_WORD_S if self._stopping.is_set() else None):
                    await self._free(child, child.storage)
                return
            except (OmniqError, TimeoutError) as exc:
                logger.error("cannot take back the tasks of {}: {!r}", child.identity, exc)
            if self._stopping.is_set():
                return
            await self._sleep(TAKE_BACK_EVERY_S)

    async def _free(self, child: Child, storage: BaseStorage) -> None:
        if child.killed and (self._stopping.is_set() or child.kill_at is not None):
            held = await give_back(storage, child.identity)
        else:
            held = await release(storage, child.identity)
        if held:
            logger.warning("took back {} tasks of worker process {}", len(held), child.pid)

    async def _sleep(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _close_stores(self) -> None:
        closing = [asyncio.create_task(storage.close()) for storage in self._stores.values()]
        if closing:
            await asyncio.wait(closing, timeout=LAST_WORD_S)


def next_pause_s(pause_s: float, lived_s: float) -> float:
    """Before the next child: short, unless the one before died soon and its own pause was longer."""
    if lived_s >= SOON_S or not pause_s:
        return FIRST_PAUSE_S
    return min(2 * pause_s, LONGEST_PAUSE_S)
