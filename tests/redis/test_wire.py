"""One connection: whose answer is whose."""

import pytest

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.task import TaskFilter
from tests.redis.stores import wired

JOB = "jobs.a"


async def test_a_command_that_cannot_be_sent_shifts_nobodys_answer(redis_url: str) -> None:
    async with wired(redis_url) as wire:
        for unsendable in (None, "\ud800"):
            with pytest.raises((TypeError, ValueError)):
                await wire.call("ECHO", unsendable)  # type: ignore[arg-type]
        assert await wire.call("ECHO", "first") == b"first"
        assert await wire.call("ECHO", "second") == b"second"


async def test_a_filter_that_no_queue_can_match_finds_nothing(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.enqueue(Task(JOB))
        assert await store.list_tasks(TaskFilter(queue="\ud800")) == []
