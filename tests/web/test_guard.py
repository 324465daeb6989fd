"""Safe by default: every route, without a browser. S8, S9, S11, S12."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount

from omniq import OmniQ, Task, TaskError
from omniq.errors import InvalidOption
from omniq.schedule import Schedule
from omniq.storage import MemoryStorage
from omniq.task import Head, Settlement, TaskFilter, WorkerInfo, replace
from omniq.testing import VirtualClock
from omniq.web import Dashboard, Settings, events, metrics, redacting
from omniq.web.application import filter_of, limit_of
from omniq.web.events import Live
from omniq.web.guarding import CSRF_HEADER, HEADERS, OPEN_PATHS, is_loopback

TOKEN = "a token that is long enough"
OURS = "http://127.0.0.1:8383"
ACTIONS = {
    "/api/task/{action}": ("retry", {"id": "t1"}),
    "/api/queue/{action}": ("pause", {"queue": "mail"}),
    "/api/schedule/{action}": ("pause", {"name": "nightly"}),
}


@asynccontextmanager
async def client(dashboard: Dashboard, base: str = OURS, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=dashboard)
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as asking:
        yield asking
    await dashboard.close()


def routes(dashboard: Dashboard) -> list[tuple[str, str]]:
    """Every path with each of its methods, with something to act on where it takes that."""
    found = []
    for route in dashboard.routes():
        action = ACTIONS.get(route.path, ("", {}))[0]
        path = route.path.replace("{action}", action).replace("{name}", "app.js")
        found += [(method, path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


def body_for(path: str) -> dict[str, str]:
    bodies = {route.replace("{action}", action): body for route, (action, body) in ACTIONS.items()}
    return bodies.get(path, {"token": "wrong"})


def storage() -> MemoryStorage:
    return MemoryStorage()


async def test_every_route_needs_the_token() -> None:
    """S8: walks the route table, so that a new route cannot be forgotten."""
    dashboard = Dashboard(storage(), Settings(token=TOKEN, allow_actions=True))
    async with client(dashboard) as asking:
        for method, path in routes(dashboard):
            if path in OPEN_PATHS and method == "GET":
                continue
            if path == "/api/events":
                answer = await asking.get(path)
            else:
                answer = await asking.request(method, path, json=body_for(path) if method == "POST" else None)
            refused = answer.status_code in (401, 403)
            to_login = answer.status_code == 303 and answer.headers["location"] == "/login"
            assert refused or to_login, (method, path, answer.status_code)


async def test_with_the_token_every_look_is_answered() -> None:
    store = storage()
    await store.enqueue(Task("a.b", id="t1"))
    dashboard = Dashboard(store, Settings(token=TOKEN))
    async with client(dashboard, authorization=f"Bearer {TOKEN}") as asking:
        for method, path in routes(dashboard):
            if method == "GET" and path != "/api/events":
                answer = await asking.get(path, params={"id": "t1"})
                assert answer.status_code == 200, (path, answer.text)
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    await store.close()


@pytest.mark.parametrize("token", ["", "fifteen letters"])
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    """Also where it is mounted: an empty variable must not open the door to an empty token."""
    with pytest.raises(InvalidOption, match="at least 16"):
        OmniQ(storage()).asgi_app(token=token)


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("fd00::12", "[fd00::12]"),
        ("FD00:0:0::12", "[fd00::12]"),
        ("[fd00::12]", "[fd00::12]"),
        ("Ops", "ops"),
    ],
)
async def test_a_name_is_known_as_browsers_write_it(host: str, asked: str) -> None:
    dashboard = Dashboard(storage(), Settings(hosts=(host,)))
    async with client(dashboard, host=f"{asked}:8383") as asking:
        assert (await asking.get("/api/session")).status_code == 200
        told = await asking.get("/api/session", headers={"host": "elsewhere"})
        assert "--allow-host" in told.json()["error"]


async def test_signing_in_gives_a_cookie_that_no_script_can_read() -> None:
    dashboard = Dashboard(storage(), Settings(token=TOKEN))
    async with client(dashboard) as asking:
        assert (await asking.get("/")).headers["location"] == "/login"
        answer = await asking.post("/login", json={"token": TOKEN})
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert (await asking.get("/api/overview")).status_code == 200


@pytest.mark.parametrize("settings", [Settings(), Settings(token=TOKEN)])
async def test_without_leave_nothing_can_be_changed(settings: Settings) -> None:
    """S8: read-only, also for those who have the token and the page's word."""
    store = storage()
    dashboard = Dashboard(store, settings)
    headers = {"authorization": f"Bearer {TOKEN}", CSRF_HEADER: dashboard.guard.csrf}
    async with client(dashboard, **headers) as asking:
        for method, path in routes(dashboard):
            if method != "GET" and path != "/login":
                answer = await asking.request(method, path, json=body_for(path))
                assert answer.status_code == 403, path
                assert "--allow-actions" in answer.json()["error"]
    assert await store.paused() == set()
    await store.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),  # a page that does not know the word
        ({CSRF_HEADER: "guessed"}, 403),
        ({CSRF_HEADER: "<right>"}, 200),
        ({CSRF_HEADER: "<right>", "origin": OURS}, 200),
        ({CSRF_HEADER: "<right>", "origin": "http://evil.example"}, 403),
        ({CSRF_HEADER: "<right>", "origin": "null"}, 403),
        ({CSRF_HEADER: "<right>", "sec-fetch-site": "cross-site"}, 403),
        ({CSRF_HEADER: "<right>", "content-type": "text/plain"}, 400),
        ({CSRF_HEADER: "<right>", "content-type": "application/x-www-form-urlencoded"}, 400),
        ({CSRF_HEADER: "<right>", "host": "evil.example"}, 403),
    ],
)
async def test_another_site_cannot_act(headers: dict[str, str], status: int) -> None:
    """S9: every mutating route, by the header, the origin, the host and the type of what is sent."""
    store = storage()
    await store.enqueue(Task("a.b", id="t1"))
    await store.cancel("t1")
    await store.save_schedule(Schedule(name="nightly", call=Task("a.b"), every=60))
    dashboard = Dashboard(store, Settings(allow_actions=True))
    said = {name: value.replace("<right>", dashboard.guard.csrf) for name, value in headers.items()}
    async with client(dashboard, **({"content-type": "application/json"} | said)) as asking:
        for method, path in routes(dashboard):
            if method != "GET" and path != "/login":
                body = str(body_for(path)).replace("'", '"')
                answer = await asking.request(method, path, content=body)
                assert answer.status_code == status, (path, answer.text)
    await store.close()


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
async def test_another_site_cannot_listen(headers: dict[str, str]) -> None:
    """S9: neither to what is pushed nor to any other answer, whatever its browser would let through."""
    dashboard = Dashboard(storage())
    async with client(dashboard, **headers) as asking:
        for method, path in routes(dashboard):
            if method == "GET" and path.startswith("/api/"):
                assert (await asking.get(path)).status_code == 403, path


