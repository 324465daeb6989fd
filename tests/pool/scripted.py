"""A pool whose processes do what the test says, and locks that remember who held them.

Only what lies below the pool is replaced: nothing is started, and each child waits for its script.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

from omniq.pool import PoolWorker, WorkerPool
from omniq.pool import calls as wired
from omniq.pool.calls import Outcome, Returned
from omniq.pool.process import ChildGone, Exit

SIGKILL = 9
TURNS = 20
GUARDED = frozenset({"status", "current_task", "since", "child", "calls_done", "reason", "condemned"})

held: ContextVar[tuple[RecordingLock, ...]] = ContextVar("held", default=())


class Rules:
    """What was broken, in words. A rule is broken when something is in here."""

    def __init__(self) -> None:
        self.broken: list[str] = []


class RecordingLock(asyncio.Lock):
    """Knows who holds it: the code that runs in the context that took it."""

    def __init__(self, name: str, rules: Rules) -> None:
        super().__init__()
        self.name = name
        self.rules = rules

    async def acquire(self) -> bool:
        if held.get():
            self.rules.broken.append(f"{self.name} taken while holding {held.get()[-1].name}")
        await super().acquire()
        held.set((*held.get(), self))
        return True

    def release(self) -> None:
        held.set(tuple(lock for lock in held.get() if lock is not self))
        super().release()

    @property
    def is_mine(self) -> bool:
        return self in held.get()


class GuardedWorker(PoolWorker):
    """A worker whose state cannot be touched unnoticed by those who do not hold its lock."""

    rules: Rules
    guarded = False

    @classmethod
    def made(cls, worker_id: int, rules: Rules, clock: Any) -> GuardedWorker:
        worker = cls(worker_id, clock)
        worker.rules = rules
        worker.lock = RecordingLock(f"the lock of worker {worker_id}", rules)
        worker.guarded = True
        return worker

    def __getattribute__(self, name: str) -> Any:
        if name in GUARDED:
            self._touched("read", name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in GUARDED:
            self._touched("written", name)
        super().__setattr__(name, value)

    def _touched(self, how: str, name: str) -> None:
        if self.guarded and not self.lock.is_mine:  # type: ignore[attr-defined]
            self.rules.broken.append(f"{name} of worker {self.id} {how} without its lock")


class GuardedQueue(deque[int]):
    """A ready queue that looks at whoever lines up."""

    def __init__(self, pool: ScriptedPool) -> None:
        super().__init__()
        self.pool = pool

    def append(self, worker_id: int) -> None:
        worker = self.pool.workers.workers[worker_id]
        if worker_id in self:
            self.pool.rules.broken.append(f"worker {worker_id} stands in the ready queue twice")
        if not worker.lock.is_mine:  # type: ignore[attr-defined]
            self.pool.rules.broken.append(f"worker {worker_id} lined up without its lock")
        elif not worker.is_idle:
            self.pool.rules.broken.append(f"worker {worker_id} lined up without being ready and idle")
        super().append(worker_id)

    def appendleft(self, worker_id: int) -> None:
        self.pool.rules.broken.append(f"worker {worker_id} went to the front of the line")
        super().appendleft(worker_id)


class ScriptedChild:
    """A process that says what the test lets it say."""

    def __init__(self, pid: int, events: Any, rules: Rules) -> None:
        self.pid = pid
        self.started_at = 0.0
        self.events = events
        self.rules = rules
        self.message: wired.Message | None = None
        self.reported = 0
        self.running = 0
        self.asked_to_stop = self.killed = self.is_ready = self.gone = False
        self.interrupted: list[int] = []
        self.ran: list[str] = []
        self.rss_bytes = 1 << 20

    # --- what the pool does ---

    def send(self, message: wired.Message) -> None:
        if self.gone:
            raise ChildGone("gone")
        if self.asked_to_stop:
            self.rules.broken.append(f"child {self.pid} got a message after it was asked to stop")
        if self.message is not None:
            self.rules.broken.append(f"child {self.pid} got a message while it had one")
        if not self.is_ready:
            self.rules.broken.append(f"child {self.pid} got a message before it was ready")
        self.message, self.reported = message, 0
        self.running = message.calls[0].id
        self.ran.append(message.calls[0].name)

    def ask_to_stop(self) -> None:
        self.asked_to_stop = True

    def interrupt(self, call_id: int, count: int = 1) -> None:
        self.interrupted += range(call_id, call_id + count)

    def kill(self) -> None:
        self.killed = True

    # --- what the test does ---

    def become_ready(self) -> None:
        if not self.is_ready and not self.gone:
            self.is_ready = True
            self.events.ready(self)

    def report(self, *outcomes: Outcome) -> None:
        """The next outcomes of its message."""
        assert self.message is not None
        first = self.message.calls[0].id + self.reported
        self.reported += len(outcomes)
        self.running = first + len(outcomes)
        self.events.outcomes(self, first, outcomes)

    def finish(self, value: Any = None) -> None:
        """Report all that is left, then be done."""
        if self.message is None or self.gone:
            return
        [encoded] = self.message.calls
        message_id, left = self.message.id, encoded.count - self.reported
        first = encoded.id + self.reported
        self.message, self.running = None, 0
        self.events.done(self, message_id, first, [Returned(value)] * left)

    def fail(self, exception: Exception) -> None:
        assert self.message is not None
        message_id = self.message.id
        self.report(wired.Raised(exception))
        self.message, self.running = None, 0
        self.events.done(self, message_id)

    def die(self, signal: int = SIGKILL) -> None:
        if not self.gone:
            self.gone = True
            self.events.exited(self, Exit(signal=signal))

    def say_goodbye(self) -> None:
        """End in good order, as one that was asked to does."""
        if not self.gone and self.asked_to_stop and self.message is None:
            self.events.shutdown(self)
            self.gone = True
            self.events.exited(self, Exit(code=0))


class ScriptedTemplate:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.children: list[ScriptedChild] = []
        self.refuses: Exception | None = None
        self.closed = False
        self.automatic = False

    async def start(self) -> None: ...

    async def spawn(self, events: Any) -> ScriptedChild:
        if self.refuses is not None:
            raise self.refuses
        child = ScriptedChild(1000 + len(self.children), events, self.rules)
        self.children.append(child)
        if self.automatic:
            asyncio.get_running_loop().call_soon(child.become_ready)
        return child

    async def close(self) -> None:
        self.closed = True
        for child in self.children:
            child.die()


class ScriptedPool(WorkerPool):
    """A pool on a scripted template, with locks and workers that notice a broken rule."""

    def __init__(self, min_workers: int = 2, max_workers: int | None = None, **options: Any) -> None:
        self.rules = Rules()
        super().__init__(min_workers, max_workers or max(min_workers, 1), **options)
        self.workers.management_lock = RecordingLock("the registry lock", self.rules)
        self.workers.ready_queue = GuardedQueue(self)
        self.template = ScriptedTemplate(self.rules)

    def _new_template(self) -> Any:
        return self.template

    def _new_worker(self, worker_id: int) -> PoolWorker:
        return GuardedWorker.made(worker_id, self.rules, self._clock)

    @property
    def children(self) -> list[ScriptedChild]:
        return self.template.children

    async def ended(self) -> None:
        """Shut down: every child does what it is asked to, and no rule has been broken."""
        ending = asyncio.ensure_future(self.shutdown(cancel=True))
        while not ending.done():
            for child in self.children:
                if child.interrupted and child.message is not None:
                    child.finish()
                child.say_goodbye()
            await turns(1)
        await ending
        assert self.rules.broken == []


async def scripted(min_workers: int = 2, max_workers: int | None = None, **options: Any) -> ScriptedPool:
    """A pool that has started, with `min_workers` that are ready in the order of their ids."""
    pool = ScriptedPool(min_workers, max_workers, **options)
    await pool.start()
    for child in pool.children:
        child.become_ready()
    return pool


class Somebody:
    """Somebody else, who holds a lock until told to let go."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._let_go = asyncio.Event()
        self._last: Callable[[], object] = lambda: None
        self._holding = asyncio.get_running_loop().create_task(self._hold(), context=Context())

    async def _hold(self) -> None:
        async with self._lock:
            await self._let_go.wait()
            self._last()

    def let_go(self, last: Callable[[], object] = lambda: None) -> None:
        """Do `last` under the lock, then release it."""
        self._last = last
        self._let_go.set()

    async def __aenter__(self) -> Somebody:
        await turns()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.let_go()
        await self._holding


async def turns(count: int = TURNS) -> None:
    """Let whatever can happen happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], object], what: str, bound_s: float = 20.0) -> None:
    """Wait until `holds()`, which has to come true within `bound_s`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + bound_s
    while not holds():
        assert loop.time() < end, f"still waiting after {bound_s:g} s: {what}"
        await asyncio.sleep(0.002)
