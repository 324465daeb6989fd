"""Calls that a type checker must accept, and the types that it must see."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import assert_type

from omniq import (
    AsyncWorkerPool,
    Context,
    OmniQ,
    Task,
    TaskError,
    TaskHandle,
    TaskResult,
    TaskStatus,
    Worker,
    WorkerPool,
    context,
)
from omniq.schedule import Schedule
from omniq.storage import MemoryStorage, SQLiteStorage, open_storage

q = OmniQ("memory://", result_ttl=timedelta(days=1), max_payload=1 << 20)


@q.task
def send(to: str, body: str = "") -> int:
    return len(to + body)


@q.task
async def fetch(url: str, *, retries: int = 3) -> bytes:
    return url.encode() * retries


@q.task(max_retries=3, timeout=30, queue="mail", name="mail.notify", aliases=["old.notify"])
def notify(user: int) -> None: ...


@q.task(priority=5)
async def collect(*numbers: int, **named: str) -> dict[str, int]:
    return {"sum": sum(numbers), **{key: len(value) for key, value in named.items()}}


@q.task
def report(ctx: Context, rows: int) -> str:
    """A context is not part of what callers pass."""
    ctx.progress(rows, rows)
    return ctx.task_id


def blocking() -> None:
    assert_type(send("ann", body="hi"), int)
    assert_type(send.enqueue("ann", body="hi"), TaskHandle[int])
    assert_type(send.enqueue("ann").result(timeout=10), int)
    assert_type(send.delay("ann"), TaskHandle[int])
    assert_type(fetch.enqueue("a", retries=1).result(timedelta(seconds=1)), bytes)
    assert_type(notify.enqueue(7).status(), TaskStatus)
    assert_type(collect.enqueue(1, 2, a="b").result(), dict[str, int])
    assert_type(send.options(delay=60, priority=5, unique_key="ann").enqueue("ann"), TaskHandle[int])
    later = send.options(eta=datetime.now(UTC), expires=5, timeout=timedelta(1))
    assert_type(later.enqueue("a"), TaskHandle[int])
    assert_type(report.enqueue(7), TaskHandle[str])
    assert_type(report.enqueue(rows=7).result(), str)
    q.enqueue_many([send.call("ann"), fetch.options(queue="slow").call("x"), notify.call(user=1)])
    q.handle("id").cancel()
    q.worker(queues=["mail"], lease=timedelta(seconds=30), allow=["mail.*"], poll_interval=1, name="mail")
    WorkerPool(MemoryStorage(), 3, 1.0, base_retry_delay=2, queues=("mail",), wake=False)
    with q.worker(concurrency=5) as pool:
        assert_type(pool.running, bool)


async def asynchronous() -> None:
    assert_type(await fetch("a"), bytes)
    assert_type(await send.aenqueue("ann"), TaskHandle[int])
    assert_type(await (await send.aenqueue("ann")).aresult(), int)
    assert_type(await (await fetch.options(max_retries=1).aenqueue("x", retries=2)).aresult(timeout=1), bytes)
    assert_type(await (await report.aenqueue(7)).aresult(), str)
    await q.aenqueue_many([send.call("a"), send.call("b", body="c")])
    async with q.async_worker(concurrency=2, max_retry_delay=60):
        pass


async def schedules() -> None:
    assert_type(q.schedule("a", send.call("ann"), every=timedelta(minutes=5)), Schedule)
    await q.aschedule("b", fetch.call("x"), cron="*/5 * * * *", tz="Europe/Berlin", overlap="skip")
    q.limit_queue("mail", max_depth=None)


async def seeds() -> None:
    storage = SQLiteStorage("jobs.db")
    task_id = await storage.enqueue(Task(func_path="a.b", args=("a.png",), max_retries=3))
    assert_type(await storage.get_result(task_id), TaskResult | None)
    pool = AsyncWorkerPool(storage, concurrency=10, poll_interval=1.0, base_retry_delay=1.0)
    await pool.start()
    await pool.stop(timeout=5, cancel_in_flight=True)
    WorkerPool(MemoryStorage(), 3, poll_interval=timedelta(seconds=1)).start()
    worker = Worker(open_storage("memory://"), max_concurrency=3, poll_interval=1)
    await worker.stop()
    error = TaskError("ValueError", "no")
    assert_type(error.kind == "timeout", bool)
    assert_type(context().attempt, int)


def covariant(handle: TaskHandle[int]) -> int:
    return handle.result() + 1


asyncio.run(seeds())
