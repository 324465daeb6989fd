"""A process that forks with an open storage: two processes never share a connection."""

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest

from omniq.storage.postgres import PostgresStorage

# The parent goes on after it: its connections would be closed, or it would not notice what comes on them.
FORKING = """
import asyncio, gc, os, sys, warnings
from omniq import Task
from omniq.errors import InvalidOption
from omniq.storage.postgres import PostgresStorage

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is the point here

async def refused(store):
    try:
        await store.enqueue(Task("a.b"))
    except InvalidOption as exc:
        assert "clone()" in str(exc), exc
        return
    raise AssertionError("it was not refused")

async def cloned(store):
    async with store.clone() as own:
        await own.enqueue(Task("a.b"))

async def closed_and_opened_anew(store):
    await store.close()
    await store.enqueue(Task("a.b"))
    await store.close()

def child(store, how):
    asyncio.run(refused(store))
    asyncio.run(cloned(store))
    if how == "close":
        asyncio.run(closed_and_opened_anew(store))
    else:
        store.abandon()
    gc.collect()

def fork(store, how):
    pid = os.fork()
    if pid == 0:
        try:
            child(store, how)
        except BaseException as exc:
            print(repr(exc), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def main(dsn, schema, how):
    async with PostgresStorage(dsn, schema=schema) as store:
        await store.enqueue(Task("a.b"))
        await store.wait(0.0)  # it listens, too
        of_work, = store._connections._idle
        of_listening = store._listening._conn
        assert await asyncio.to_thread(fork, store, how) == 0
        await of_work.fetch("SELECT 1", timeout=20)
        await of_listening.fetch("SELECT 1", timeout=20)
        print("WAITING", sum((await store.counts())["default"].values()), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("how", "waiting"), [("close", 3), ("abandon", 2)])
async def test_a_child_leaves_its_parents_connections_alone(
    postgres_dsn: str, emptied: str, how: str, waiting: int
) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FORKING, postgres_dsn, emptied, how), stdout=PIPE, stderr=PIPE
    )
    said, complaints = await child.communicate()
    assert said.decode() == f"WAITING {waiting}\n", complaints.decode()
    assert child.returncode == 0
    async with PostgresStorage(postgres_dsn, schema=emptied) as store:
        assert await store.verify() == []
