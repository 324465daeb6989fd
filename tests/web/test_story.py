"""At night, by the pages alone: a million tasks, and one is late. Which, why, who holds it; repair it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from omniq import Task, WorkerPool
from omniq.storage import SQLiteStorage
from tests.web.conftest import apart, served
from tests.web.million import fill

MILLION = 1_000_000
WITHIN_S = 60.0
CHARGE = "tests.web.bodies.charge"


def add(database: Path, task: Task) -> None:
    async def work() -> None:
        async with SQLiteStorage(database, durability="relaxed") as storage:
            await storage.enqueue(task)

    apart(lambda: asyncio.run(work()))


def status_of(database: Path, task_id: str) -> str:
    async def work() -> str:
        async with SQLiteStorage(database, durability="relaxed") as storage:
            task = await storage.get_task(task_id)
            assert task is not None
            return str(task.status)

    return apart(lambda: asyncio.run(work()))


@contextmanager
def working(database: Path) -> Iterator[None]:
    """A real worker with one slot, that serves one queue."""
    storage = SQLiteStorage(database, durability="relaxed")
    pool = WorkerPool(
        storage, concurrency=1, queues=["billing"], name="cashier", allow=["tests.web.bodies.*"]
    )
    apart(pool.start)
    try:
        yield
    finally:
        apart(lambda: pool.stop(timeout=1))


@pytest.mark.bound(240)
def test_what_is_late_why_who_holds_it_and_repair_it(tmp_path: Path, page: Any) -> None:
    """Issue 7: on 1,000,000 tasks with one stuck among them, in under a minute."""
    database = tmp_path / "jobs.db"
    apart(lambda: fill(database, MILLION))
    add(database, Task(CHARGE, (1,), id="stuck", queue="billing"))
    with working(database), served(database, "--allow-actions") as address:
        late = Task(CHARGE, (2,), id="late", queue="billing", eta=datetime.now(UTC) - timedelta(minutes=40))
        until = time.monotonic() + 60
        while status_of(database, "stuck") != "RUNNING" and time.monotonic() < until:
            time.sleep(0.05)
        add(database, late)

        began = time.monotonic()
        page.goto(address)
        # What is late: the first page says so, beside the backlog that nobody serves.
        row = page.locator("#late tr", has_text="billing")
        row.get_by_role("link", name=CHARGE).click()
        # Why: every slot of those who serve it is taken.
        page.get_by_text("all 1 slots of the 1 workers that serve it are taken").wait_for()
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
        page.goto(f"{address}#/task/late")
        page.locator("h1 .pill", has_text="success").wait_for(timeout=30_000)
        took_s = time.monotonic() - began
    assert page.wrong == []
    assert took_s < WITHIN_S
    assert status_of(database, "late") == "SUCCESS"
