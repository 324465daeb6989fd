"""The server that the other tests of this folder run on is a real one, as careful as in production."""

from pathlib import Path

import pytest

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.task import Settlement
from tests.redis.server import find_programs, missing, private
from tests.redis.stores import wired
from tests.servers import REQUIRE, NoServer


async def test_the_server_syncs(redis_url: str) -> None:
    async with wired(redis_url) as wire:
        assert await wire.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"yes"]
        assert await wire.call("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]


@pytest.mark.parametrize(
    ("required", "outcome"),
    [
        ("", pytest.skip.Exception),
        ("postgres", pytest.skip.Exception),
        ("redis,postgres", pytest.fail.Exception),
    ],
)
def test_without_a_server_tests_are_skipped_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv(REQUIRE, required)
    with pytest.raises(outcome, match="there is none"):
        missing(NoServer("there is none"))


@pytest.mark.parametrize("program", find_programs(), ids=lambda program: program.parent.name)
async def test_every_server_here_runs_every_script(program: Path) -> None:
    """Valkey from the wheel, and the system's redis-server where there is one."""
    with private(program=program) as server:
        async with RedisStorage(server.url) as store:
            ids = [
                await store.enqueue(Task("jobs.a", (n,), unique_key=str(n), expires_at=None))
                for n in range(3)
            ]
            done, failed, back = await store.claim("ann", limit=3)
            await store.settle([Settlement.success(done, b"\xc0"), Settlement.give_back(back)])
            await store.cancel(failed.id)
            assert await store.release("ann") == 1
            await store.retry(failed.id)
            await store.pause("default")
            await store.resume("default")
            assert await store.lapse() == await store.prune() == 0
            assert [task.id for task in await store.list_tasks()] == ids[::-1]
            await store.delete(done.id)
            assert await store.verify() == []
