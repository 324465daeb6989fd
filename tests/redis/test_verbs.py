"""F17: every script, cut off before it arrives or before its answer does, may be run again."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.scripts import Scripts
from tests.faults import verbs
from tests.faults.verbs import VERBS
from tests.redis.proxy import Proxy
from tests.redis.stores import empty_namespace, wired

# The verb and its script have the same name, but for these.
SCRIPTS = {
    "enqueue": "enqueue_one",
    "enqueue with a key": "enqueue",
    "claim": "exchange",
    "settle": "exchange",
    "retry later": "exchange",
    "give back": "exchange",
    "settle and claim": "exchange",
    "cancel a run": "cancel",
    "retry by hand": "retry",
    "resume": "pause",
    "leave": "beat",
}


async def load_scripts(url: str) -> None:
    """So that it is by its digest that a script is run."""
    async with wired(url) as wire:
        for name in VERBS:
            await wire.call("SCRIPT", "LOAD", Scripts()[SCRIPTS.get(name, name)].text)


async def prepare(store: RedisStorage, name: str, url: str) -> None:
    before = VERBS[name][0]
    await verbs.prepare(store, before)
    if before == "is over":
        await asyncio.sleep(0.002)  # its lease is that of a thousandth of a second, on the server's clock
    if before == "failed long ago":
        async with wired(url) as wire:
            await wire.call("ZADD", store._key(b"ended"), 1, verbs.ID)


async def facts(store: RedisStorage, url: str) -> list[Any]:
    """Everything that is stored, but for the moments and what goes by itself."""
    async with wired(url) as wire:
        _, keys = await wire.call("SCAN", 0, "MATCH", store._key(b"*"), "COUNT", 100_000)
        tallied: Counter[bytes] = Counter()
        for key in keys:
            if key.startswith(store._key(b"tally:")):
                flat = await wire.call("HGETALL", key)
                tallied.update({flat[n]: int(flat[n + 1]) for n in range(0, len(flat), 2)})
    passing = (b"claim", b"tally", b"ear", b"version")
    names = sorted(key for key in keys if key.split(b":")[1] not in passing)
    tasks = [(_but_moments(task), await store.history(task.id)) for task in await store.list_tasks()]
    runs = [[(run.epoch, run.outcome) for run in history] for _, history in tasks]
    shown = [task for task, _ in tasks]
    return [shown, runs, names, tallied, await store.counts(), await store.paused()]


def _but_moments(task: Task) -> dict[str, Any]:
    named = {name: getattr(task, name) for name in task.__struct_fields__}
    soon = task.eta is not None and task.eta < datetime.now(UTC) + timedelta(seconds=30)
    return {**{name: named[name] for name in named if not isinstance(named[name], datetime)}, "soon": soon}


@pytest.mark.parametrize("name", VERBS)
async def test_f17_a_script_that_is_cut_off_may_be_run_again(
    redis_url: str, namespace: str, name: str
) -> None:
    """Before it arrives, then ten times before its answer does: the state is as before, then of one call."""
    async with RedisStorage(redis_url, namespace=namespace) as store, Proxy(redis_url) as network:
        await load_scripts(redis_url)
        await prepare(store, name, redis_url)
        await VERBS[name][1](store)
        expected = await facts(store, redis_url)
        await empty_namespace(redis_url, namespace)
        await prepare(store, name, redis_url)
        async with RedisStorage(network.url, namespace=namespace) as through:
            sha = Scripts()[SCRIPTS.get(name, name)].sha
            await verbs.cut_off_and_repeat(
                through, network, name, sha, lambda: facts(store, redis_url), expected
            )
        assert await store.verify() == []
