"""Sleeping and being woken: across processes by datagrams, without them by looking now and then."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

from omniq import AsyncWorkerPool, Task
from omniq.storage import SQLiteStorage
from omniq.storage.rows import Rows
from omniq.storage.sqlite.beside import Beside, Ear
from omniq.task import Settlement
from tests.faults.processes import Child, Field, eventually

LONG_S = 10.0  # longer than any wake-up takes; a wait that runs this long was not woken

PRODUCER = """
import asyncio, sys
from omniq import Task
from omniq.storage import SQLiteStorage

async def main():
    async with SQLiteStorage(sys.argv[1]) as storage:
        print("READY", flush=True)
        for line in sys.stdin:
            print("STORED", await storage.enqueue(Task("builtins.len", ([],))), flush=True)

asyncio.run(main())
"""


async def produce(producer: Child) -> str:
    producer.tell("one more")
    return await asyncio.get_running_loop().run_in_executor(None, producer.line, "STORED")


async def woken(storage: SQLiteStorage) -> float:
    """How long a wait took that must be ended by somebody."""
    begin = time.monotonic()
    assert await storage.wait(LONG_S), "nobody woke it"
    took_s = time.monotonic() - begin
    assert took_s < LONG_S / 2
    return took_s


async def test_another_process_wakes_us(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        producer = field.script(PRODUCER, field.database)
        producer.line("READY")
        for _ in range(3):
            assert await storage.claim("ann") == []
            sleeping = asyncio.create_task(woken(storage))
            task_id = await produce(producer)
            await sleeping
            [claim] = await storage.claim("ann")
            assert claim.id == task_id
            await storage.settle([Settlement.success(claim, storage.serializer.dumps(None))])


async def test_what_comes_between_the_claim_and_the_sleep_wakes_us_too(field: Field) -> None:
    """Also before the very first sleep of this storage."""
    async with SQLiteStorage(field.database) as storage:
        producer = field.script(PRODUCER, field.database)
        producer.line("READY")
        for _ in range(2):
            assert await storage.claim("ann") == []
            await produce(producer)
            assert await woken(storage) < 1.0
            assert await storage.claim("ann")


async def test_what_is_enqueued_beside_the_claim_wakes_us_too(database: Path) -> None:
    """The claim has looked, but its answer is not here yet: that is the moment when a wake-up gets lost."""
    async with SQLiteStorage(database) as storage, storage.clone() as producer:
        begun, go_on = threading.Event(), threading.Event()

        def keep_busy(_: Rows) -> None:
            begun.set()
            assert go_on.wait(10)

        busy = asyncio.create_task(producer._write(keep_busy))
        await asyncio.to_thread(begun.wait, 10)
        claiming = asyncio.create_task(storage.claim("ann"))
        await asyncio.sleep(0)
        enqueueing = asyncio.create_task(producer.enqueue(Task("a.b")))
        await asyncio.sleep(0)
        go_on.set()  # both wait for the writer, in this order, and share its next commit
        assert await claiming == []
        assert await woken(storage) < 5.0
        await asyncio.gather(busy, enqueueing)
        assert await storage.claim("ann")


async def test_a_result_wakes_who_waits_for_it_in_another_process(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        task_id = await storage.enqueue(Task("tests.faults.bodies.nap", (0.2,)))
        waiting = asyncio.create_task(storage.wait_result(task_id, LONG_S))
        field.worker()
        result = await waiting
        assert result is not None
        assert result.result == 1


async def test_a_deep_folder_has_sockets_too(tmp_path: Path) -> None:
    """A socket's path holds 108 bytes; the folder may lie as deep as it likes."""
    deep = tmp_path.joinpath(*["a-folder-with-quite-a-long-name"] * 6)
    deep.mkdir(parents=True)
    assert len(str(deep)) > 200
    with Field(deep) as field:
        async with SQLiteStorage(field.database) as storage:
            producer = field.script(PRODUCER, field.database)
            producer.line("READY")
            assert await storage.claim("ann") == []
            sleeping = asyncio.create_task(woken(storage))
            await produce(producer)
            assert await sleeping < 5.0
            names = [path.name for path in (deep / "jobs.db-omniq").iterdir()]
            assert any(name.endswith(".due") for name in names)


@contextmanager
def no_folder_beside(database: Path) -> Iterator[None]:
    """A file where the folder should be: as if it could not be made."""
    place = database.with_name(database.name + "-omniq")
    place.touch()
    yield
    assert place.read_bytes() == b""


async def test_without_a_folder_beside_it_looks_now_and_then(field: Field) -> None:
    with no_folder_beside(field.database):
        async with SQLiteStorage(field.database) as storage:
            producer = field.script(PRODUCER, field.database)
            producer.line("READY")
            assert await storage.claim("ann") == []
            sleeping = asyncio.create_task(woken(storage))
            await produce(producer)
            assert await sleeping < 5.0
            assert await storage.claim("ann")
            await storage.claim("ann")
            await produce(producer)  # before the wait begins
            assert await woken(storage) < 5.0


