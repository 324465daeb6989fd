"""One connection: whose answer is whose."""

import subprocess
import sys

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


INTERRUPTED = """
import signal
from omniq.storage.redis.wire import pack

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
numbers = ("A", *range(100_000))
interrupted = 0
while interrupted < 20:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.003)
        while True:
            packed = pack(numbers)
    except KeyboardInterrupt:
        interrupted += 1
assert pack(("SET", b"k", 12, -3)) == pack(("SET", b"k", "12", "-3"))
print("alive")
"""


def test_a_ctrl_c_while_a_command_is_packed_crashes_nothing() -> None:
    """In a process of its own: what went wrong here was a segmentation fault."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


async def test_a_filter_that_no_queue_can_match_finds_nothing(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.enqueue(Task(JOB))
        assert await store.list_tasks(TaskFilter(queue="\ud800")) == []
