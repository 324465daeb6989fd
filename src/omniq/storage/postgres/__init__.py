"""PostgreSQL: many machines, one queue. Needs `pip install 'omniq-tasks[postgres]'`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock
from omniq.errors import CorruptRecord, InvalidOption, SchemaMismatch, StoreError, StoreUnavailable
from omniq.storage.base import Capabilities, Claimed
from omniq.storage.batched import check_moment, unknown
from omniq.storage.embedded import check_claim
from omniq.storage.onserver import OnServer, refuse_delete, refuse_reschedule, refuse_retry, renewal
from omniq.storage.postgres import records
from omniq.storage.postgres.claiming import Cursor
from omniq.storage.postgres.connections import BORDER, MAX_CONNECTIONS, Address, Connections, close
from omniq.storage.postgres.errors import IN_THE_WAY, code_of, explained, may_not_migrate, missing_schema
from omniq.storage.postgres.joining import is_drivers, is_lost, run_on
from omniq.storage.postgres.looking import PostgresLooking, must_be_possible
from omniq.storage.postgres.moving import PostgresMoving
from omniq.storage.postgres.records import HEAD_COLUMNS, Row, can_be_kept
from omniq.storage.postgres.schedules import PostgresSchedules
from omniq.storage.postgres.schema import (
    MAY_CREATE,
    Statements,
    lock,
    migrations,
    newest,
    preamble,
    quoted,
    script,
    step,
)
from omniq.storage.postgres.transactions import BodyTransaction, Transactions
from omniq.storage.postgres.waking import Listening
from omniq.task import (
    Answer,
    Claim,
    Enqueued,
    Held,
    OnConflict,
    Renewal,
    Settlement,
    StoredTask,
    Task,
    TaskError,
    TaskStatus,
    WorkerInfo,
    check_progress,
    count,
    positive_seconds,
    queue_name,
    replace,
    shown,
)

if TYPE_CHECKING:
    from omniq.storage.postgres.connections import Connection

Durability = Literal["fsync", "relaxed"]
NO_CLAIM: Final[tuple[Any, ...]] = (None, None, None, None, None, False, (), 0)
# What a worker asks all the time, and beside its work.
MOMENTARY: Final = frozenset(
    {
        "exchange",
        "renew",
        "held",
        "anything_over",
        "announce",
        "progress",
        "beat",
        "fold",
        "leave",
        "version",
        "await",
        "unended",
        "get",
    }
)
NO_PLACES: Final[tuple[Sequence[Any], ...]] = ((), (), (), ())
# How long a word that somebody waits for results is good for; it is given again in a third of that.
EAR_S: Final = 30.0
# Rows of tallies that one beat puts together; and one enqueue in a thousand, which nobody should wait for.
FOLD_AT_ONCE: Final = 100_000
FOLD_A_FEW: Final = 5_000
FOLD_CHANCE: Final = 0.001
# An enqueue waits, and keeps its connection, where somebody's open transaction has its key or the limit of
# its queue: claims, renewals and all else have some connections that no enqueue takes.
MAX_ENQUEUES: Final = MAX_CONNECTIONS - 2
# How long a queue's name need not be announced again.
ANNOUNCED_S: Final = 5.0
# Connections of the process that this one was forked from. Kept: the driver ends those that are collected.
_PARENTS: Final[list[object]] = []


class PostgresStorage(PostgresLooking, OnServer, PostgresSchedules, PostgresMoving):
    """Tasks in a schema of a PostgreSQL database, on the server's clock.

    `durability="relaxed"` commits without waiting for the disk: the last moments may be lost when the server
    crashes. The schema is made by `omniq migrate`, or `await storage.migrate()`.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        batched=True, leases=True, wakes=True, joins=True, durable=True, transacts=True
    )

    def __init__(
        self,
        dsn: str,
        *,
        schema: str | None = None,
        durability: Durability = "fsync",
        clock: Clock = REAL_CLOCK,
    ) -> None:
        super().__init__()
        if durability not in ("fsync", "relaxed"):
            raise InvalidOption(f"durability must be 'fsync' or 'relaxed', not {durability!r}")
        self._address = Address(dsn, schema, durability)
        self.durability: Durability = durability
        self.clock = clock  # for waiting only: what is due, and when, the server says
        self._sql = Statements(self._address.schema)
        self._connections: Connections | None = None

    @property
    def schema(self) -> str:
        return self._address.schema

    @property
    def url(self) -> str:
        return self._address.url

    def __repr__(self) -> str:
        return f"PostgresStorage({self._address.shown!r}, schema={self.schema!r})"

    def clone(self) -> PostgresStorage:
        twin = type(self)(self._address.dsn, schema=self.schema, durability=self.durability, clock=self.clock)
        self._give_settings(twin)
        return twin

    # --- life ------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        connections = Connections(self._address)
        self._start_waiting()
        self._listening = Listening(self._address, connections.is_ours)
        self._transactions = Transactions(self._address, self._settle_on)
        self._cursor = Cursor()
        self._looks = self._newest_look = 0
        self._heard_until = 0.0
        self._announced, self._announced_until = set[str](), 0.0
        self._may_enqueue = asyncio.Semaphore(MAX_ENQUEUES)
        self._connections = connections
        try:
            await self._check_version()
        except BaseException:
            self._connections = None
            await connections.close()
            raise

    async def _check_version(self) -> None:
        try:
            [row] = await self._fetch("version")
        except SchemaMismatch:
            raise missing_schema(self._address.shown, self.schema) from None
        version: int | None = row[0]
        if version is None or version < newest():
            raise missing_schema(self._address.shown, self.schema)
        _refuse_newer(version, self._address)

    async def _disconnect(self) -> None:
        self._enqueues.close()
        await self._results.stop()
        await self._listening.stop()
        await self._transactions.close()
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    def _forget_parents(self) -> None:
        super()._forget_parents()
        _PARENTS.append((self._connections, self._listening, self._transactions))
        self._connections = None

    def abandon(self) -> None:
        super().abandon()
        connections, self._connections = self._connections, None
        if connections is not None:
            self._listening.abandon()
            self._transactions.abandon()
            connections.abandon()

    async def migrate(self) -> None:
        """Bring the schema to this version: in one transaction, one caller at a time."""
        conn = await self._address.connect("migrate")
        try:
            # Of one session, also behind a pooler; whoever waited for the lock sees what was done meanwhile.
            async with conn.transaction(isolation="read_committed"):
                await conn.execute(lock(self.schema))
                # Asked first: CREATE SCHEMA IF NOT EXISTS wants the right to create one in any case.
                [row] = await conn.fetch(MAY_CREATE, self.schema)
                is_there: bool = row[0]
                if not row[1]:
                    raise may_not_migrate(self._address.shown, self.schema, is_there=is_there)
                if not is_there:
                    await conn.execute(f"CREATE SCHEMA {quoted(self.schema)}")
                await conn.execute(preamble(self.schema))
                version: int = await conn.fetchval("SELECT coalesce(max(version), 0) FROM migration")
                _refuse_newer(version, self._address)
                for number in migrations():
                    if number > version:
                        await conn.execute(step(number))
        except BORDER as exc:
            raise explained(exc, self._address.shown, self.schema) from exc
        finally:
            await close(conn)

    def migration_sql(self) -> str:
        """The same as text, for those who apply it themselves."""
        return script(self.schema)

    # --- statements ------------------------------------------------------------------------------

    async def _fetch(self, statement: str, *arguments: Any) -> list[Row]:
        assert self._connections is not None
        return await self._connections.fetch(self._sql[statement], *arguments, at_once=statement in MOMENTARY)

    async def _ask(self, statement: str, *arguments: Any) -> list[Row]:
        await self.open()
        return await self._fetch(statement, *arguments)

    async def _tell(self, statement: str, *arguments: Any) -> list[Row]:
        """A write that may make something due or end something. Its own notifications are not listened to."""
        await self.open()
        try:
            return await self._fetch(statement, *arguments)
        finally:  # also when the answer was lost: it may have happened
            self._ring(due=True, result=True)

    # --- writing ---------------------------------------------------------------------------------

    async def enqueue_many(
        self, tasks: Iterable[Task | StoredTask], *, conn: Any = None, on_conflict: OnConflict = "skip"
    ) -> list[Enqueued]:
        if on_conflict not in ("skip", "raise", "replace"):
            raise InvalidOption(f"on_conflict must be 'skip', 'raise' or 'replace', not {on_conflict!r}")
        stored = self.encode_many(tasks)
        await self.open()
        if not stored:
            return []
        if conn is None:
            return await self._enqueues.enqueue(stored, on_conflict)
        await self._announce(stored)
        # Their commit notifies whoever sleeps, our own workers too.
        arguments = records.enqueue_arguments(stored, on_conflict)
        rows = await self._on_their_connection(conn, arguments)
        await self._fold_now_and_then()
        return placed(stored, rows)

    async def _enqueue(self, stored: list[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        await self._announce(stored)
        try:
            async with self._may_enqueue:
                rows = await self._fetch("enqueue", *records.enqueue_arguments(stored, on_conflict))
        finally:
            self._ring(due=True, result=False)
        await self._fold_now_and_then()
        return placed(stored, rows)

    async def _announce(self, tasks: Iterable[StoredTask]) -> None:
        """Ahead of enqueueing: in an application's own transaction it could hold up others, or fail."""
        now = self.clock.monotonic()
        if now >= self._announced_until:
            self._announced, self._announced_until = set[str](), now + ANNOUNCED_S
        queues = {task.queue for task in tasks}
        if not queues <= self._announced:
            await self._fetch("announce", list(queues))
            self._announced |= queues

    async def _fold_now_and_then(self) -> None:
        """Where nothing but enqueueing goes on, nobody else does it."""
        if random.random() < FOLD_CHANCE:
            with suppress(StoreError):  # what was enqueued is there all the same
                await self._fetch("fold", FOLD_A_FEW)

    async def _on_their_connection(self, conn: Any, arguments: tuple[Any, ...]) -> Sequence[Row]:
        try:
            return await run_on(conn, self._sql["enqueue"], arguments)
        except Exception as exc:
            said = getattr(exc, "orig", None) or exc  # SQLAlchemy wraps the driver's exception
            if not is_drivers(said):
                raise
            if not code_of(said) and is_lost(said):
                raise StoreUnavailable("conn: the connection was lost") from exc
            if not code_of(said):
                raise InvalidOption(f"conn cannot be used here: {said}") from exc
            if code_of(said) in IN_THE_WAY:
                raise StoreUnavailable(
                    f"conn: another transaction was in the way of this one; repeat it as a whole ({said})"
                ) from exc
            raise explained(said, "conn", self.schema) from exc

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        if claim is not None:
            check_claim(claim)
        await self.open()
        first = _first_of_each(settlements)
        if len(first) < len(settlements):  # the same run twice in one call: one after the other
            repeated = [one for index, one in enumerate(settlements) if index not in first]
            told, _ = await self._exchange([settlements[index] for index in first], None)
            rest, claims = await self.exchange(repeated, claim)
            answers = dict(zip(first, told, strict=True))
            left = iter(rest)
            return [answers[i] if i in answers else next(left) for i in range(len(settlements))], claims
        return await self._exchange(settlements, claim)

    async def _exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None
    ) -> tuple[list[Answer], list[Claimed]]:
        # The order of ids is the order of locks: two settles that overlap cannot wait for each other.
        turn = sorted(range(len(settlements)), key=lambda index: settlements[index].task.id)
        said = records.settle_arguments([settlements[index] for index in turn])
        if claim is not None:
            # The ear is there before the look, or what comes up in between would ring nobody.
            await self._listen_for_due()
            self._due.clear()
        self._looks = look = self._looks + 1
        now = time.monotonic()
        places = NO_PLACES if claim is None else self._cursor.arguments(now)
        wish = NO_CLAIM if claim is None else _wish(claim)
        try:
            [*rows, whole] = await self._fetch(
                "exchange", *said, self.result_ttl_s, self.failed_ttl_s, *wish, *places
            )
        except BaseException:
            if claim is not None:
                self._cursor.give_up(time.monotonic())
            self._ring(due=True, result=True)
            raise
        missed, rang_due, rang_result, due_in_s, walk_us = whole[:HEAD_COLUMNS]
        rows.sort(key=records.claim_order)
        answers = _answers(missed, turn)
        self._ring(due=rang_due, result=rang_result)
        if claim is None:
            return answers, []
        from_start, walk_s = not places[0], (walk_us or 0) / 1e6
        self._cursor.note(walk_s, len(rows), time.monotonic(), from_start)
        self._cursor.advance([row[HEAD_COLUMNS:] for row in rows], from_start)
        if look > self._newest_look:  # of two under way, the one that began later knows what the other does
            self._newest_look = look
            self._plan_next_look(due_in_s, may_be_before=not from_start and len(rows) < claim.limit)
        claims = await self._readable(rows, claim)
        self._claims.note(claims)
        return answers, list(claims)

    def _plan_next_look(self, due_in_s: float | None, *, may_be_before: bool) -> None:
        if may_be_before:  # the cursor: look from the start as soon as that is its turn
            again_s = max(0.0, self._cursor.from_start_at - time.monotonic())
            due_in_s = again_s if due_in_s is None else min(again_s, due_in_s)
        late_s = 0.0 if due_in_s == 0 else self.late_s
        self._look_again_at = None if due_in_s is None else self.clock.monotonic() + due_in_s + late_s

    async def _readable(self, rows: list[Row], claim: Claim) -> list[StoredTask]:
        """A record that cannot be read must not stand in everybody's way: it fails, its bytes stay."""
        claims: list[StoredTask] = []
        bad: list[Settlement] = []
        for row in rows:
            columns = row[HEAD_COLUMNS:]
            try:
                claims.append(records.read_claimed(columns, claim))
            except CorruptRecord as corrupt:
                logger.error("failed: {}", corrupt)
                error = TaskError("CorruptRecord", str(corrupt), "", "undecodable")
                bad.append(Settlement.failed(Held(columns[1], columns[17]), error))
        if bad:
            await self._exchange(bad, None)
        return claims

    async def begin(self) -> BodyTransaction:
        await self.open()
        return await self._transactions.begin()

    async def _settle_on(self, conn: Connection, settlement: Settlement) -> Answer:
        said = records.settle_arguments([settlement])
        [row] = await conn.fetch(self._sql["settle_last"], *said, self.result_ttl_s, self.failed_ttl_s)
        return _answers(row[0], [0])[0]

    async def renew(self, worker: str, lease: float, holding: Iterable[Held] = ()) -> Renewal:
        positive_seconds(lease, "lease")
        known = tuple(holding)
        held = {row[0]: Held(*row) for row in await self._ask("renew", worker, lease)}
        return renewal(held, known)

    async def release(self, worker: str) -> int:
        [(many, _, _)] = await self._tell("release", worker, self.failed_ttl_s)
        return int(many)

    async def lapse(self, limit: int = 100) -> int:
        """A look first: this is asked often, and there is seldom anything."""
        count(limit, "limit", least=1)
        [(anything,)] = await self._ask("anything_over")
        if not anything:
            return 0
        [(many, _, _)] = await self._tell("lapse", limit, self.failed_ttl_s)
        return int(many)

    async def progress(self, task_id: str, epoch: int, done: float, total: float | None = None) -> bool:
        check_progress(done, total)
        if not can_be_kept(task_id):
            return False
        return bool(await self._ask("progress", task_id, epoch, records.json_text((done, total))))

    async def cancel(self, task_id: str) -> TaskStatus:
        must_be_possible(task_id)
        [(status,)] = await self._tell("cancel", task_id, self.failed_ttl_s)
        return _status_or_unknown(task_id, status)

    async def retry(self, task_id: str) -> None:
        must_be_possible(task_id)
        [(number, key, holder)] = await self._tell("retry", task_id)
        refuse_retry(task_id, _status_or_unknown(task_id, number), key, holder)

    async def reschedule(self, task_id: str, eta: datetime, *, epoch: int | None = None) -> None:
        moment = check_moment(eta)
        must_be_possible(task_id)
        [(number, current)] = await self._tell("reschedule", task_id, moment, epoch)
        refuse_reschedule(task_id, _status_or_unknown(task_id, number), epoch, current)

    async def delete(self, task_id: str) -> None:
        must_be_possible(task_id)
        [(number,)] = await self._tell("delete", task_id)
        refuse_delete(task_id, _status_or_unknown(task_id, number))

    async def prune(self, limit: int = 1000) -> int:
        count(limit, "limit", least=1)
        [(many,)] = await self._tell("prune", limit)
        return int(many)

    async def pause(self, queue: str) -> None:
        await self._ask("pause", queue_name(queue))

    async def resume(self, queue: str) -> None:
        await self._tell("resume", queue_name(queue), self._sql.due_channel)

    async def beat(self, worker: WorkerInfo) -> None:
        await self._ask("beat", worker.id, records.json_text(worker))
        with suppress(StoreError):  # the worker was heard of all the same
            await self._ask("fold", FOLD_AT_ONCE)

    async def leave(self, worker: str) -> None:
        await self._ask("leave", worker)

    # --- looking ---------------------------------------------------------------------------------

    async def vitals(self) -> records.Vitals:
        """How the server is: its version, what keeps it from cleaning up, what this role may not do."""
        [row] = await self._ask("vitals")
        await self._listening.listen(self._sql.due_channel, self._due)
        return replace(records.Vitals(*row), pooled=self._address.pooled, wakes=self._listening.hears)

    # --- waiting ---------------------------------------------------------------------------------

    async def _listen_for_due(self) -> None:
        await self._listening.listen(self._sql.due_channel, self._due)

    async def _look_for_ends(self, ids: list[str]) -> set[str]:
        await self._listening.listen(self._sql.result_channel, self._ended)
        if time.monotonic() >= self._heard_until:
            await self._fetch("await", EAR_S)
            self._heard_until = time.monotonic() + EAR_S / 3
        unended = await self._fetch("unended", ids)
        return set(ids) - {row[0] for row in unended}


def _refuse_newer(version: int, address: Address) -> None:
    if version > newest():
        raise SchemaMismatch(
            f"schema {shown(address.schema)} of {address.shown} has version {version}, this OmniQ knows "
            f"{newest()}; upgrade OmniQ here"
        )


def _wish(claim: Claim) -> tuple[Any, ...]:
    return (
        claim.worker,
        None if claim.queues is None else list(claim.queues),
        claim.limit,
        claim.lease,
        claim.claim_id,
        claim.isolates,
        list(claim.scarce),
        max(0, claim.scarce_limit),
    )


def _first_of_each(settlements: Sequence[Settlement]) -> list[int]:
    """Where each run is settled first."""
    seen: dict[tuple[str, int], int] = {}
    for index, one in enumerate(settlements):
        seen.setdefault((one.task.id, one.task.epoch), index)
    return list(seen.values())


def _answers(missed: str | None, turn: list[int]) -> list[Answer]:
    answers = [Answer.HELD] * len(turn)
    if missed is not None:
        for number, answer in records.read_missed.decode(missed).items():
            answers[turn[int(number) - 1]] = Answer(answer)
    return answers


def placed(stored: Sequence[StoredTask], rows: Sequence[Row]) -> list[Enqueued]:
    """No row says that everything was new."""
    if not rows:
        return [Enqueued(task.id, created=True) for task in stored]
    return [Enqueued(row[1], created=row[2]) for row in rows]


def _status_or_unknown(task_id: str, number: int | None) -> TaskStatus:
    if number is None:
        raise unknown(task_id)
    return records.STATUSES[number]