async def test_without_a_folder_beside_everything_else_works(field: Field) -> None:
    """Leases say who is dead, a little later."""
    with no_folder_beside(field.database):
        async with SQLiteStorage(field.database) as storage:
            task_id = await field.enqueue(storage, "nap", 0.0)
            doomed = field.worker(lease=0.5, point="claimed")
            assert doomed.wait() == -signal.SIGKILL
            field.worker(lease=0.5)
            result = await storage.wait_result(task_id, LONG_S)
            assert result is not None
            [lost] = await storage.history(task_id)
            assert lost.epoch == 1


async def test_an_eta_wakes_the_sleeper_without_anybody_else(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        await storage.enqueue(Task("a.b", eta=datetime.now(UTC) + timedelta(seconds=0.3)))
        assert await storage.claim("ann") == []
        assert 0.1 < await woken(storage) < 5.0
        assert await storage.claim("ann")


async def test_a_socket_bound_in_the_tick_of_the_listing_is_rung(database: Path) -> None:
    """The clock of a file system ticks; two changes within a tick leave the folder's time as it was."""
    beside = Beside(database)
    ears: list[Ear] = []
    try:
        ears.append(Ear(beside, "due"))
        beside.ring(("due",))
        before = beside.folder.stat()
        ears.append(Ear(beside, "due"))
        os.utime(beside.folder, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same tick
        beside.ring(("due",))
        heard = asyncio.Event()
        with ears[1].listening(heard.set):
            async with asyncio.timeout(5):
                await heard.wait()
    finally:
        for ear in ears:
            ear.close()
        beside.close()


async def test_a_dead_sleeper_is_forgotten_at_the_next_ring(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        sleeper = field.worker()
        folder = Path(f"{field.database}-omniq")

        async def has_socket() -> bool:
            return any(path.name.startswith(f"{sleeper.pid}-") for path in folder.iterdir())

        await eventually(has_socket)
        sleeper.kill()
        await storage.enqueue(Task("a.b"))
        assert not await has_socket()


async def test_a_full_inbox_blocks_nobody(database: Path) -> None:
    """A process that listens and never reads must not stop those that ring."""
    async with SQLiteStorage(database) as storage:
        deaf = Ear(Beside(database), "due")
        begin = time.monotonic()
        for _ in range(2000):
            deaf._beside.ring(("due",))
        assert time.monotonic() - begin < 5.0
        await storage.enqueue(Task("a.b"))
        deaf.close()
        deaf._beside.close()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A module with a body that notes when it ran."""
    ran: list[float] = []
    module = ModuleType("wake_jobs")

    async def note() -> None:
        ran.append(time.monotonic())

    module.note = note  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wake_jobs", module)
    return ran


async def test_a_pool_is_woken_long_before_it_would_poll(database: Path, job: list[float]) -> None:
    async with SQLiteStorage(database) as storage, AsyncWorkerPool(storage.clone(), poll_interval=LONG_S):
        for count in (1, 2, 3):
            await storage.enqueue(Task("wake_jobs.note"))

            async def ran(count: int = count) -> bool:
                return len(job) == count

            await eventually(ran, within_s=LONG_S / 2)


# A loop that somebody closed while a storage slept on it; then the same thread, and one that may have got
# the dead thread's number, enqueue. What is left of the loop complains when it is collected, so: a process.
LEFT_ASLEEP = """
import asyncio, sys, threading
from omniq import Task
from omniq.storage import MemoryStorage, SQLiteStorage

left = []

def leave_asleep(storage):
    async def sleep():
        await storage.open()
        left.append(asyncio.ensure_future(storage.wait(60)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(sleep())
    loop.close()

async def enqueue(storage):
    async with storage:
        return [bool(await storage.enqueue(Task("a.b"))) for _ in range(3)]

for storage in (MemoryStorage(), SQLiteStorage(sys.argv[1])):
    leave_asleep(storage.clone())
    print("SAME", asyncio.run(enqueue(storage.clone())), flush=True)
    thread = threading.Thread(target=leave_asleep, args=(storage.clone(),))
    thread.start()
    thread.join()
    twin = storage.clone()
    thread = threading.Thread(target=lambda: print("OTHER", asyncio.run(enqueue(twin)), flush=True))
    thread.start()
    thread.join()

async def here():
    async with SQLiteStorage(sys.argv[1]) as storage:
        enqueued = await asyncio.to_thread(storage.enqueue_here, [Task("a.b")])
        print("HERE", [one.created for one in enqueued], flush=True)

asyncio.run(here())
"""


def test_a_loop_that_was_closed_asleep_harms_no_enqueue(field: Field) -> None:
    script = field.script(LEFT_ASLEEP, field.database)
    for word in ("SAME", "OTHER", "SAME", "OTHER"):
        assert script.line(word) == "[True, True, True]"
    assert script.line("HERE") == "[True]"
