"""A store's server is stopped and started under an open dashboard: told at once, mended by itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from omniq import Task
from omniq.storage.url import open_storage
from omniq.task import WorkerInfo
from tests.postgres import server as postgres
from tests.redis import server as redis
from tests.servers import PrivateServer
from tests.web.conftest import apart, served_url

STOPS: dict[str, Callable[[Any], None]] = {
    "stopped": lambda server: server.stop(),
    "killed": lambda server: server.stop(
        "immediate" if isinstance(server, postgres.Cluster) else signal.SIGKILL
    ),
}


@pytest.fixture(params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    """One of this test's own."""
    with ExitStack() as stack:
        server: PrivateServer
        if request.param == "redis":
            server = stack.enter_context(redis.private())
        else:
            try:
                server = stack.enter_context(postgres.private())
            except postgres.NoServer as why:
                postgres.missing(why)
                raise
        apart(lambda: asyncio.run(migrate(server.address)))
        yield server


async def migrate(url: str) -> None:
    storage = open_storage(url)
    await storage.migrate()
    await storage.close()


def put(url: str, *ids: str) -> None:
    async def work() -> None:
        async with open_storage(url) as storage:
            await storage.beat(WorkerInfo("ann@host:1:x", "ann", "host", 1, ("mail",), 4, 0))
            await storage.enqueue_many([Task("shop.mail", id=one, queue="mail") for one in ids])

    apart(lambda: asyncio.run(work()))


@pytest.mark.bound(120)
@pytest.mark.parametrize("how", STOPS)
def test_the_pages_live_through_a_restart_of_the_server(server: PrivateServer, how: str, page: Any) -> None:
    """Each page that is open sees the trouble and the news after it, and nobody loads anything again."""
    put(server.address, "before")
    with served_url(server.address, "--allow-actions") as address:
        page.goto(f"{address}#/queues")
        row = page.locator('tr[data-queue="mail"]')
        row.get_by_role("link", name="1", exact=True).wait_for()
        page.locator(".dot.good, .dot.bad").wait_for()

        STOPS[how](server)
        page.locator("#trouble", has_text="The store does not answer").wait_for()
        page.locator("#trouble", has_text="What is shown is of").wait_for()
        row.wait_for()  # what was last known stays
        for place in ("Tasks", "Workers", "Schedules"):
            page.locator("#nav a", has_text=place).click()
            page.locator(f".page.{place.lower()} .card.bad").wait_for()
        page.locator("#nav a", has_text="Queues").click()
        row.get_by_role("button", name="Pause").click()
        page.locator(".toast.bad").first.wait_for()
        page.locator("#nav a", has_text="Workers").click()
        page.locator(".card.bad").wait_for()

        server.start()
        page.locator(".worker", has_text="ann").wait_for()
        page.locator("#trouble").wait_for(state="hidden")
        put(server.address, "after")
        page.locator("#nav a", has_text="Queues").click()
        row.get_by_role("link", name="2", exact=True).wait_for()
        row.get_by_role("button", name="Pause").click()
        row.get_by_role("button", name="Resume").wait_for()
    refused = [one for one in page.wrong if "503" not in one]  # the browser names each refusal in its console
    assert refused == []


@pytest.mark.bound(120)
@pytest.mark.parametrize("how", STOPS)
def test_whoever_asks_is_told_while_the_server_is_away(server: PrivateServer, how: str) -> None:
    """Without a browser: every look answers 503 within its bound, `/healthz` too, and 200 afterwards."""
    looks = (
        "api/overview",
        "api/tasks",
        "api/workers",
        "api/schedules",
        "api/task?id=before",
        "metrics",
        "healthz",
    )
    put(server.address, "before")
    token = "sixteen characters at least"
    known = {"authorization": f"Bearer {token}"}
    with (
        served_url(server.address, "--token", token) as address,
        httpx.Client(base_url=address, timeout=30, headers=known) as asking,
    ):
        assert {look: asking.get(look).status_code for look in looks} == dict.fromkeys(looks, 200)
        STOPS[how](server)
        answers = {look: asking.get(look) for look in looks}
        assert {look: answer.status_code for look, answer in answers.items()} == dict.fromkeys(looks, 503)
        assert server.folder.name in answers["healthz"].json()["problems"][0]
        assert httpx.get(f"{address}healthz").json() == {"ok": False}, "no address for strangers"
        server.start()
        assert {look: asking.get(look).status_code for look in looks} == dict.fromkeys(looks, 200)
