"""The two spikes behind one small face, so that one script can drive them and the model with the same calls.

Only what the questions of the spike need: no pools, no wake-ups, no reconnects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec
import redis.asyncio as redis

from omniq.errors import DuplicateTask, IdConflict
from omniq.storage.rows import digest
from omniq.task import Action, Answer, Claim, Held, OnConflict, Settlement, StoredTask, TaskStatus

HERE = Path(__file__).parent
ACTIONS = list(Action)
STATUSES = list(TaskStatus)
NO_CLAIM = Claim("", (), limit=0, claim_id="")


class Got(Held, frozen=True):
    """A claimed task, as far as the spike looks at it."""

    payload: bytes = b""


class Row(NamedTuple):
    """What a task came to, in the words that all three stores share."""

    status: str
    epoch: int
    attempts: int
    losses: int
    owner: str | None
    cancel_requested: bool
    error_kind: str | None
    result: bytes | None
    result_status: str | None
    runs: tuple[tuple[int, str | None, str, str | None], ...]


def error_text(settlement: Settlement) -> str | None:
    return None if settlement.error is None else msgspec.json.encode(settlement.error).decode()


def kind_of(text: str | None) -> str | None:
    return json.loads(text)["kind"] if text else None


# --- PostgreSQL ----------------------------------------------------------------------------------


def statements(text: str) -> dict[str, str]:
    """Cut the file at its names and put the parts into the statements."""
    pieces = re.split(r"^-- name: (.+)$", text, flags=re.MULTILINE)[1:]
    parts = {name.strip(): sql.strip() for name, sql in zip(pieces[::2], pieces[1::2], strict=True)}
    return {name: re.sub(r"\{(\w+)\}", lambda m: parts[m[1]], sql) for name, sql in parts.items()}


class PostgresSpike:
    """`stepwise` takes the function with its statements, otherwise everything is one statement."""

    sql = statements((HERE / "postgres.sql").read_text())
    switches = ("seqscan", "hashjoin", "mergejoin", "bitmapscan")

    def __init__(self, conn: asyncpg.Connection, *, stepwise: bool) -> None:
        self.conn = conn
        self.stepwise = stepwise
        self.raced = 0  # settlements that had to be asked again

    @classmethod
    async def connect(cls, folder: str, *, stepwise: bool) -> PostgresSpike:
        conn = await asyncpg.connect(host=folder, user="spike", database="postgres")
        if not stepwise:
            await conn.execute(
                "; ".join(f"SET enable_{name} = off" for name in cls.switches) + "; SET jit = off"
            )
        return cls(conn, stepwise=stepwise)

    async def create(self) -> None:
        await self.conn.execute("SET client_min_messages = warning; DROP SCHEMA IF EXISTS omniq CASCADE")
        for name in ("schema", "enqueue function", "exchange function"):
            await self.conn.execute(self.sql[name])

    async def enqueue_many(
        self, tasks: Sequence[StoredTask], on_conflict: OnConflict = "skip"
    ) -> list[tuple[str, bool]]:
        columns = zip(
            *(
                (
                    t.id,
                    digest(t),
                    t.payload,
                    t.queue,
                    -t.priority,
                    t.eta,
                    t.expires_at,
                    t.max_losses,
                    t.unique_key,
                )
                for t in tasks
            ),
            strict=True,
        )
        try:
            rows = await self.conn.fetch(
                "SELECT id, created FROM omniq.enqueue_many($1,$2,$3,$4,$5,$6,$7,$8,$9,$10) ORDER BY n",
                *map(list, columns),
                on_conflict,
            )
        except asyncpg.PostgresError as exc:
            if exc.sqlstate == "OQ001":
                raise IdConflict(exc.message) from exc
            if exc.sqlstate == "OQ002":
                raise DuplicateTask("held", exc.message) from exc
            raise
        return [tuple(row) for row in rows]

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Got]]:
        # Sorted by id: two settles that overlap then lock in the same order.
        turn = sorted(range(len(settlements)), key=lambda i: settlements[i].task.id)
        said = [settlements[i] for i in turn]
        wish = claim or NO_CLAIM
        arguments = (
            [s.task.id for s in said],
            [s.task.epoch for s in said],
            [ACTIONS.index(s.action) for s in said],
            [s.result for s in said],
            [s.delay_s for s in said],
            [error_text(s) for s in said],
            wish.worker,
            wish.queues,
            wish.limit,
            wish.lease,
            wish.claim_id,
        )
        call = "SELECT * FROM omniq.exchange($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11)"
        rows = await self.conn.fetch(call if self.stepwise else self.sql["exchange"], *arguments)
        missed = json.loads(rows[0]["missed"] or "{}")
        answers = [Answer.HELD] * len(settlements)
        for n, answer in missed.items():
            index = turn[int(n) - 1]
            answers[index] = Answer(answer) if answer != "raced" else await self._again(settlements[index])
        return answers, [Got(r["id"], r["epoch"], payload=r["payload"]) for r in rows if r["id"] is not None]

    async def _again(self, settlement: Settlement) -> Answer:
        self.raced += 1
        [answer], _ = await self.exchange([settlement])
        return answer

    async def renew(self, worker: str, lease: float, verb: str = "renew") -> dict[str, tuple[int, bool]]:
        rows = await self.conn.fetch(self.sql[verb], worker, lease)
        return {r["id"]: (r["epoch"], r["cancel_requested"]) for r in rows}

    async def release(self, worker: str) -> int:
        return int(await self.conn.fetchval(self.sql["release"], worker))

    async def lapse(self, limit: int) -> int:
        return int(await self.conn.fetchval(self.sql["lapse"], limit))

    async def cancel(self, task_id: str) -> TaskStatus:
        return STATUSES[int(await self.conn.fetchval(self.sql["cancel"], task_id))]

    async def pause(self, queue: str, paused: bool) -> None:
        sql = (
            "INSERT INTO omniq.paused VALUES ($1)" if paused else "DELETE FROM omniq.paused WHERE queue = $1"
        )
        await self.conn.execute(sql, queue)

    async def rows(self) -> dict[str, Row]:
        runs: dict[str, list[Any]] = {}
        for r in await self.conn.fetch("SELECT * FROM omniq.run ORDER BY task, epoch"):
            runs.setdefault(r["task"], []).append((r["epoch"], r["owner"], r["outcome"], kind_of(r["error"])))
        found = {}
        for r in await self.conn.fetch("SELECT * FROM omniq.task"):
            result_status = None if r["result_status"] is None else STATUSES[r["result_status"]]
            found[r["id"]] = Row(
                STATUSES[r["status"]], r["epoch"], r["attempts"], r["losses"], r["owner"],
                r["cancel_requested"], kind_of(r["error"]), r["result"], result_status,
                tuple(runs.get(r["id"], ())),
            )  # fmt: skip
        return found

    async def lease_over(self, task_id: str) -> None:
        await self.conn.execute(
            "UPDATE omniq.task SET lease_until = now() WHERE id = $1 AND status = 1", task_id
        )


# --- Redis ---------------------------------------------------------------------------------------

REQUEST = msgspec.msgpack.Encoder()
FIRST_BLOB = 3  # ARGV of the first one
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    gap = moment - EPOCH
    return (gap.days * 86400 + gap.seconds) * 1_000_000 + gap.microseconds


class RedisSpike:
    namespace = "{omniq}"

    def __init__(self, client: redis.Redis, sha: str) -> None:
        self.client = client
        self.sha = sha
        self.raced = 0

    @classmethod
    async def connect(cls, socket: str) -> RedisSpike:
        client = redis.Redis(unix_socket_path=socket, protocol=2)
        return cls(client, await client.script_load((HERE / "redis.lua").read_text()))

    async def create(self) -> None:
        await self.client.flushdb()

    async def _call(self, verb: str, *blobs: bytes, **request: Any) -> Any:
        return await self.client.evalsha(self.sha, 1, self.namespace, verb, REQUEST.encode(request), *blobs)

    async def enqueue_many(
        self, tasks: Sequence[StoredTask], on_conflict: OnConflict = "skip"
    ) -> list[tuple[str, bool]]:
        records = [
            {
                "id": t.id, "body": number, "queue": t.queue, "priority": t.priority, "key": t.unique_key,
                "eta_us": micros(t.eta), "expires_us": micros(t.expires_at), "max_losses": t.max_losses,
            }
            for number, t in enumerate(tasks, FIRST_BLOB)
        ]  # fmt: skip
        # None would be a hole in a Lua table; what is not there is simply nil.
        stripped = [{name: value for name, value in one.items() if value is not None} for one in records]
        blobs = [digest(t) + t.payload for t in tasks]
        kind, answer = await self._call("enqueue", *blobs, tasks=stripped, on_conflict=on_conflict)
        if kind == b"IdConflict":
            raise IdConflict(answer.decode())
        if kind == b"DuplicateTask":
            raise DuplicateTask("held", answer.decode())
        return [(task_id.decode(), bool(created)) for task_id, created in answer]

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Got]]:
        said = [
            {
                "id": s.task.id, "epoch": s.task.epoch, "action": ACTIONS.index(s.action),
                "delay_s": s.delay_s, "result": number, "error": error_text(s) or "",
            }
            for number, s in enumerate(settlements, FIRST_BLOB)
        ]  # fmt: skip
        request: dict[str, Any] = {"settlements": said}
        if claim is not None:
            wish = msgspec.structs.asdict(claim)
            request["claim"] = {name: value for name, value in wish.items() if value is not None}
        answers, claims = await self._call("exchange", *(s.result or b"" for s in settlements), **request)
        return [Answer(a.decode()) for a in answers], [
            Got(c[0].decode(), c[1], payload=c[4][16:]) for c in claims
        ]

    async def renew(self, worker: str, lease: float) -> dict[str, tuple[int, bool]]:
        held = await self._call("renew", worker=worker, lease=lease)
        return {task_id.decode(): (epoch, bool(cancel)) for task_id, epoch, cancel in held}

    async def release(self, worker: str) -> int:
        return int(await self._call("release", worker=worker))

    async def lapse(self, limit: int) -> int:
        return int(await self._call("lapse", limit=limit))

    async def cancel(self, task_id: str) -> TaskStatus:
        return STATUSES[int(await self._call("cancel", id=task_id))]

    async def pause(self, queue: str, paused: bool) -> None:
        verb = self.client.sadd if paused else self.client.srem
        await verb(f"{self.namespace}:paused", queue)

    async def rows(self) -> dict[str, Row]:
        key = self.namespace + ":"
        states = await self.client.hgetall(key + "state")
        ends, errors = await self.client.hgetall(key + "ended"), await self.client.hgetall(key + "error")
        found = {}
        for task_id, state in states.items():
            lines = await self.client.lrange(key + "runs:" + task_id.decode(), 0, -1)
            runs = [(r[0], r[1] or None, r[4], kind_of(r[5])) for r in map(json.loads, reversed(lines))]
            status, cancel = state[0], state[1]
            epoch, attempts, losses = (int.from_bytes(state[i : i + 4]) for i in (3, 7, 11))
            _queue, owner, _claim_id, _key = _strings(state[59:])
            end = ends.get(task_id)
            ok = end is not None and end[0] == STATUSES.index(TaskStatus.SUCCESS)
            found[task_id.decode()] = Row(
                STATUSES[status], epoch, attempts, losses, owner or None, bool(cancel),
                kind_of((errors.get(task_id) or b"").decode() or None), end[9:] if ok else None,
                None if end is None else STATUSES[end[0]], tuple(runs),
            )  # fmt: skip
        return found

    async def lease_over(self, task_id: str) -> None:
        await self.client.zadd(f"{self.namespace}:running", {task_id: 1}, xx=True)


def _strings(data: bytes) -> list[str]:
    found = []
    while data:
        size = int.from_bytes(data[:2])
        found.append(data[2 : 2 + size].decode())
        data = data[2 + size :]
    return found
