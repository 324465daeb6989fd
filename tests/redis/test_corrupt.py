"""Records that make no sense, and indexes that say what records do not: found, shown, never a crash."""

import pytest

from omniq import Task
from omniq.errors import CorruptRecord, OmniqError
from omniq.storage.facts import vital_signs
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.wire import Argument
from omniq.task import Settlement, TaskError, TaskStatus, WorkerInfo
from tests.redis.stores import wired

JOB = "jobs.resize"


async def fill(store: RedisStorage) -> None:
    """One task of each status: `done`, `failed`, `running`, `waiting`."""
    for name in ("done", "failed", "running", "waiting"):
        await store.enqueue(Task(JOB, (name,), id=name, unique_key=f"key of {name}"))
    done, failed, _ = await store.claim("ann", None, 3)
    await store.settle(
        [
            Settlement.success(done, store.serializer.dumps("y")),
            Settlement.failed(failed, TaskError("ValueError", "boom")),
        ]
    )
    assert await store.verify() == []


async def break_it(url: str, store: RedisStorage, command: tuple[Argument, ...]) -> None:
    """The second word is a key, without its namespace."""
    name, key, *rest = command
    async with wired(url) as wire:
        reply = await wire.call(name, store._address.prefix + str(key).encode(), *rest)
        assert not isinstance(reply, Exception)


async def test_a_list_goes_on_behind_what_cannot_be_read(redis_url: str, namespace: str) -> None:
    """However many there are, and however small a page is."""
    async with RedisStorage(redis_url, namespace=namespace) as store:
        for number in range(9):
            await store.enqueue(Task(JOB, id=f"t{number}"))
        for number in (8, 7, 6, 4, 2, 1):
            await break_it(redis_url, store, ("HDEL", "state", f"t{number}"))
        found: list[str] = []
        page = await store.page(limit=1)
        for _ in range(9):
            found += [task.id for task in page.tasks]
            if page.after is None:
                break
            page = await store.page(after=page.after, limit=1)
        assert found == ["t5", "t3", "t0"]


@pytest.mark.parametrize(
    ("task_id", "command"),
    [
        ("waiting", ("HDEL", "body", "waiting")),
        ("waiting", ("HDEL", "state", "waiting")),
        ("waiting", ("HSET", "state", "waiting", "nonsense")),
        ("waiting", ("DEL", "ready:default")),
        ("waiting", ("LREM", "stretch:0", "0", "waiting")),
        ("waiting", ("DEL", "order")),
        ("9", ("ZADD", "order", "9", "9")),
        ("waiting", ("RPUSH", "stretch:9", "waiting")),
        ("nobody", ("RPUSH", "stretch:0", "nobody")),
        ("waiting", ("HDEL", "unique", "key of waiting")),
        ("waiting", ("SREM", "queues", "default")),
        ("running", ("ZREM", "running", "running")),
        ("running", ("SREM", "own:ann", "running")),
        ("running", ("HDEL", "state", "running")),
        ("done", ("ZREM", "ended", "done")),
        ("done", ("ZADD", "running", "1", "done")),
        ("failed", ("HDEL", "state", "failed")),
        ("nobody", ("HSET", "body", "nobody", "x")),
        ("nobody", ("ZADD", "ended", "1", "nobody")),
        ("nobody", ("ZADD", "ready:default", "0", "012345678abcdefghnobody")),
        ("nobody", ("HSET", "unique", "a key", "nobody")),
        ("nobody", ("LPUSH", "runs:nobody", "x")),
        ("default", ("DEL", "minutes")),
    ],
)
async def test_doctor_finds_what_should_not_be(
    redis_url: str, namespace: str, task_id: str, command: tuple[Argument, ...]
) -> None:
    """A body without an index entry, and the other way round, among others; and everything else goes on."""
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await fill(store)
        await break_it(redis_url, store, command)
        assert task_id in {line.split()[0] for line in await store.verify()}
        # Nobody stumbles: new tasks are handed out and end, whatever stands beside them.
        await store.enqueue(Task(JOB, id="new", priority=9, queue="other"))
        claims = await store.claim("bob", None, 9)
        assert "new" in {claim.id for claim in claims}
        assert set(await store.settle([Settlement.success(one, b"\xc0") for one in claims])) == {"held"}
        await store.lapse()
        await store.release("ann")
        await store.prune()
        await store.list_tasks()
        await store.counts()
        for name in ("waiting", "running", "done", "failed", "nobody"):
            try:
                await store.get_task(name)
            except CorruptRecord as corrupt:
                assert name in str(corrupt)


async def test_a_body_that_is_gone_fails_its_task_and_says_why(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await fill(store)
        await break_it(redis_url, store, ("HSET", "body", "waiting", "nonsense"))
        assert await store.claim("bob") == []
        assert (await store.counts())["default"][TaskStatus.FAILED] == 2
        with pytest.raises(CorruptRecord):
            await store.get_task("waiting")


async def test_an_entry_without_a_record_is_put_aside_once_and_stays_in_sight(
    redis_url: str, namespace: str
) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await fill(store)
        await break_it(redis_url, store, ("HSET", "state", "waiting", "nonsense"))
        for _ in range(2):
            assert await store.claim("bob") == []
        with pytest.raises(CorruptRecord):
            await store.cancel("waiting")
        assert any("stood in ready:default" in line for line in await store.verify())


async def test_a_key_of_somebody_else_is_told_as_such(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        async with wired(redis_url) as wire:
            await wire.call("SET", store._address.prefix + b"state", "mine")
        with pytest.raises(OmniqError, match="belongs to something else"):
            await store.enqueue(Task(JOB))


@pytest.mark.parametrize("nonsense", ["{", '{"id": 7}', "", "\\xff"])
async def test_a_worker_that_cannot_be_read_hides_nobody(
    redis_url: str, namespace: str, nonsense: str
) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        for name in ("ann", "bob"):
            await store.beat(WorkerInfo(name, name, "here", 1))
        await break_it(redis_url, store, ("HSET", "workers", "ann", nonsense))
        assert [worker.id for worker in await store.workers()] == ["bob"]
        assert (await vital_signs(store))[1][0].id == "bob"


@pytest.mark.parametrize("key", ["seq", "state", "order", "stretch:0", "ready:default", "queues"])
@pytest.mark.parametrize("unique_key", [None, "k"])  # the short way, the long way
async def test_an_enqueue_that_stopped_half_way_may_be_repeated(
    redis_url: str, namespace: str, key: str, unique_key: str | None
) -> None:
    """Somebody else's key is in the way, and then it is not."""
    task = Task(JOB, ("x",), id="one", unique_key=unique_key)
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await break_it(redis_url, store, ("SET", key, "nonsense"))
        with pytest.raises(OmniqError):
            await store.enqueue(task)
        await break_it(redis_url, store, ("DEL", key))
        assert await store.enqueue(task) == "one"
        [claimed] = await store.claim("ann", None, 5)
        assert store.decode(claimed).args == ("x",)
