"""A process that forks with an open storage: two processes never share a connection."""

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest

from omniq.storage.redis import RedisStorage

# The parent goes on after it: a child that was answered in its place would leave it waiting, or with an
# answer that is not its own.
FORKING = """
import asyncio, os, sys, warnings
from omniq import Task
from omniq.errors import InvalidOption
from omniq.storage.redis import RedisStorage

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is the point here

def refused(call):
    try:
        call()
    except InvalidOption as exc:
        assert "clone()" in str(exc), exc
        return
    raise AssertionError("it was not refused")

async def opened_anew(store):
    await store.close()
    await store.enqueue(Task("a.b"))
    await store.close()

async def verb(store):
    await store.counts()

def child(store, how):
    refused(lambda: store.enqueue_here([Task("a.b")]))
    if how == "in the loop":
        try:
            verb(store).send(None)
        except InvalidOption:
            return
        raise AssertionError("it was not refused")
    refused(lambda: asyncio.run(verb(store)))
    async def cloned():
        async with store.clone() as own:
            await own.enqueue(Task("a.b"))
    asyncio.run(cloned())
    asyncio.run(opened_anew(store))

def fork(store, how):
    pid = os.fork()
    if pid == 0:
        try:
            child(store, how)
            store.abandon()
        except BaseException as exc:
            print(repr(exc), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def main(url, namespace, how):
    async with RedisStorage(url, namespace=namespace) as store:
        await asyncio.to_thread(store.enqueue_here, [Task("a.b")])
        if how == "in the loop":
            assert fork(store, how) == 0
        else:
            assert await asyncio.to_thread(fork, store, how) == 0
        await asyncio.to_thread(store.enqueue_here, [Task("a.b")])
        print("WAITING", sum((await store.counts())["default"].values()), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("how", "waiting"), [("in the loop", 2), ("in a thread", 4)])
async def test_a_child_is_refused_its_parents_connections(
    redis_url: str, namespace: str, how: str, waiting: int
) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FORKING, redis_url, namespace, how), stdout=PIPE, stderr=PIPE
    )
    said, complaints = await child.communicate()
    assert said.decode() == f"WAITING {waiting}\n", complaints.decode()
    assert child.returncode == 0
    async with RedisStorage(redis_url, namespace=namespace) as store:
        assert await store.verify() == []