async def test_schedules_are_shown_without_arguments_and_obey() -> None:
    """S12, and each verb; what is not there is told."""
    store = storage()
    call = Task("a.b", ("c4nary",), {"note": "c4nary"}, queue="mail")
    await store.save_schedule(Schedule(name="nightly", call=call, cron="0 2 * * *", tz="Europe/Berlin"))
    dashboard = Dashboard(store, Settings(allow_actions=True, show_args=True))
    async with client(dashboard, **{CSRF_HEADER: dashboard.guard.csrf}) as asking:

        async def tell(action: str, body: object) -> httpx.Response:
            return await asking.post(f"/api/schedule/{action}", json=body)

        shown = await asking.get("/api/schedules")
        assert "c4nary" not in shown.text
        [one] = shown.json()["schedules"]
        assert (one["name"], one["cron"], one["tz"]) == ("nightly", "0 2 * * *", "Europe/Berlin")
        assert (one["queue"], one["paused"]) == ("mail", False)
        assert (await tell("pause", {"name": "nightly"})).status_code == 200
        assert [known.paused for known in await store.schedules()] == [True]
        made = (await tell("run", {"name": "nightly"})).json()["id"]
        assert (await store.get_task(made)) is not None
        assert (await tell("resume", {"name": "nightly"})).status_code == 200
        assert [known.paused for known in await store.schedules()] == [False]
        assert (await tell("pause", {"name": "nobody"})).status_code == 404
        assert (await tell("remove", {"name": "nightly"})).status_code == 404
        assert (await tell("pause", {"name": 7})).status_code == 400
    assert len(await store.schedules()) == 1
    await store.close()


