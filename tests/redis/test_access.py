"""Who may come in, and what those are told who may not: one line, our own words, never the password."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from loguru import logger

from omniq import AsyncWorkerPool, Task
from omniq.errors import OmniqError, StoreError, StoreUnavailable
from omniq.storage import open_storage
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.address import Address
from omniq.storage.redis.blocking import Blocking
from omniq.storage.redis.scripts import Scripts
from tests.redis import bodies
from tests.redis.server import DURABLE, Private, find_programs, private
from tests.redis.stores import wired
from tests.redis.test_durability import EVERY_SECOND
from tests.redis.test_faults import JOB, has_done, until

SECRET = "s3cr3t-w0rd"
every_program = pytest.mark.parametrize("program", find_programs(), ids=lambda program: program.parent.name)
# As docs/redis.md has them.
RIGHTS = "~{omniq}:* &{omniq}:* +@all -@dangerous +info"


@pytest.fixture
def caught() -> Iterator[list[str]]:
    """What was logged as a warning."""
    lines: list[str] = []
    number = logger.add(lambda message: lines.append(message.record["message"]), level="WARNING")
    yield lines
    logger.remove(number)


async def refusal(url: str) -> str:
    """What both are told, those who await and those who block."""
    with pytest.raises(OmniqError) as raised:
        await open_storage(url).open()
    told = str(raised.value)
    assert SECRET not in told
    assert "\n" not in told
    assert type(raised.value).__module__ == "omniq.errors"
    with pytest.raises(type(raised.value)) as blocked:
        await asyncio.to_thread(Blocking(Address(url, None), "fsync").write, Scripts()["get"], "id")
    assert str(blocked.value) == told
    return told


async def add_user(server: Private, rights: str) -> str:
    async with wired(server.url) as wire:
        assert await wire.call("ACL", "SETUSER", "app", "on", f">{SECRET}", *rights.split()) == b"OK"
    return server.url.replace("//", f"//app:{SECRET}@")


@every_program
async def test_a_user_with_the_rights_of_the_docs_can_do_everything(program: Path) -> None:
    """Without CONFIG, as on a managed server: it does not say how it syncs, so it is waited for."""
    bodies.RUNS.clear()
    settings = EVERY_SECOND if "redis-server" not in program.name else DURABLE
    with private(settings, program=program, port=True) as server:
        url = await add_user(server, RIGHTS + (" +config|get" if settings is DURABLE else ""))
        async with open_storage(url) as store:
            assert isinstance(store, RedisStorage)
            async with AsyncWorkerPool(store.clone(), concurrency=5, poll_interval=30):
                await store.enqueue_many([Task(JOB, (n,), unique_key=f"{n}") for n in range(20)])
                result = await store.wait_result(await store.enqueue(Task(JOB, (99,))), 30)
                assert result is not None
                await until(lambda: has_done(store, 21))
            await store.pause("default")
            await store.prune()
            assert await store.verify() == []


async def test_a_user_without_them_is_told_which() -> None:
    with private(port=True) as server:
        url = await add_user(server, "~{omniq}:* +info +ping +get +set +config|get")
        async with RedisStorage(url) as store:
            for enqueue in (
                store.enqueue_many([Task(JOB)]),
                asyncio.to_thread(store.enqueue_here, [Task(JOB)]),
            ):
                with pytest.raises(StoreError, match=r"~\{namespace\}:\*") as raised:
                    await enqueue
                assert SECRET not in str(raised.value)


@pytest.mark.parametrize("program", find_programs(), ids=lambda program: program.parent.name)
async def test_a_user_without_channels_does_all_the_same_and_is_told(
    program: Path, caught: list[str]
) -> None:
    """Since Redis 7 that is what a new user is. What was done must not be told as an error."""
    bodies.RUNS.clear()
    with private(program=program, port=True) as server:
        url = await add_user(server, "~{omniq}:* resetchannels +@all -@dangerous +info +config|get")
        async with RedisStorage(url) as store:
            assert [line for line in caught if "nobody is woken" in line and "&{namespace}:*" in line]
            enqueued = [
                *await store.enqueue_many([Task(JOB, (0,))]),
                *await store.enqueue_many([Task(JOB, (1,), unique_key="k"), Task(JOB, (2,))]),
                *await asyncio.to_thread(store.enqueue_here, [Task(JOB, (3,))]),
            ]
            assert len(await store.list_tasks()) == len(enqueued) == 4
            async with AsyncWorkerPool(store.clone(), concurrency=5, poll_interval=0.1):
                for one in enqueued:
                    result = await store.wait_result(str(one), 10)
                    assert result is not None
            await store.pause("default")
            await store.resume("default")
            assert await store.verify() == []


async def test_nobody_there() -> None:
    assert "nobody listens there" in await refusal("redis://127.0.0.1:1/0")
    assert "there is no such host" in await refusal("redis://nowhere.invalid/0")
    assert "No such file" in await refusal("unix:///nowhere/redis.sock")


@every_program
async def test_wrong_words(program: Path) -> None:
    with private(program=program, port=True) as server:
        url = await add_user(server, RIGHTS)
        assert "refused the user or the password" in await refusal(url.replace(SECRET, f"not-{SECRET}"))
        assert "refused the user or the password" in await refusal(url.replace("app", "nobody"))
        assert "no such database; write /0" in await refusal(url.replace("/0", "/99"))
        socket = f"unix://app:not-{SECRET}@{server.socket}"
        assert "refused the user or the password" in await refusal(socket)


@every_program
async def test_all_four_schemes_lead_to_the_same_tasks(program: Path) -> None:
    """rediss:// is in test_tls.py."""
    with private(program=program, port=True) as server:
        async with open_storage(server.url) as store:
            task_id = await store.enqueue(Task(JOB, (1,)))
        addresses = [
            server.url.replace("redis://", "valkey://"),
            f"unix://{server.socket}",
            f"unix://{server.socket}?db=0&namespace=omniq",
        ]
        for url in addresses:
            async with open_storage(url) as store:
                assert await store.get_task(task_id) is not None


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no Redis protocol"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no Redis protocol"),
        (b"", "hung up at our first word"),
    ],
)
async def test_a_server_that_is_no_redis(says: bytes, told: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(says)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert told in await refusal(f"redis://me:{SECRET}@127.0.0.1:{port}/0")


async def test_a_server_without_a_free_connection_is_waited_for() -> None:
    """Somebody else has taken all of them, and gives them back."""
    bodies.RUNS.clear()
    with private({**DURABLE, "maxclients": "12"}, port=True) as server:
        async with RedisStorage(server.url) as store:
            await store.enqueue_many([Task(JOB, (number,)) for number in range(20)])
            with ExitStack() as greedy:
                for _ in range(20):
                    greedy.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                with pytest.raises(StoreUnavailable, match="no connection left"):
                    await RedisStorage(server.url).open()
                pool = AsyncWorkerPool(RedisStorage(server.url), concurrency=5, poll_interval=0.2)
                starting = asyncio.create_task(pool.start())
                await asyncio.sleep(0.3)
            await starting
            await until(lambda: has_done(store, 20))
            await pool.stop()
            assert set(bodies.RUNS) == set(range(20))
