"""An application as its authors wrote it; its store is nowhere that a test could reach."""

from __future__ import annotations

from omniq import Context, OmniQ, Retry

q = OmniQ("sqlite:////nonexistent/folder/jobs.db")
sent: list[str] = []
tries: list[int] = []


@q.task(name="shop.send")
def send(to: str) -> int:
    sent.append(to)
    return len(to)


@q.task(name="shop.order")
async def order(*people: str) -> int:
    for person in people:
        await send.aenqueue(person)
    return len(people)


@q.task(name="shop.order_in_thread")
def order_in_thread(*people: str) -> list[str]:
    return [send.enqueue(person).id for person in people]


@q.task(name="shop.flaky", max_retries=3)
def flaky(ctx: Context) -> int:
    tries.append(ctx.attempt)
    if ctx.attempt < 3:
        raise ConnectionError("not yet")
    return ctx.attempt


@q.task(name="shop.broken", max_retries=3)
def broken() -> None:
    raise ValueError("it is broken")


@q.task(name="shop.poll")
async def poll() -> None:
    tries.append(1)
    await poll.aenqueue()


@q.task(name="shop.poll_in_thread")
def poll_in_thread() -> None:
    tries.append(1)
    poll_in_thread.enqueue()


@q.task(name="shop.insist", max_retries=1_000_000)
async def insist() -> None:
    tries.append(1)
    raise Retry(0)