async def test_nothing_changes_by_looking() -> None:
    """S9: no state change on GET."""
    store = storage()
    await store.enqueue(Task("a.b", id="t1", queue="mail"))
    dashboard = Dashboard(store, Settings(allow_actions=True))
    async with client(dashboard) as asking:
        for method, path in routes(dashboard):
            if method == "POST" and path != "/login":
                assert (await asking.get(path, params=body_for(path))).status_code == 405
    await store.close()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""])
async def test_a_name_that_was_bent_here_is_not_served(host: str) -> None:
    """S9: DNS rebinding."""
    dashboard = Dashboard(storage(), Settings())
    async with client(dashboard, host=host) as asking:
        for method, path in routes(dashboard):
            if path != "/healthz":
                answer = await asking.request(method, path)
                assert answer.status_code == 403, path
                assert "access-control-allow-origin" not in answer.headers


async def test_healthz_is_not_well_behind_a_blocked_loop() -> None:
    """Its slots are full, and nothing in them moves."""
    store = storage()
    info = WorkerInfo("ann", "ann", "host", 1, None, 1, 1, blocked_s=90.0)
    await store.enqueue(Task("a.b", eta=datetime.now(UTC) - timedelta(minutes=5)))
    async with client(Dashboard(store)) as asking:
        await store.beat(info)
        answer = await asking.get("/healthz")
        assert answer.status_code == 503
        assert "ann: its event loop has not moved for 90 s" in answer.text
        await store.beat(replace(info, blocked_s=0.0))
        assert (await asking.get("/healthz")).status_code == 200
    await store.close()


async def test_healthz_says_no_names_to_strangers() -> None:
    store = storage()
    overdue = datetime.now(UTC) - timedelta(minutes=5)
    await store.enqueue(Task("a.b", queue="secret-project", eta=overdue))
    dashboard = Dashboard(store, Settings(token=TOKEN))
    async with client(dashboard, base="http://10.1.2.3") as asking:
        answer = await asking.get("/healthz")
        assert (answer.status_code, answer.json()) == (503, {"ok": False})
        known = await asking.get("/healthz", headers={"authorization": f"Bearer {TOKEN}"})
        assert "secret-project" in known.text
    await store.close()


async def test_healthz_says_no_names_to_a_page_whose_name_was_bent_here() -> None:
    """S9: without a token everybody is known, but not everybody asks for us by our name."""
    store = storage()
    await store.enqueue(Task("a.b", queue="secret-project", eta=datetime.now(UTC) - timedelta(minutes=5)))
    async with client(Dashboard(store)) as asking:
        assert (await asking.get("/healthz", headers={"host": "evil.example"})).json() == {"ok": False}
        assert "secret-project" in (await asking.get("/healthz")).text
    await store.close()


@pytest.mark.parametrize(
    ("asked", "limit"), [("999999999", 200), ("-5", 1), ("", 50), (None, 50), ("1" * 900, 200)]
)
def test_numbers_are_clamped(asked: str | None, limit: int) -> None:
    """S11."""
    assert limit_of(asked) == limit


