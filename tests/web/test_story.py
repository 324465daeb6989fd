"""At night, by the pages alone: a million tasks, and one is late. Which, why, who holds it; repair it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.million import fill_sqlite
from omniq import Task, WorkerPool
from omniq.storage.url import open_storage
from tests.postgres.stores import fresh_schema
from tests.redis.stores import fresh_namespace
from tests.web.conftest import apart, served_url

MILLION = 1_000_000
WITHIN_S = 60.0
CHARGE = "tests.web.bodies.charge"


def add(url: str, *tasks: Task) -> None:
    async def work() -> None:
        async with open_storage(url) as storage:
            await storage.enqueue_many(tasks)

    apart(lambda: asyncio.run(work()))


def status_of(url: str, task_id: str) -> str:
    async def work() -> str:
        async with open_storage(url) as storage:
            task = await storage.get_task(task_id)
            assert task is not None
            return str(task.status)

    return apart(lambda: asyncio.run(work()))


@contextmanager
def working(url: str) -> Iterator[None]:
    """A real worker with one slot, that serves one queue."""
    pool = WorkerPool(
        open_storage(url), concurrency=1, queues=["billing"], name="cashier", allow=["tests.web.bodies.*"]
    )
    apart(pool.start)
    try:
        yield
    finally:
        apart(lambda: pool.stop(timeout=1))


def late_why_who_and_repair(url: str, page: Any) -> None:
    """One task holds the only slot and does not end; another is late because of it."""
    add(url, Task(CHARGE, (1,), id="stuck", queue="billing"))
    with working(url), served_url(url, "--allow-actions") as address:
        late = Task(CHARGE, (2,), id="late", queue="billing", eta=datetime.now(UTC) - timedelta(minutes=40))
        until = time.monotonic() + 60
        while status_of(url, "stuck") != "RUNNING" and time.monotonic() < until:
            time.sleep(0.05)
        # More was enqueued since than a page of the newest reaches behind.
        add(url, late, *(Task("shop.reports.render", queue="reports") for _ in range(1_500)))

        began = time.monotonic()
        page.goto(address)
        # What is late: the first page says so, beside the backlog that nobody serves.
        row = page.locator("#late tr", has_text="billing")
        row.get_by_role("link", name=CHARGE).click()
        # Why: every slot of those who serve it is taken.
        page.get_by_text("no slot is free: 1 of 1 taken, on the only worker that serves it").wait_for()
        # Who holds it: the worker's page shows what is in its slot, and leads there.
        page.get_by_role("link", name="Workers").click()
        worker = page.locator(".worker", has_text="cashier")
        worker.get_by_role("link", name=CHARGE).click()
        page.locator("#why", has_text="holds it since").wait_for()
        assert "cashier@" in page.locator("#why").inner_text()
        # Repair it: stop what is stuck; what was late runs.
        page.get_by_role("button", name="Cancel").click()
        page.locator("#confirm").click()
        page.locator("h1 .pill", has_text="cancelled").wait_for(timeout=30_000)
        page.get_by_role("link", name="Queues").click()
        done = page.locator('tr[data-queue="billing"] a[href*="status=SUCCESS"]', has_text="1")
        done.click(timeout=30_000)
        page.get_by_role("link", name=CHARGE).click()
        page.locator("h1 .pill", has_text="success").wait_for(timeout=30_000)
        page.locator("code", has_text="late").wait_for()
        took_s = time.monotonic() - began
    assert page.wrong == []
    assert took_s < WITHIN_S
    assert status_of(url, "late") == "SUCCESS"


@pytest.mark.bound(240)
def test_what_is_late_why_who_holds_it_and_repair_it(tmp_path: Path, page: Any) -> None:
    """On 1,000,000 tasks with one stuck among them, in under a minute."""
    apart(lambda: fill_sqlite(tmp_path / "jobs.db", MILLION))
    late_why_who_and_repair(f"sqlite:///{tmp_path}/jobs.db", page)


@pytest.fixture
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        with made_apart(fresh_schema(dsn)) as schema:
            yield f"{dsn}{'&' if '?' in dsn else '?'}schema={schema}"
    else:
        url: str = request.getfixturevalue("redis_url")
        with made_apart(fresh_namespace(url)) as namespace:
            yield f"{url}?namespace={namespace}"


@contextmanager
def made_apart(place: AbstractContextManager[str]) -> Iterator[str]:
    made = apart(place.__enter__)
    try:
        yield made
    finally:
        apart(lambda: place.__exit__(None, None, None))


@pytest.mark.bound(120)
@pytest.mark.parametrize("server_url", ["postgres", "redis"], indirect=True)
def test_the_same_story_on_a_server(server_url: str, page: Any) -> None:
    """Fewer tasks beside it: what a million cost there is measured by benchmarks/pages.py."""
    add(server_url, *(Task("shop.reports.render", queue="reports") for _ in range(200)))
    late_why_who_and_repair(server_url, page)
