"""None of the known ways in which a PostgreSQL queue collapses: counted in index entries, not in seconds."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from omniq import Task
from omniq.storage.postgres import PostgresStorage
from omniq.storage.postgres.claiming import Cursor
from omniq.storage.postgres.looking import FIRST_LOOK, LOOK
from omniq.storage.postgres.schema import quoted
from omniq.task import Claim, Page, Settlement, StoredTask, TaskError, TaskFilter, TaskStatus, WorkerInfo
from tests.postgres.stores import EverFromStart

AT_ONCE = 100
NEVER = float("inf")
SCANS_WHEN_MADE = 6  # the empty table is read once for each index


def tasks(many: int, **options: object) -> list[StoredTask]:
    return [StoredTask("jobs.resize", b"\x01m\x00\x92\x90\x80", **options) for _ in range(many)]  # type: ignore[arg-type]


class Kept(Cursor):
    """Never back to the start, however cheap that would be in so small a table."""

    def __init__(self) -> None:
        super().__init__()
        self.from_start_at = NEVER

    def note(self, walk_s: float, brought: int, now: float, was_from_start: bool) -> None:
        pass


class Reads:
    """What was read of the tasks and their indexes, once the connections that did it are closed."""

    def __init__(self, seq_scans: int, entries: dict[str, int]) -> None:
        self.seq_scans = seq_scans
        self.entries = entries


async def reads(dsn: str, schema: str, updates: int) -> Reads:
    """A closing connection reports what it did; wait until `updates` of rows have been reported."""
    conn = await asyncpg.connect(dsn)
    try:
        found = (0, -1)
        while found[1] < updates:
            await conn.execute("SELECT pg_sleep(0.02)")
            found = await conn.fetchrow(
                "SELECT seq_scan, n_tup_upd FROM pg_stat_user_tables "
                "WHERE schemaname = $1 AND relname = 'task'",
                schema,
            )
        rows = await conn.fetch(
            "SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = $1", schema
        )
        return Reads(found[0], dict(rows))
    finally:
        await conn.close()


def succeeded(task: StoredTask) -> Settlement:
    return Settlement.success(task, b"")


def failed(task: StoredTask) -> Settlement:
    return Settlement.failed(task, TaskError("ValueError", "boom"))


async def drain(
    store: PostgresStorage,
    many: int,
    queues: tuple[str, ...] | None = None,
    end: Callable[[StoredTask], Settlement] = succeeded,
) -> None:
    held: list[StoredTask] = []
    for number in range(many // AT_ONCE + 1):
        said = [end(one) for one in held]
        limit = AT_ONCE if number < many // AT_ONCE else 0
        _, claims = await store.exchange(said, Claim("ann", queues, limit, 30.0, f"{number:x}"))
        assert len(claims) == limit
        held = [claim for claim in claims if isinstance(claim, StoredTask)]


async def small_verbs(store: PostgresStorage) -> None:
    """What is asked all the time."""
    await store.renew("ann", 30.0)
    await store.held("ann")
    await store.enqueue(Task("jobs.resize", expires_at=datetime.now(UTC)))
    assert await store.lapse() == 1
    await store.release("ann")
    await store.prune()
    await store.get_task("unknown")
    await store.cancel(await store.enqueue(Task("jobs.resize", eta=datetime.now(UTC) + timedelta(days=1))))
    await store._look_for_ends(["unknown", "another"])


@asynccontextmanager
async def old_snapshot(dsn: str) -> AsyncIterator[None]:
    conn = await asyncpg.connect(dsn)
    await conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
    try:
        yield
    finally:
        await conn.close()


@pytest.mark.parametrize(("end", "looks"), [(succeeded, 3), (failed, 7)])
async def test_a_plan_made_on_the_empty_table_serves_a_full_one(
    postgres_dsn: str, schema: str, end: Callable[[StoredTask], Settlement], looks: int
) -> None:
    """Causes 1 and 2: nothing reads the whole table, and settle goes by the key, not by what runs."""
    many = 2000
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        for number in range(10):
            await store.exchange([], Claim("ann", None, AT_ONCE, 30.0, f"early {number}"))
            await store.settle([end(StoredTask("a.b", b"", id="unknown", epoch=1))])
            await small_verbs(store)
        await store.enqueue_many(tasks(20_000))
        await small_verbs(store)
        store._cursor = Kept()
        await drain(store, many, end=end)
    read = await reads(postgres_dsn, schema, 2 * many)
    assert read.seq_scans == SCANS_WHEN_MADE
    assert read.entries["task_running"] < many / 10
    # The key of each: once when it was enqueued, once when it was settled; a failure is noted as well.
    assert read.entries["task_id"] < looks * many
    assert read.entries["task_waiting"] < 3 * many


@pytest.mark.parametrize("with_cursor", [True, False])
async def test_f30_what_was_claimed_is_not_walked_over_again(
    postgres_dsn: str, schema: str, with_cursor: bool
) -> None:
    """F30, causes 3 and 4: dead entries at the head, which an old snapshot keeps from being marked."""
    many = 3000
    async with PostgresStorage(postgres_dsn, schema=schema) as store, old_snapshot(postgres_dsn):
        await store.enqueue_many(tasks(many + AT_ONCE))
        # Without it, also on a machine so slow that it would be used by itself.
        store._cursor = Kept() if with_cursor else EverFromStart()
        await drain(store, many)
    read = await reads(postgres_dsn, schema, 2 * many)
    walk_from_start = many / AT_ONCE * many / 2
    assert (read.entries["task_waiting"] < walk_from_start / 5) is with_cursor


async def test_a_slow_walk_makes_the_next_ones_begin_at_the_cursor(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many(tasks(10))
        first, *_ = await store.claim("ann", limit=5)
        store._cursor.note(0.5, 5, 0.0, True)
        assert store._cursor.from_start_at == pytest.approx(1.0)  # at most a second
        store._cursor.from_start_at = NEVER
        await store.settle([Settlement.give_back(first)])
        await store.reschedule(first.id, datetime.now(UTC) - timedelta(hours=1))
        urgent = await store.enqueue(Task("jobs.resize", priority=5))
        # Priorities are exact at every claim; what appeared before the cursor waits for a whole walk.
        taken = [task.id for task in await store.claim("ann", limit=9)]
        assert taken[0] == urgent
        assert len(taken) == 6
        assert first.id not in taken
        store._cursor.from_start_at = 0.0
        assert [task.id for task in await store.claim("ann", limit=9)] == [first.id]


async def test_a_short_claim_behind_a_cursor_says_when_to_look_again(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many(tasks(2))
        assert len(await store.claim("ann", limit=1)) == 1
        store._cursor.from_start_at = NEVER
        assert len(await store.claim("ann", limit=5)) == 1
        assert len(await store.claim("ann", limit=5)) == 0
        store._cursor.from_start_at = 0.0
        assert len(await store.claim("ann", limit=5)) == 0
        assert store._look_again_at is None


async def test_what_cannot_run_costs_nothing(postgres_dsn: str, schema: str) -> None:
    """Tasks of tomorrow at top priority, a paused queue, and history."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many(tasks(5000, priority=9, eta=tomorrow))
        await store.enqueue_many(tasks(5000, queue="paused"))
        await store.pause("paused")
        await store.enqueue_many(tasks(200))
        await drain(store, 200)
    read = await reads(postgres_dsn, schema, 400)
    assert read.seq_scans == SCANS_WHEN_MADE
    assert read.entries["task_waiting"] < 2000


