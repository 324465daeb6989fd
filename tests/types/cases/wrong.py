"""Calls that a type checker must refuse: every line that ends in `# refused`, and no other."""

from omniq import AsyncWorkerPool, Context, OmniQ, Task, TaskHandle, Worker, WorkerPool
from omniq.storage import MemoryStorage

q = OmniQ("memory://")


@q.task
def send(to: str, body: str = "") -> int:
    return len(to + body)


@q.task(max_retries=3)
async def fetch(url: str, *, retries: int = 3) -> bytes:
    return url.encode() * retries


@q.task
def report(ctx: Context, rows: int) -> str:
    return ctx.task_id * rows


def enqueue() -> None:
    send.enqueue()  # refused
    send.enqueue(7)  # refused
    send.enqueue("ann", "hi", "again")  # refused
    send.enqueue("ann", bdy="hi")  # refused
    send.enqueue(to="ann", body=7)  # refused
    send.delay(7)  # refused
    fetch.enqueue("a", 3)  # refused
    fetch.enqueue(b"a")  # refused
    report.enqueue("many")  # refused
    report.enqueue()  # refused


async def aenqueue() -> None:
    await send.aenqueue()  # refused
    await send.aenqueue("ann", body=7)  # refused
    await fetch.aenqueue("a", retries="3")  # refused
    await fetch.aenqueue(url=None)  # refused


def options() -> None:
    send.options(dely=60)  # refused
    send.options(delay="soon")  # refused
    send.options(priority="high")  # refused
    send.options(on_conflict="explode")  # refused
    send.options(eta=60)  # refused
    send.options(60)  # refused
    send.options(delay=60).enqueue(7)  # refused
    q.task(timeot=3)  # refused
    q.task(max_retries="3")  # refused
    q.task(executor="gpu")  # refused


def call() -> None:
    send.call()  # refused
    send.call("ann", 7)  # refused
    fetch.options(queue="slow").call(7)  # refused
    q.enqueue_many([send("ann")])  # refused
    q.enqueue_many([send])  # refused


async def result() -> None:
    text: str = send.enqueue("ann").result()  # refused
    number: int = (await fetch.aenqueue("a")).result()  # refused
    other: int = await (await fetch.aenqueue("a")).aresult()  # refused
    send.enqueue("ann").result("soon")  # refused
    send.enqueue("ann").result(within=3)  # refused
    handle: TaskHandle[str] = send.enqueue("ann")  # refused
    print(text, number, other, handle)


def plain_calls() -> None:
    send(7)  # refused
    print(send("ann").upper())  # refused


def workers() -> None:
    AsyncWorkerPool("sqlite:///jobs.db")  # refused
    AsyncWorkerPool(MemoryStorage(), concurrency="3")  # refused
    AsyncWorkerPool(MemoryStorage(), no_such_option=3)  # refused
    AsyncWorkerPool(MemoryStorage()).stop(now=True)  # refused
    WorkerPool("sqlite:///jobs.db")  # refused
    WorkerPool(MemoryStorage(), "3")  # refused
    WorkerPool(MemoryStorage(), no_such_option=3)  # refused
    WorkerPool(MemoryStorage(), lease="long")  # refused
    q.worker(concurency=3)  # refused
    q.worker(concurrency="3")  # refused
    q.worker(queues=[7])  # refused
    q.async_worker(no_such_option=3)  # refused
    q.async_worker(poll_interval="soon")  # refused
    Worker(None)  # refused
    Task("a.b", eta="tomorrow")  # refused
    Task("a.b", (), {}, "id")  # refused
    OmniQ(7)  # refused
    OmniQ(max_payload="1 MiB")  # refused
    Task("a.b", priority="high")  # refused


def schedules() -> None:
    q.schedule("a", send, every=5)  # refused
    q.schedule("a", send.call("ann"), every="5")  # refused
    q.schedule("a", send.call("ann"), cron="* * * * *", catch_up="some")  # refused
    q.schedule("a", send.call("ann"), evry=5)  # refused
    q.limit_queue("mail", "many")  # refused