@pytest.mark.parametrize(
    "asked",
    [
        {"status": "DONE"},
        {"limit": "ten"},
        {"enqueued_after": "yesterday"},
        {"finished_before": "9999-12-31T23:59:59-14:00"},
        {"queue": "\x00"},
    ],
)
def test_nonsense_is_told(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        limit_of(asked.get("limit"))
        filter_of(asked)


def test_a_long_text_is_cut() -> None:
    """S11: what is searched for is never longer than this, and never a pattern."""
    assert filter_of({"error": "(a+)+$" * 1000}) == TaskFilter(error=("(a+)+$" * 1000)[:200])


async def test_secrets_do_not_leave() -> None:
    """S12: arguments are hidden; shown, those named like a secret are not; nor are passwords in texts."""
    canary = "c4nary"
    store = storage()
    call = Task(
        "a.b",
        (f"postgresql://ann:{canary}@host/db", {"nested": {"api_key": canary}}),
        {"password": canary, "Authorization": f"Bearer {canary}", "size": 3},
        headers={"x-auth-token": canary, "trace": "ok"},
        id="t1",
    )
    await store.enqueue(call)
    [claimed] = await store.claim("ann")
    trace = f"connect(password='{canary}', url=redis://:{canary}@host)"
    await store.settle([Settlement.failed(claimed, TaskError("E", f"token={canary} is wrong", trace))])
    for settings in (Settings(), Settings(show_args=True)):
        dashboard = Dashboard(store, settings)
        async with client(dashboard) as asking:
            for path in ("/api/task?id=t1", "/api/tasks", "/api/overview", "/api/session", "/metrics"):
                answer = await asking.get(path)
                assert answer.status_code == 200
                assert canary not in answer.text, path
            shown = (await asking.get("/api/task?id=t1")).json()
            assert ("kwargs" in shown) is settings.show_args
            if settings.show_args:
                assert shown["kwargs"]["size"] == 3
    await store.close()


async def test_numbers_that_json_or_a_browser_has_not_are_shown_as_text() -> None:
    numbers = {
        "nan": (float("nan"), "nan"),
        "endless": (float("-inf"), "-inf"),
        "exact": (2**53, 2**53),
        "rounded": (2**53 + 1, "9007199254740993"),
        "long": (-(10**5000), "… a number of 16,610 bits"),
        "yes": (True, True),
        "half": (0.5, 0.5),
    }
    store = storage()
    for name, (said, _) in numbers.items():
        await store.enqueue(Task("a.b", (said,), {"n": said, "in": {1: [said]}}, id=name))
    async with client(Dashboard(store, Settings(show_args=True))) as asking:
        for name, (_, shown) in numbers.items():
            told = (await asking.get(f"/api/task?id={name}")).json()
            assert told["args"] == [shown]
            assert told["kwargs"] == {"n": shown, "in": {"1": [shown]}}
    await store.close()


@pytest.mark.parametrize(
    "said",
    [
        "token=" + "x" * 5_000 + "c4nary",  # a long one has its end hidden too
        "Authorization: Basic c4nary",
        "{'Authorization': 'Token c4nary'}",
        "password='two words of c4nary'",
        '"passphrase": "it\\"s c4nary"',
        "password=b'c4nary'",
        "{\\'password\\': \\'c4nary\\'}",  # the repr of a repr
        "AWS_SECRET_ACCESS_KEY=c4nary",
        "private_key => c4nary",
        "Bearer abc.c4nary",
        "Set-Cookie: sid=c4nary; path=/",
        "Cookie: a=b; sid=c4nary",
        "redis://:" + "p" * 900 + "@c4nary@host/0",
    ],
)
def test_a_text_keeps_its_secrets(said: str) -> None:
    """S12: whatever form they have that errors and logs usually give them."""
    assert "c4nary" not in redacting.text(f"before {said}\nafter", 10_000)
    assert redacting.text(f"before {said}\nafter", 10_000).endswith("\nafter")


def test_a_secret_at_the_cut_is_hidden() -> None:
    """What ends it, and says that it is one, stands behind the cut."""
    begun = "x" * (redacting.MAX_CHARS - 30) + " redis://ann:c4nary"
    assert "c4nary" not in redacting.text(begun + "y" * 100 + "@host/0")


@pytest.mark.parametrize("said", ["://:" * 9_000, "://a:" * 9_000, "password='" * 4_000, "token=" * 6_000])
def test_what_is_looked_through_for_secrets_is_looked_through_once(said: str) -> None:
    """S11."""
    began = time.process_time()
    redacting.text(said, redacting.MAX_TRACE_CHARS)
    assert time.process_time() - began < 0.2


async def test_other_cookies_of_this_host_are_in_nobodys_way() -> None:
    """Ports share their cookies: those of other programs, and of other dashboards."""
    ours = Dashboard(storage(), Settings(token=TOKEN))
    theirs = Dashboard(storage(), Settings(token=TOKEN))
    async with client(ours) as asking, client(theirs, base="http://127.0.0.1:8384") as other:
        cookies = [
            (await one.post("/login", json={"token": TOKEN})).headers["set-cookie"].partition(";")[0]
            for one in (asking, other)
        ]
        assert len({one.partition("=")[0] for one in cookies}) == 2, "each keeps its own"
        for others in ('prefs={"a": 1}', "é=1", "a b=c", "no value", cookies[1], "omniq_session=old"):
            said = {"cookie": f"{others}; {cookies[0]}".encode()}
            assert (await asking.get("/api/session", headers=said)).status_code == 200, others
        assert (await asking.get("/api/session", headers={"cookie": cookies[1]})).status_code == 401


async def test_mounted_the_cookie_is_for_its_own_pages() -> None:
    mounted = Starlette(routes=[Mount("/ops", Dashboard(storage(), Settings(token=TOKEN)))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(mounted), base_url=OURS) as asking:
        answer = await asking.post("/ops/login", json={"token": TOKEN})
        assert "path=/ops;" in answer.headers["set-cookie"].lower()
        assert (await asking.get("/ops/api/session")).status_code == 200


async def test_asking_only_for_the_head_of_the_stream_takes_no_place() -> None:
    dashboard = Dashboard(storage())
    async with client(dashboard) as asking:
        answer = await asyncio.wait_for(asking.head("/api/events"), 5)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert not dashboard.live._watchers


@pytest.mark.parametrize("origin", ["http://[::1", "http://a]b", "//", "\xff"])
async def test_an_origin_that_is_no_address_is_another_site(origin: str) -> None:
    dashboard = Dashboard(storage(), Settings(allow_actions=True))
    said = {"origin": origin.encode("latin-1"), CSRF_HEADER: dashboard.guard.csrf}
    async with client(dashboard) as asking:
        assert (await asking.get("/api/overview", headers=said)).status_code == 403
        answer = await asking.post("/api/queue/pause", json={"queue": "mail"}, headers=said)
        assert answer.status_code == 403


async def test_a_body_of_brackets_and_an_id_of_nothing_are_told() -> None:
    dashboard = Dashboard(storage(), Settings(allow_actions=True))
    headers = {CSRF_HEADER: dashboard.guard.csrf, "content-type": "application/json"}
    async with client(dashboard) as asking:
        for path in ("/login", "/api/task/retry"):
            for content in (b"[" * 4_000, b'{"id": "\xff"}'):
                assert (await asking.post(path, content=content, headers=headers)).status_code == 400
        for path in ("/api/task?id=%00", "/api/tasks?after=%00"):
            assert (await asking.get(path)).status_code == 400, path


async def scraped(store: MemoryStorage) -> dict[tuple[str, ...], float]:
    """What `/metrics` says, by name and the values of its labels."""
    async with client(Dashboard(store)) as asking:
        answer = await asking.get("/metrics")
    assert answer.status_code == 200
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in text_string_to_metric_families(answer.text)
        for one in family.samples
    }


async def test_a_queue_that_is_well_has_zeros_and_no_gaps() -> None:
    """What is missing until it happens hides its first time from a rate, and leaves a gap in a curve."""
    store = storage()
    await store.enqueue(Task("a.b", queue="mail"))
    await store.pause("closed")
    await store.pause("mail")
    await store.resume("mail")
    [claimed] = await store.claim("ann")
    seen = await scraped(store)
    assert seen["omniq_tasks", "mail", "pending"] == 0
    assert seen["omniq_oldest_due_seconds", "mail"] == 0
    assert (seen["omniq_queue_paused", "mail"], seen["omniq_queue_paused", "closed"]) == (0, 1)
    assert seen["omniq_task_events_total", "failed", "mail"] == 0
    await store.settle([Settlement.success(claimed, b"")])
    await store.delete(claimed.id)
    assert (await scraped(store))["omniq_tasks", "mail", "success"] == 0, "it held some once"
    await store.close()


async def test_of_thousands_of_queues_metrics_name_a_bounded_number() -> None:
    """A queue for each customer must not be a dozen series for each customer; nothing is left uncounted."""
    store = storage()
    many = metrics.MAX_QUEUES + 100
    await store.enqueue_many([Task("a.b", queue=f"q{n:04}") for n in range(many)])
    await store.enqueue_many([Task("a.b", queue="zz") for _ in range(3)])
    await store.pause(f"q{many - 1:04}")
    seen = await scraped(store)
    queues = {key[1] for key in seen if key[0] == "omniq_tasks"}
    assert len(queues) == metrics.MAX_QUEUES + 1
    assert seen["omniq_tasks", "zz", "pending"] == 3, "those that had most are named"
    assert sum(n for key, n in seen.items() if key[0] == "omniq_tasks") == many + 3
    events = [n for key, n in seen.items() if key[:2] == ("omniq_task_events_total", "enqueued")]
    assert (len(events), sum(events)) == (metrics.MAX_QUEUES + 1, many + 3)
    assert seen["omniq_queue_paused", metrics.OTHERS] == 1
    await store.close()


async def test_of_thousands_of_runs_the_longest_are_shown_and_all_are_counted() -> None:
    """S11, and what is looked for at night: one run that began before all others."""
    store = storage()
    for worker in ("old", "new"):
        await store.beat(WorkerInfo(worker, worker, "host", 1, None, 1_500))
    await store.enqueue(Task("a.b", id="0-stuck"))
    await store.claim("old", limit=1)
    for worker, many in (("old", 100), ("new", 1_400)):
        await store.enqueue_many([Task("a.b") for _ in range(many)])
        assert len(await store.claim(worker, limit=many)) == many
    async with client(Dashboard(store)) as asking:
        overview = (await asking.get("/api/overview")).json()
        assert overview["longest"][0]["id"] == "0-stuck"
        assert overview["workers"]["busy"] == 1_501
        told = (await asking.get("/api/workers")).json()["workers"]
        assert {one["name"]: one["in_flight"] for one in told} == {"old": 101, "new": 1_400}
        [old] = [one for one in told if one["name"] == "old"]
        assert old["slots"][0]["id"] == "0-stuck"
        assert sum(len(one["slots"]) for one in told) == 1_000
    await store.close()


async def test_of_thousands_of_workers_none_is_taken_for_gone() -> None:
    """S11: a bounded number is shown, with the one that is asked for; but all of them count."""
    store = storage()
    for n in range(300):
        queues = ("its-own",) if n == 0 else ("all",)
        functions = tuple(f"a.f{m}" for m in range(80)) if n == 1 else None
        await store.beat(WorkerInfo(f"w{n}", f"w{n}", "host", n, queues, 2, functions=functions))
    await store.enqueue(Task("a.b", id="held", queue="its-own"))
    await store.claim("w0", ["its-own"])
    await store.enqueue(Task("a.b", id="waits", queue="its-own"))
    async with client(Dashboard(store)) as asking:
        for task_id, because in (("held", "running"), ("waits", "next")):
            shown = (await asking.get("/api/task", params={"id": task_id})).json()
            assert [one["because"] for one in shown["why"]] == [because], shown["why"]
        told = (await asking.get("/api/workers", params={"id": "w0"})).json()
        [other, *_] = (await asking.get("/api/workers", params={"id": "w1"})).json()["workers"]
    assert (len(told["workers"]), told["of"]) == (200, 300)
    assert (told["workers"][0]["id"], told["workers"][0]["in_flight"]) == ("w0", 1)
    assert other["functions"][-1] == "and 30 more"
    await store.close()


async def test_of_thousands_of_queues_those_are_shown_that_need_a_look() -> None:
    """S11: and what is counted is counted in all of them."""
    store = storage()
    overdue = datetime.now(UTC) - timedelta(minutes=5)
    await store.enqueue_many([Task("a.b", queue=f"q{n:04}", eta=overdue) for n in range(300)])
    await store.enqueue(Task("a.b", queue="zz-late", eta=overdue - timedelta(hours=1)))
    await store.pause("zz-paused")
    async with client(Dashboard(store)) as asking:
        seen = (await asking.get("/api/overview")).json()
    names = [queue["name"] for queue in seen["queues"]]
    assert len(names) == 200
    assert names == sorted(names)
    assert {"zz-late", "zz-paused"} <= set(names)
    assert (seen["queue_count"], seen["held"]["PENDING"]) == (302, 301)
    assert len(seen["health"]["problems"]) == 13
    assert seen["health"]["problems"][-1] == "and 289 more"
    await store.close()


async def test_the_slots_of_a_worker_that_is_silent_are_nobodys() -> None:
    """At night it matters who works, not who once did."""
    clock = VirtualClock()
    store = MemoryStorage(clock=clock)
    await store.beat(WorkerInfo("bob@host:1:x", "bob", "host", 1, None, 8, 3))
    await clock.advance(minutes=2)
    await store.beat(WorkerInfo("ann@host:2:x", "ann", "host", 2, None, 4, 1))
    async with client(Dashboard(store)) as asking:
        workers = (await asking.get("/api/overview")).json()["workers"]
        assert workers == {"known": 2, "silent": 1, "slots": 4, "busy": 0}
        said = (await asking.get("/metrics")).text
        assert 'omniq_slots{state="busy"} 1.0' in said
        assert 'omniq_slots{state="free"} 3.0' in said
    await store.close()


class Broken(MemoryStorage):
    """A store that fails in a way that nobody thought of."""

    async def heads(self) -> list[Head]:
        raise ZeroDivisionError


class Hanging(MemoryStorage):
    """It takes what it is asked, and never says a word."""

    def __init__(self, busy_s: float) -> None:
        super().__init__()
        self._busy_s = busy_s

    async def _hang(self, *_: object) -> Any:
        time.sleep(self._busy_s)  # the loop stands still, and every limit is over when it goes on
        await asyncio.Event().wait()

    get_task = page = tallies = longest_running = schedules = _hang

    def clone(self) -> MemoryStorage:
        return self


@pytest.mark.parametrize("busy_s", [0.0, 0.06])
async def test_a_store_that_hangs_is_told_of(monkeypatch: pytest.MonkeyPatch, busy_s: float) -> None:
    """A probe, and a page, must not wait as long as it does. Every route, so that none can be forgotten."""
    monkeypatch.setattr(events, "ANSWER_WITHIN_S", 0.05)
    said = "the store has not answered for 0.0"
    dashboard = Dashboard(Hanging(busy_s), Settings(allow_actions=True))
    asked = 0
    async with client(dashboard, **{CSRF_HEADER: dashboard.guard.csrf}) as asking:
        for method, path in routes(dashboard):
            if path not in {"/api/events", "/login"} and method == "GET":
                answer = await asyncio.wait_for(asking.get(path, params={"id": "t1"}), 5)
                if answer.status_code != 200:
                    assert (answer.status_code, said in answer.text) == (503, True), path
                    assert path != "/healthz" or answer.json()["ok"] is False
                    asked += 1
    assert asked == 7
    watching = dashboard.live.follow()
    frames = [await anext(watching), await anext(watching)]
    assert b"event: trouble" in frames[1]
    assert said.encode() in frames[1]
    await watching.aclose()  # type: ignore[attr-defined]
    await dashboard.close()


async def test_whoever_watches_is_told_whatever_went_wrong() -> None:
    live = Live(Broken())
    watching = live.follow()
    frames = [await anext(watching), await anext(watching)]
    assert frames[1] == b'event: trouble\ndata: {"error":"ZeroDivisionError"}\n\n'
    await watching.aclose()  # type: ignore[attr-defined]
    await live.stop()


@pytest.mark.parametrize(
    ("host", "near"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
                       ("127.0.0.1.evil", False), ("10.0.0.1", False), ("::", False)]
)  # fmt: skip
def test_what_is_this_machine(host: str, near: bool) -> None:
    assert is_loopback(host) is near


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--host", "0.0.0.0"], "--token"), (["--token", "short"], "16 characters")],
)
def test_the_command_refuses_to_stand_open(tmp_path: Path, options: list[str], says: str) -> None:
    """S8: another address without a token exits with code 2."""
    command = [sys.executable, "-m", "omniq", "dashboard", *options, "--url", f"sqlite:///{tmp_path}/jobs.db"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


async def test_an_application_mounts_it_below_any_path(tmp_path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    q = OmniQ(f"sqlite:///{tmp_path}/jobs.db")
    dashboard = q.asgi_app()
    outer = Starlette(routes=[Mount("/ops/queue", app=dashboard)])
    transport = httpx.ASGITransport(app=outer)
    async with httpx.AsyncClient(transport=transport, base_url=OURS) as asking:
        assert "static/app.js" in (await asking.get("/ops/queue/")).text
        assert (await asking.get("/ops/queue/static/app.js")).status_code == 200
        assert (await asking.get("/ops/queue/api/overview")).json()["queues"] == []
    await dashboard.close()
    await q.aclose() if hasattr(q, "aclose") else q.close()


async def test_too_many_pages_are_told_so() -> None:
    """S11."""
    dashboard = Dashboard(storage())
    for _ in range(100):
        dashboard.live._watchers.add(object())  # type: ignore[arg-type]
    async with client(dashboard) as asking:
        began = time.monotonic()
        assert (await asking.get("/api/events")).status_code == 503
        assert time.monotonic() - began < 30
