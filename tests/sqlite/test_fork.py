"""A process that forks: the child gets connections and locks of its own, and takes none of its parent's."""

import fcntl
import os
import signal
from pathlib import Path

from omniq import TaskStatus
from omniq.storage import SQLiteStorage
from tests.faults.processes import Field, eventually

# The parent works, forks, and works on; so does the child, by the blocking face and by its own storage.
FORKING = """
import asyncio, os, sys, warnings
from omniq import OmniQ, Task
from omniq.storage import SQLiteStorage

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is the point here
path, how = sys.argv[1:]
q = OmniQ(SQLiteStorage(path))

@q.task(name="app.job")
def job(number):
    return number

def work(who):
    ids = [job.enqueue(n).id for n in range(10)]
    async def by_storage():
        async with SQLiteStorage(path) as storage:
            return [await storage.enqueue(Task("a.b")) for _ in range(10)]
    ids += asyncio.run(by_storage())
    print(who, *ids, flush=True)

work("BEFORE")
pid = os.fork()
if pid == 0:
    try:
        work("CHILD")
        code = 0
    except BaseException as exc:
        print("CHILD", repr(exc), flush=True)
        code = 1
    if how == "abruptly":
        os._exit(code)
    sys.exit(code)
_, status = os.waitpid(pid, 0)
print("STATUS", os.waitstatus_to_exitcode(status), flush=True)
work("AFTER")
q.close()
print("END", flush=True)
"""

COUNT = """
import asyncio, sys
from omniq.storage import SQLiteStorage

async def main():
    async with SQLiteStorage(sys.argv[1]) as storage:
        print("ROWS", sum(sum(c.values()) for c in (await storage.counts()).values()), flush=True)
        print("VERIFY", await storage.verify(), flush=True)

asyncio.run(main())
"""


def fork_and_work(field: Field, how: str) -> None:
    parent = field.script(FORKING, field.database, how)
    assert len(parent.line("BEFORE").split()) == 20
    assert len(parent.line("CHILD").split()) == 20
    assert parent.line("STATUS") == "0"
    assert len(parent.line("AFTER").split()) == 20
    parent.line("END")
    assert parent.wait() == 0, parent.log.read_text()
    counter = field.script(COUNT, field.database)
    assert counter.line("ROWS") == "60"
    assert counter.line("VERIFY") == "[]"


def test_both_go_on_after_a_fork(field: Field) -> None:
    fork_and_work(field, "in good order")


def test_both_go_on_when_the_child_ends_abruptly(field: Field) -> None:
    fork_and_work(field, "abruptly")


# A worker whose program forks: the child lives on when the worker dies, but it does not hold its lock.
FORKED_WORKER = """
import asyncio, os, signal, sys, time, warnings
from omniq import AsyncWorkerPool
from omniq.storage import SQLiteStorage

warnings.simplefilter("ignore", DeprecationWarning)

async def main():
    async with AsyncWorkerPool(SQLiteStorage(sys.argv[1]), lease=1000.0):
        while not os.path.exists(sys.argv[2]):
            await asyncio.sleep(0.01)
        pid = os.fork()
        if pid == 0:
            while True:
                time.sleep(1)
        print("CHILD", pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_child_does_not_keep_a_dead_worker_alive(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        await field.enqueue(storage, "until_file", str(field.folder / "never"))
        worker = field.script(FORKED_WORKER, field.database, field.folder / "fork")

        async def claimed_and_known() -> bool:
            counts = (await storage.counts())["default"]
            return counts[TaskStatus.RUNNING] == 1 and len(await storage.workers()) == 1

        await eventually(claimed_and_known)
        (field.folder / "fork").touch()
        orphan = int(worker.line("CHILD"))
        try:
            assert worker.wait() == -signal.SIGKILL
            assert await storage.lapse() == 1
        finally:
            os.kill(orphan, signal.SIGKILL)


# The parent has the turn to write when it is killed; its child lives on.
KILLED_AT_ITS_TURN = """
import asyncio, os, signal, sys, time, warnings
from omniq.storage import SQLiteStorage

warnings.simplefilter("ignore", DeprecationWarning)
warnings.simplefilter("ignore", ResourceWarning)

def targets():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return found

async def main():
    storage = SQLiteStorage(sys.argv[1])
    await storage.claim("ann")
    sockets = sum(name.startswith("socket:") for name in targets())
    pid = os.fork()
    if pid == 0:
        left = targets()
        ours = [name for name in left if name.startswith(sys.argv[1])]
        closed = sockets - sum(name.startswith("socket:") for name in left)
        print("CHILD", os.getpid(), closed, ours, flush=True)
        while True:
            time.sleep(1)
    sys.stdin.readline()
    storage._engine.beside.take_turn()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_child_keeps_nothing_of_its_parents_open(field: Field) -> None:
    parent = field.script(KILLED_AT_ITS_TURN, field.database)
    orphan, closed, ours = parent.line("CHILD").split(maxsplit=2)
    try:
        assert (closed, ours) == ("2", "[]"), "the sender, the ear, and every file"
        parent.tell("take the turn")
        assert parent.wait() == -signal.SIGKILL
        with open(Path(f"{field.database}-omniq") / "write.lock", "r+") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back by the kernel, at once
    finally:
        os.kill(int(orphan), signal.SIGKILL)


# A storage that was open before the fork, used and left in the child.
INHERITED = """
import asyncio, os, sys, warnings
from omniq import Task
from omniq.errors import StoreUnavailable
from omniq.storage import SQLiteStorage
from omniq.task import WorkerInfo

warnings.simplefilter("ignore", DeprecationWarning)

def child(storage):
    try:
        storage.enqueue_here([Task("a.b")])
    except StoreUnavailable as exc:
        print("TOLD", exc, flush=True)
    storage.abandon()  # its loop does not run here

async def main():
    storage = SQLiteStorage(sys.argv[1])
    await storage.claim("ann")
    await storage.beat(WorkerInfo("ann", "ann", "here", os.getpid()))
    before = sorted(os.listdir(sys.argv[1] + "-omniq"))
    pid = os.fork()
    if pid == 0:
        child(storage)
        os._exit(0)
    print("STATUS", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    print("SAME", before == sorted(os.listdir(sys.argv[1] + "-omniq")), len(before), flush=True)
    await storage.enqueue(Task("a.b"))
    await storage.close()
    print("END", flush=True)

asyncio.run(main())
"""


def test_an_inherited_storage_refuses_and_removes_nothing_of_its_parents(field: Field) -> None:
    parent = field.script(INHERITED, field.database)
    assert "storage of its own" in parent.line("TOLD")
    assert parent.line("STATUS") == "0"
    assert parent.line("SAME") == "True 3"
    parent.line("END")
