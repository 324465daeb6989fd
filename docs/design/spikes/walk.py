"""A random walk through the verbs, on a spike and on the memory store's rows at once; both must say the same.

Delays are either nothing or very long, and leases are ended by hand, so that real clocks cannot disagree.
Grants are kept for ever: reports of old epochs arise by themselves.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Protocol

from stores import Got, Row

from omniq.clock import REAL_CLOCK
from omniq.errors import DuplicateTask, IdConflict
from omniq.storage.memory import MemoryRows
from omniq.task import (
    Action,
    Answer,
    Claim,
    Held,
    OnConflict,
    Settlement,
    StoredTask,
    TaskError,
    TaskStatus,
    new_id,
)

FAR_S = 100_000.0
QUEUES = ("a", "b", "c")
WORKERS = ("w1", "w2", "w3")
ERROR = TaskError("ValueError", "boom", "", "error")


class Store(Protocol):
    async def enqueue_many(
        self, tasks: list[StoredTask], on_conflict: OnConflict
    ) -> list[tuple[str, bool]]: ...
    async def exchange(
        self, settlements: list[Settlement], claim: Claim | None
    ) -> tuple[list[Answer], list[Got]]: ...
    async def renew(self, worker: str, lease: float) -> dict[str, tuple[int, bool]]: ...
    async def release(self, worker: str) -> int: ...
    async def lapse(self, limit: int) -> int: ...
    async def cancel(self, task_id: str) -> TaskStatus: ...
    async def pause(self, queue: str, paused: bool) -> None: ...
    async def lease_over(self, task_id: str) -> None: ...
    async def rows(self) -> dict[str, Row]: ...


class Model:
    """The memory store's rows, with the two differences that a store may declare."""

    def __init__(self, *, sees_put_back: bool, refills: bool) -> None:
        self.rows = MemoryRows(REAL_CLOCK)
        self.sees_put_back = sees_put_back  # a claim may get what the same call put back
        self.refills = refills  # a claim that met expired tasks looks for others in their place

    def exchange(
        self, settlements: list[Settlement], claim: Claim | None
    ) -> tuple[list[Answer], list[StoredTask]]:
        now = self.rows.now()
        if self.sees_put_back:
            answers = [self.rows.settle_one(s, now) for s in settlements]
            return answers, self._claim(claim, now)
        claims = self._claim(claim, now)
        return [self.rows.settle_one(s, now) for s in settlements], claims

    def _claim(self, claim: Claim | None, now: datetime) -> list[StoredTask]:
        if claim is None:
            return []
        if self.refills:
            return self.rows.hand_out(claim, now)
        if again := self.rows.running(claim.worker, claim.claim_id):
            return again
        return self.rows._claim_or_expire(self.rows.due(claim.queues, claim.limit, now), claim, now)

    def lease_over(self, task_id: str) -> None:
        _, claim_id = self.rows._leases[task_id]
        self.rows._leases[task_id] = (REAL_CLOCK.monotonic() - 1, claim_id)

    def all(self) -> dict[str, Row]:
        return {task.id: self._row(task) for task in self.rows.tasks.values()}

    def _row(self, task: StoredTask) -> Row:
        runs = tuple(
            (run.epoch, run.owner, str(run.outcome), None if run.error is None else run.error.kind)
            for run in self.rows.runs(task.id)
        )
        kind = None if task.error is None else task.error.kind
        return Row(
            task.status, task.epoch, task.attempts, task.losses, task.owner, task.cancel_requested, kind,
            task.result, task.result_status, runs,
        )  # fmt: skip