async def test_several_queues_are_not_sorted(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        for queue in ("a", "b", "c"):
            await store.enqueue_many(tasks(3000, queue=queue))
        store._cursor = Kept()
        await drain(store, 1000, ("a", "b", "c"))
    read = await reads(postgres_dsn, schema, 2000)
    # Per claim: the first hundred of each queue, and then those that are taken.
    assert read.entries["task_waiting"] < 10 * (3 * AT_ONCE + AT_ONCE) * 1.5


@pytest.mark.quiet
async def test_many_queues_cost_in_proportion(postgres_dsn: str, schema: str) -> None:
    """Ten times as many of everything take ten times as long, not a hundred times; from a cursor, too."""
    took_s: dict[int, float] = {}
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        for many in (200, 2000):
            names = [f"{many}-{number}" for number in range(many)]
            await store.enqueue_many([one for name in names for one in tasks(2, queue=name)])
            store._cursor = Kept()
            rounds: list[float] = []
            for number in range(4):
                began = time.perf_counter()
                _, claims = await store.exchange([], Claim("ann", names, many // 2, 30.0, f"{many} {number}"))
                rounds.append(time.perf_counter() - began)
                assert len(claims) == many // 2 or number > 1  # behind the cursor is the second of each
            took_s[many] = min(rounds[1:])  # the first one has no cursor yet
    assert took_s[2000] < 30 * took_s[200]


async def test_queues_of_the_past_are_looked_at_once(postgres_dsn: str, schema: str) -> None:
    """A name is kept for ever; a claim of all queues must not look at each of its priorities, twice."""
    many, rounds = 300, 10
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many([one for number in range(many) for one in tasks(1, queue=f"q{number}")])
        _, claims = await store.exchange([], Claim("ann", None, many, 30.0, "all"))
        assert len(claims) == many
        await store.exchange([succeeded(one) for one in claims if isinstance(one, StoredTask)])
    before = await looks(postgres_dsn, schema)
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        for number in range(rounds):
            assert await store.exchange([], Claim("ann", None, AT_ONCE, 30.0, f"{number}")) == ([], [])
    assert rounds * many <= await looks(postgres_dsn, schema) - before < 1.5 * rounds * many
    async with PostgresStorage(postgres_dsn, schema=schema) as store:  # one that is used again is found again
        await store.enqueue_many(tasks(1, queue="q7", priority=3))
        await store.enqueue_many(tasks(1, queue="q9", delay_s=3600.0))
        _, claims = await store.exchange([], Claim("ann", None, AT_ONCE, 30.0, "again"))
        assert [one.queue for one in claims] == ["q7"]


async def looks(dsn: str, schema: str) -> int:
    """How often the index of waiting tasks was looked into, once nobody is left who has more to report."""
    conn = await asyncpg.connect(dsn)
    try:
        found = [-1, -2]
        while found[-1] != found[-2]:
            await conn.execute("SELECT pg_sleep(0.3)")
            query = "SELECT idx_scan FROM pg_stat_user_indexes WHERE schemaname = $1 AND indexrelname = $2"
            found.append(await conn.fetchval(query, schema, "task_waiting"))
        return found[-1]
    finally:
        await conn.close()


@pytest.mark.parametrize("queues", ["ab", "aa"], ids=["two queues", "one queue"])
async def test_claims_lock_only_what_they_hand_out(postgres_dsn: str, schema: str, queues: str) -> None:
    """And nobody waits for what another claim has locked."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many([*tasks(50, queue=queues[0]), *tasks(50, queue=queues[1])])
        conn = await asyncpg.connect(postgres_dsn)
        async with conn.transaction():
            taken = await conn.fetch(
                f"SELECT {quoted(schema)}.pick(now(), $1::text[], 10, '{{}}', 0, "
                "'{}', '{}', '{}', '{}') "
                f"FROM set_config('search_path', {_literal(quoted(schema))}, true)",
                sorted(set(queues)),
            )
            assert len(taken[0][0]) == 10
            assert len(await store.claim("ann", limit=100)) == 90
        await conn.close()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def test_a_clock_that_was_set_back_costs_only_until_nothing_is_left_from_before(
    postgres_dsn: str, schema: str
) -> None:
    """F20: what was enqueued in a wrong future is handed out now; then nobody looks for it any more."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many(tasks(2))
        conn = await asyncpg.connect(postgres_dsn)
        ahead = "interval '10 years'"
        await conn.execute(
            f"SET search_path = {quoted(schema)}; UPDATE latest SET at = at + {ahead}; "
            f"UPDATE task SET due = due + {ahead}, enqueued_at = enqueued_at + {ahead}"
        )
        await store.enqueue_many(tasks(1))
        assert len(await store.claim("ann", limit=2)) == 2
        await store.prune()
        still = "SELECT at > now() FROM latest"
        assert await conn.fetchval(still)
        assert len(await store.claim("ann", limit=2)) == 1
        await store.prune()
        assert not await conn.fetchval(still)
        await conn.close()


async def test_looking_reads_no_table_and_few_entries(postgres_dsn: str, schema: str) -> None:
    """S11: what the pages show is found without a scan, also by plans made on the empty table."""
    many = 20_000
    looks: list[Callable[[PostgresStorage], Awaitable[object]]] = [
        lambda store: store.counts(),
        lambda store: store.rates(datetime.now(UTC)),
        lambda store: store.heads(),
        lambda store: store.timings(50),
        lambda store: store.longest_running(50),
        lambda store: store.ahead("last", 50),
        lambda store: store.page(limit=50),
        lambda store: store.page(TaskFilter(status=TaskStatus.RUNNING)),
        lambda store: store.page(TaskFilter(status=TaskStatus.FAILED)),
        lambda store: store.page(TaskFilter(status=TaskStatus.PENDING, queue="small")),
    ]
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue(Task("jobs.resize", id="last"))
        for look in looks:
            for _ in range(6):
                await look(store)
        await store.enqueue_many(tasks(many))
        await store.enqueue_many(tasks(10, queue="small"))
        before = await reads(postgres_dsn, schema, 0)
        for look in looks:
            await look(store)
    read = await reads(postgres_dsn, schema, 0)
    assert read.seq_scans <= SCANS_WHEN_MADE
    walked = {name: entries - before.entries[name] for name, entries in read.entries.items()}
    assert sum(walked[name] for name in walked if name.startswith("task")) < many / 2, walked


async def test_a_filter_that_no_index_serves_looks_at_a_bounded_number(
    postgres_dsn: str, schema: str
) -> None:
    """S11: a page of nothing says where to look on."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many(tasks(LOOK + 2 * FIRST_LOOK))
        page = await store.page(TaskFilter(error="(a+)+$"), limit=50)
        assert page.tasks == []
        assert page.after is not None
        assert await store.page(TaskFilter(error="(a+)+$"), page.after, limit=50) == Page([])


async def test_tallies_stay_few(postgres_dsn: str, schema: str) -> None:
    """They are only ever added to, so somebody puts them together: a beat does."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        for _ in range(30):
            await store.enqueue(Task("jobs.resize"))
        await drain(store, 0)
        await store.beat(WorkerInfo("ann", "ann", "host", 1))
        conn = await asyncpg.connect(postgres_dsn)
        try:
            rows = await conn.fetchval(f"SELECT count(*) FROM {quoted(schema)}.tally")
        finally:
            await conn.close()
        assert rows <= 2, "one, or two where a minute began meanwhile"
        assert (await store.counts())["default"][TaskStatus.PENDING] == 30
