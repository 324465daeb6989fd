"""Redis and Valkey: one queue for many machines. Needs `pip install 'omniq-tasks[redis]'`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock
from omniq.errors import (
    CorruptRecord,
    DuplicateTask,
    IdConflict,
    InvalidOption,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from omniq.loopthread import forbid_running_loop, outcome
from omniq.storage.base import Capabilities, Claimed
from omniq.storage.batched import check_moment, unknown
from omniq.storage.embedded import check_claim
from omniq.storage.onserver import OnServer, refuse_delete, refuse_reschedule, refuse_retry, renewal
from omniq.storage.redis import records
from omniq.storage.redis.address import Address
from omniq.storage.redis.blocking import Blocking, WaitsForDisk
from omniq.storage.redis.connections import Server
from omniq.storage.redis.durability import Durability
from omniq.storage.redis.looking import RedisLooking
from omniq.storage.redis.moving import RedisMoving
from omniq.storage.redis.records import name_bytes
from omniq.storage.redis.schedules import RedisSchedules
from omniq.storage.redis.scripts import Scripts
from omniq.storage.redis.waking import Listening
from omniq.storage.redis.wire import Argument
from omniq.storage.rows import queue_full
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
    shown,
)

VERSION: Final = 2
# How long a word that somebody waits for results is good for; it is given again with every look.
EAR_MS: Final = 30_000
_NONE, _UNREADABLE = -1, -2
# In front of the tasks, `exchange` answers what it says of the call as a whole.
_HEAD: Final = 5
_ALL_NEW, _MIXED, _ID_CONFLICT, _FULL = 0, 1, 2, 4


class RedisStorage(OnServer, RedisLooking, RedisSchedules, RedisMoving):
    """Tasks in a namespace of a Redis or Valkey server, on the server's clock.

    The default durability wants an append-only file and waits for it; `durability="relaxed"` takes what the
    server gives, and says what may be lost.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        batched=True, leases=True, wakes=True, durable=True, here=True, lanes=2
    )

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        durability: Durability = "fsync",
        clock: Clock = REAL_CLOCK,
    ) -> None:
        super().__init__()
        if durability not in ("fsync", "relaxed"):
            raise InvalidOption(f"durability must be 'fsync' or 'relaxed', not {durability!r}")
        self._address = Address(url, namespace)
        self.durability: Durability = durability
        self.clock = clock  # for waiting only: what is due, and when, the server says
        self._server: Server | None = None
        self._blocking: Blocking | None = None

    @property
    def namespace(self) -> str:
        return self._address.namespace

    @property
    def url(self) -> str:
        return self._address.url

    def __repr__(self) -> str:
        return f"RedisStorage({self._address.shown!r}, namespace={self.namespace!r})"

    def clone(self) -> RedisStorage:
        twin = type(self)(
            self._address.base, namespace=self.namespace, durability=self.durability, clock=self.clock
        )
        self._give_settings(twin)
        return twin

    # --- life ------------------------------------------------------------------------------------

    def _forget_parents(self) -> None:
        super()._forget_parents()
        if self._blocking is not None:
            self._blocking.abandon()
        self._server = self._blocking = None

    async def _connect(self) -> None:
        server = self._make_server(self._address)
        self._token = os.urandom(8).hex().encode()
        self._start_waiting()
        self._listening = Listening(self._address, self._token)
        self._server = server
        self._blocking = Blocking(self._address, self.durability)
        try:
            await self._check_version()
        except BaseException:
            self._server = None
            await server.close()
            raise

    def _make_server(self, address: Address) -> Server:
        return Server(address, self.durability, Scripts())

    async def _check_version(self) -> None:
        assert self._server is not None
        key = self._address.prefix + b"version"
        found = await self._server.command("GET", key)
        if found is None:
            await self._server.command("SET", key, VERSION, "NX")
        elif found != str(VERSION).encode():
            older = found.isdigit() and int(found) < VERSION
            raise SchemaMismatch(
                f"namespace {shown(self.namespace)} of {self._address.shown} has version "
                f"{found.decode(errors='replace')}, this OmniQ knows {VERSION}; "
                + ("empty it, or take another one" if older else "upgrade OmniQ here")
            )
        await self._try_to_ring(self._server)

    async def _try_to_ring(self, server: Server) -> None:
        """The scripts do not say that a user may not: what they do is done without it."""
        try:
            await server.command("PUBLISH", self._key(b"trial"), "")
        except StoreError as refused:
            if isinstance(refused, StoreUnavailable):
                raise
            logger.warning("nobody is woken by what is done here, tasks wait for the poll: {}", refused)

    async def _disconnect(self) -> None:
        self._enqueues.close()
        await self._results.stop()
        await self._listening.stop()
        server, self._server = self._server, None
        if self._blocking is not None:
            self._blocking.close()
        if server is not None:
            await server.close()

    def abandon(self) -> None:
        super().abandon()
        server, self._server = self._server, None
        if self._blocking is not None:
            self._blocking.abandon()
        if server is not None:
            self._listening.abandon()
            server.abandon()

    async def migrate(self) -> None:
        """There is nothing to make: keys come with the first task. Only the version is checked."""
        await self.open()

    # --- scripts ---------------------------------------------------------------------------------

    async def _ask(self, script: str, *arguments: Argument) -> Any:
        await self.open()
        assert self._server is not None
        return await self._server.read(script, *arguments)

    async def _command(self, *command: Argument) -> Any:
        await self.open()
        assert self._server is not None
        return await self._server.command(*command)

    async def _write(self, script: str, *arguments: Argument) -> Any:
        await self.open()
        assert self._server is not None
        return await self._server.write(script, *arguments)

    async def _tell(self, script: str, *arguments: Argument) -> Any:
        """A write that may make something due or end something. What we say ourselves we do not listen to."""
        await self.open()
        try:
            return await self._write(script, self._token, *arguments)
        finally:  # also when the answer was lost: it may have happened
            self._ring(due=True, result=True)

    @property
    def _success_us(self) -> int:
        return int(self.result_ttl_s * 1e6)

    @property
    def _failure_us(self) -> int:
        return int(self.failed_ttl_s * 1e6)

    # --- writing ---------------------------------------------------------------------------------

    async def enqueue_many(
        self, tasks: Iterable[Task | StoredTask], *, conn: Any = None, on_conflict: OnConflict = "skip"
    ) -> list[Enqueued]:
        _check_on_conflict(on_conflict)
        stored = self.encode_many(tasks)
        if conn is not None:
            raise self._lacks("enqueue(conn=...)")
        await self.open()
        return await self._enqueues.enqueue(stored, on_conflict) if stored else []

    async def _enqueue(self, stored: list[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        one = records.enqueue_one_arguments(stored)
        try:
            reply = None if one is None else await self._write("enqueue_one", self._token, *one)
            if reply is None:
                arguments = records.enqueue_arguments(stored)
                reply = await self._write("enqueue", self._token, on_conflict, *arguments)
        finally:
            self._ring(due=True, result=False)
        return _placed(stored, reply)

    def enqueue_here(
        self, tasks: Iterable[Task | StoredTask], *, on_conflict: OnConflict = "skip"
    ) -> list[Enqueued]:
        _check_on_conflict(on_conflict)
        self._refuse_if_parents()
        server, blocking, loop = self._server, self._blocking, self._loop
        if server is None or blocking is None or loop is None:
            raise StoreUnavailable("the storage is closed; repeat the call")
        stored = self.encode_many(tasks)
        if not stored:
            return []
        if not server.waits:
            with contextlib.suppress(WaitsForDisk):  # another server than the loop knows so far
                return self._enqueue_blocking(server, blocking, stored, on_conflict)
        return self._enqueue_on_loop(server, loop, stored, on_conflict)

    def _enqueue_blocking(
        self, server: Server, blocking: Blocking, stored: list[StoredTask], on_conflict: OnConflict
    ) -> list[Enqueued]:
        """Not with our token: whoever sleeps in this process is told like everybody else, by the server."""
        one = records.enqueue_one_arguments(stored)
        reply = None if one is None else blocking.write(server.script("enqueue_one"), b"", *one)
        if reply is None:
            arguments = records.enqueue_arguments(stored)
            reply = blocking.write(server.script("enqueue"), b"", on_conflict, *arguments)
        return _placed(stored, reply)

    def _enqueue_on_loop(
        self,
        server: Server,
        loop: asyncio.AbstractEventLoop,
        stored: list[StoredTask],
        on_conflict: OnConflict,
    ) -> list[Enqueued]:
        async def enqueue() -> list[Enqueued]:
            server.wait_from_now_on()
            return await self.enqueue_many(stored, on_conflict=on_conflict)

        forbid_running_loop("write `await storage.enqueue_many(...)` here")
        work = enqueue()
        try:
            return outcome(asyncio.run_coroutine_threadsafe(work, loop))
        except (RuntimeError, concurrent.futures.CancelledError) as exc:
            work.close()
            raise StoreUnavailable("the storage was closed; repeat the call") from exc

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        if claim is not None:
            check_claim(claim)
        await self.open()
        if claim is not None:
            # The ear is there before the look, or what comes up in between would ring nobody.
            await self._listen_for_due()
            self._due.clear()
        said = records.settle_arguments(settlements)
        wish = () if claim is None else claim_arguments(claim)
        head = (self._token, self._success_us, self._failure_us, len(settlements))
        try:
            reply = await self._write("exchange", *head, *said, *wish)
        except BaseException:
            self._ring(due=True, result=True)
            raise
        answers: list[int]
        answers, rang_due, rang_result, due_in_us, broken = reply[:_HEAD]
        self._ring(due=bool(rang_due), result=bool(rang_result))
        _report(broken)
        told = [records.ANSWERS[answer] for answer in answers]
        if claim is None:
            return told, []
        self._plan_next_look(due_in_us)
        claims = await self._readable(reply[_HEAD:])
        self._claims.note(claims)
        return told, list(claims)

    def _plan_next_look(self, due_in_us: int) -> None:
        if due_in_us < 0:
            self._look_again_at = None
            return
        late_s = self.late_s if due_in_us else 0.0
        self._look_again_at = self.clock.monotonic() + due_in_us / 1e6 + late_s

    async def _readable(self, parts: list[bytes]) -> list[StoredTask]:
        """A body that cannot be read must not stand in everybody's way: its task fails, its bytes stay."""
        claims: list[StoredTask] = []
        bad: list[Settlement] = []
        for task_id, state, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            try:
                claims.append(records.read_task(task_id, state, body))
            except CorruptRecord as corrupt:
                logger.error("failed: {}", corrupt)
                error = TaskError("CorruptRecord", str(corrupt), "", "undecodable")
                bad.append(Settlement.failed(Held(task_id.decode(), records.epoch_of(state)), error))
        if bad:
            await self.exchange(bad)
        return claims

    async def renew(self, worker: str, lease: float, holding: Iterable[Held] = ()) -> Renewal:
        positive_seconds(lease, "lease")
        known = tuple(holding)
        held = {one.id: one for one in _held(await self._write("renew", name_bytes(worker), _us(lease)))}
        return renewal(held, known)

    async def held(self, worker: str) -> list[Held]:
        return _held(await self._ask("renew", name_bytes(worker), ""))

    async def release(self, worker: str) -> int:
        return int(await self._tell("release", self._failure_us, name_bytes(worker)))

    async def lapse(self, limit: int = 100) -> int:
        """A look first: this is asked often, and there is seldom anything."""
        count(limit, "limit", least=1)
        if not await self._ask("over"):
            return 0
        ended, broken = await self._tell("lapse", self._failure_us, limit)
        _report(broken)
        return int(ended)

    async def progress(self, task_id: str, epoch: int, done: float, total: float | None = None) -> bool:
        check_progress(done, total)
        return bool(
            await self._write("progress", name_bytes(task_id), epoch, records.json_bytes((done, total)))
        )

    async def cancel(self, task_id: str) -> TaskStatus:
        return _status(task_id, await self._tell("cancel", self._failure_us, name_bytes(task_id)))

    async def retry(self, task_id: str) -> None:
        number, key, holder = await self._tell("retry", name_bytes(task_id))
        refuse_retry(task_id, _status(task_id, number), key.decode(), holder.decode())

    async def reschedule(self, task_id: str, eta: datetime, *, epoch: int | None = None) -> None:
        moment = records.raw_moment(check_moment(eta))
        number, current = await self._tell(
            "reschedule", name_bytes(task_id), moment, "" if epoch is None else epoch
        )
        refuse_reschedule(task_id, _status(task_id, number), epoch, current)

    async def delete(self, task_id: str) -> None:
        refuse_delete(task_id, _status(task_id, await self._tell("delete", name_bytes(task_id))))

    async def prune(self, limit: int = 1000) -> int:
        count(limit, "limit", least=1)
        return int(await self._tell("prune", limit))

    async def pause(self, queue: str) -> None:
        await self._tell("pause", queue_name(queue), 1)

    async def resume(self, queue: str) -> None:
        await self._tell("pause", queue_name(queue), 0)

    async def beat(self, worker: WorkerInfo) -> None:
        await self._write("beat", name_bytes(worker.id), records.json_bytes(worker))

    async def leave(self, worker: str) -> None:
        await self._write("beat", name_bytes(worker), "")

    # --- looking ---------------------------------------------------------------------------------

    async def _get(self, task_id: str) -> StoredTask | None:
        name = name_bytes(task_id)
        state, body = await self._ask("get", name)
        return None if state is None and body is None else records.read_task(name, state, body)

    async def paused(self) -> set[str]:
        return {name.decode() for name in await self._command("SMEMBERS", self._key(b"paused"))}

    async def workers(self) -> list[WorkerInfo]:
        return list(records.read_workers(await self._ask("workers")))

    def _key(self, name: bytes) -> bytes:
        return self._address.prefix + name

    # --- waiting ---------------------------------------------------------------------------------

    async def _listen_for_due(self) -> None:
        await self._listening.listen("due", self._due)

    async def _look_for_ends(self, ids: list[str]) -> set[str]:
        await self._listening.listen("result", self._ended)
        waiting = await self._ask("unended", EAR_MS, *map(name_bytes, ids))
        return set(ids) - {task_id.decode(errors="replace") for task_id in waiting}


def _check_on_conflict(word: str) -> None:
    if word not in ("skip", "raise", "replace"):
        raise InvalidOption(f"on_conflict must be 'skip', 'raise' or 'replace', not {word!r}")


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


def claim_arguments(claim: Claim) -> tuple[Argument, ...]:
    scarce = claim.scarce
    queues: tuple[Argument, ...] = (-1,) if claim.queues is None else (len(claim.queues), *claim.queues)
    said: tuple[Argument, ...] = (
        *(
            name_bytes(claim.worker),
            name_bytes(claim.claim_id),
            claim.limit,
            _us(claim.lease),
            int(claim.isolates),
        ),
        *(max(0, claim.scarce_limit), len(scarce), *scarce, *queues),
    )
    return said


def _placed(stored: Sequence[StoredTask], reply: list[Any]) -> list[Enqueued]:
    code, *rest = reply
    if code == _ALL_NEW:
        return [Enqueued(task.id, created=True) for task in stored]
    if code == _MIXED:
        return [
            Enqueued(task_id.decode(), created=bool(created))
            for task_id, created in zip(rest[::2], rest[1::2], strict=True)
        ]
    task_id = rest[0].decode()
    if code == _ID_CONFLICT:
        raise IdConflict(f"id {task_id!r} already belongs to another call; leave id out to get a fresh one")
    if code == _FULL:
        raise queue_full(task_id, rest[1])
    raise DuplicateTask(f"unique key {shown(rest[1].decode())} is held by task {task_id}", task_id)


def _held(lines: list[list[Any]]) -> list[Held]:
    return [Held(task_id.decode(), epoch, bool(cancel), seq) for task_id, epoch, cancel, seq in lines]


def _status(task_id: str, number: int) -> TaskStatus:
    if number == _NONE:
        raise unknown(task_id)
    if number == _UNREADABLE:
        raise CorruptRecord(f"the record of task {task_id!a} makes no sense; `omniq doctor` shows more")
    return records.STATUSES[number]


def _report(broken: Sequence[bytes]) -> None:
    for task_id in broken:
        logger.error("passed over: task {!a} stood in an index but has no record that fits",
                     task_id.decode(errors="replace"))  # fmt: skip