class Walk:
    def __init__(self, store: Store, model: Model, seed: int) -> None:
        self.store, self.model = store, model
        self.random = random.Random(seed)
        self.ids = count()
        self.tasks: list[StoredTask] = []
        self.grants: list[Held] = []
        self.claims: list[Claim] = []
        self.seen: dict[str, int] = {}
        self.paused: set[str] = set()

    async def run(self, steps: int) -> dict[str, int]:
        """Take `steps`, comparing after each; how often each answer and outcome was met."""
        moves = [self.enqueue] * 4 + [self.exchange] * 8 + [self.renew, self.take_back, self.cancel]
        for _ in range(steps):
            await self.random.choice(moves)()
            stored, expected = await self.store.rows(), self.model.all()
            assert stored == expected, [
                (i, stored.get(i), expected.get(i))
                for i in stored | expected
                if stored.get(i) != expected.get(i)
            ]
        for row in expected.values():
            for run in row.runs:
                self._saw(f"run {run[2]}")
            self._saw(row.status)
        return self.seen

    def _saw(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def _moment(self, chances: tuple[float, ...]) -> datetime | None:
        now = datetime.now(UTC)
        picked = self.random.choices([None, timedelta(seconds=-5), timedelta(seconds=FAR_S)], chances)[0]
        return None if picked is None else now + picked

    def _task(self) -> StoredTask:
        if self.tasks and self.random.random() < 0.1:  # an id again, with the same call or with another
            old = self.random.choice(self.tasks)
            payload = self.random.choice([old.payload, b"another"])
            if self.model.rows.tasks[old.id].payload != old.payload:
                payload = b"another"  # it was replaced, and the stores differ on what the id then stands for
            return StoredTask(old.func_path, payload, id=old.id, queue=old.queue, unique_key=old.unique_key)
        return StoredTask(
            "m.f",
            b"\x00\xff%d" % self.random.randrange(9),
            id=f"t{next(self.ids):05}",
            queue=self.random.choice(QUEUES),
            priority=self.random.choice([0, 0, 0, 5, 9]),
            eta=self._moment((0.7, 0.2, 0.1)),
            expires_at=self._moment((0.7, 0.1, 0.2)),
            max_losses=self.random.choice([1, 2]),  # the third loss would pause for a second
            unique_key=self.random.choice([None, None, "k1", "k2", "k3"]),
        )

    async def enqueue(self) -> None:
        batch = [self._task() for _ in range(self.random.randint(1, 5))]
        on_conflict: OnConflict = self.random.choice(["skip", "skip", "raise", "replace"])
        try:
            expected = [(str(e), e.created) for e in self.model.rows.enqueue_many(batch, on_conflict)]
        except (IdConflict, DuplicateTask) as exc:
            self._saw(type(exc).__name__)
            try:
                await self.store.enqueue_many(batch, on_conflict)
            except (IdConflict, DuplicateTask):  # where a batch has both faults, either may be named
                return
            raise AssertionError(f"{exc!r} was expected") from exc
        assert await self.store.enqueue_many(batch, on_conflict) == expected
        self.tasks += [task for task, (_, created) in zip(batch, expected, strict=True) if created]

    def _settlements(self) -> list[Settlement]:
        recent = self.grants[-20:] + self.random.sample(self.grants, min(3, len(self.grants)))
        picked = self.random.sample(recent, min(self.random.randint(0, 5), len(recent)))
        return [self._settlement(held) for held in {held.id: held for held in picked}.values()]

    def _settlement(self, held: Held) -> Settlement:
        action = self.random.choice(list(Action))
        result = b"\x00r" if action in (Action.SUCCEED, Action.REPEAT) else None
        error = ERROR if action in (Action.RETRY, Action.FAIL, Action.CONTINUE) else None
        return Settlement(held, action, result, self.random.choice([0.0, 0.0, 0.0, FAR_S]), error)

    def _wish(self) -> Claim | None:
        roll = self.random.random()
        if roll < 0.2:
            return None
        if roll < 0.35 and self.claims:
            return self.claims[-1]
        queues = self.random.choice([None, ("a",), ("b", "c"), ("c", "nobody"), QUEUES])
        worker = self.random.choice(WORKERS)
        return Claim(worker, queues, limit=self.random.randint(1, 6), lease=FAR_S, claim_id=new_id())

    async def exchange(self) -> None:
        settlements, claim = self._settlements(), self._wish()
        answers, claims = self.model.exchange(settlements, claim)
        got_answers, got = await self.store.exchange(settlements, claim)
        assert got_answers == answers, (settlements, got_answers, answers)
        assert [Got(c.id, c.epoch, payload=c.payload) for c in claims] == got, (claim, claims, got)
        for answer in answers:
            self._saw(answer)
        self.grants += [Held(c.id, c.epoch) for c in claims]
        if claim is not None:
            self.claims.append(claim)

    async def renew(self) -> None:
        worker = self.random.choice(WORKERS)
        renewal = self.model.rows.renew(worker, FAR_S, ())
        held = {h.id: (h.epoch, h.cancel_requested) for h in renewal.held.values()}
        assert await self.store.renew(worker, FAR_S) == held

    async def take_back(self) -> None:
        running = [task.id for task in self.model.rows.tasks.values() if task.status is TaskStatus.RUNNING]
        if self.random.random() < 0.2:
            worker = self.random.choice(WORKERS)
            assert await self.store.release(worker) == self.model.rows.release(worker)
            return
        for task_id in self.random.sample(running, min(2, len(running))):
            self.model.lease_over(task_id)
            await self.store.lease_over(task_id)
        assert await self.store.lapse(1000) == self.model.rows.lapse(1000)

    async def cancel(self) -> None:
        if self.random.random() < 0.3:
            queue = self.random.choice(QUEUES)
            self.paused ^= {queue}
            self.model.rows.set_paused(queue, queue in self.paused)
            await self.store.pause(queue, queue in self.paused)
        elif self.tasks:
            task = self.random.choice(self.tasks[-20:])
            assert await self.store.cancel(task.id) == self.model.rows.cancel(task.id)
