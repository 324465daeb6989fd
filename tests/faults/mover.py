"""A program that moves a store again and again, killed at another step each time; what came of it, as JSON.

    python -m tests.faults.mover SOURCE_URL TARGET_URL

Each move is a child of its own. At its nth call of a store, before or after it, it kills itself. Then the
target's tasks are run and deleted, as workers and pruning would do, and another child moves the rest.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from omniq.moving import move
from omniq.schedule import Schedule
from omniq.storage import open_storage
from omniq.storage.batched import BatchedStorage
from omniq.task import Settlement, Task, TaskError

TASKS = 4
PER_PARCEL = 2
MOST_STEPS = 50
STEPS = ("take_out", "take_in", "drop_parcel")


def store(url: str) -> BatchedStorage:
    storage = open_storage(url, durability="relaxed")
    assert isinstance(storage, BatchedStorage)
    return storage


async def fill(url: str, turn: str) -> list[str]:
    async with store(url) as source:
        ids = [await source.enqueue(Task("jobs.a", (n,), id=f"{turn}-{n}")) for n in range(TASKS)]
        [claimed] = await source.claim("ann")
        await source.settle([Settlement.retry(claimed, 0, TaskError("E", "first"))])
        await source.save_schedule(Schedule(name=turn, call=Task("jobs.a"), every=3600))
        return ids


async def work_off(url: str) -> list[str]:
    """Everything that waits in the target is run, and forgotten."""
    done: list[str] = []
    async with store(url) as target:
        while claims := await target.claim("bob", None, 100):
            for claimed in claims:
                done.append(f"{claimed.id}/{claimed.epoch}/{claimed.attempts}")
                await target.settle([Settlement.success(claimed, target.serializer.dumps(None))])
                await target.delete(claimed.id)
    return done


async def moved(source_url: str, target_url: str, nth: int, when: str) -> None:
    steps = 0

    def killing(verb: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == nth and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await verb(*args)
            if steps == nth and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call

    async with store(source_url) as source, store(target_url) as target:
        for storage in (source, target):
            for name in STEPS:
                setattr(storage, name, killing(getattr(storage, name)))
        await move(source, target, parcel_tasks=PER_PARCEL)


def in_child(work: Callable[[], Any]) -> int:
    """How a child ended: its exit code, or minus the signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as exc:
            print(repr(exc), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def turn(source: str, target: str, nth: int, when: str) -> dict[str, Any]:
    name = f"{when}-{nth}"
    ids = asyncio.run(fill(source, name))
    ended = in_child(lambda: asyncio.run(moved(source, target, nth, when)))
    done = asyncio.run(work_off(target))
    finished = in_child(lambda: asyncio.run(moved(source, target, 0, "")))
    done += asyncio.run(work_off(target))
    return {"name": name, "ids": ids, "ended": ended, "finished": finished, "done": done}


def main(source: str, target: str) -> None:
    turns: list[dict[str, Any]] = []
    for nth in range(1, MOST_STEPS):
        turns += [turn(source, target, nth, when) for when in ("before", "after")]
        if turns[-1]["ended"] == 0:
            break
    print(json.dumps(turns))


if __name__ == "__main__":
    main(*sys.argv[1:])
