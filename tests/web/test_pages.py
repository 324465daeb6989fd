"""Each page and action, live, by keyboard, in a real browser; and no text of a user becomes markup."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from omniq import Task, TaskError
from omniq.reports import PoolInfo, ProcessInfo, Scaling
from omniq.schedule import Schedule
from omniq.storage import SQLiteStorage
from omniq.task import Settlement, WorkerInfo, replace
from tests.web.conftest import apart, served

T = TypeVar("T")
# Elements that would load or run something, and what a value breaks out of: tag, attribute, script, URL.
_TAGS = [
    *("<img src=x onerror={}>", "<svg onload={}>", "<body onload={}>", "<video><source onerror={}></video>"),
    *("<audio src=x onerror={}>", "<details open ontoggle={}>", "<input autofocus onfocus={}>"),
    *("<iframe srcdoc='<script>{}</script>'>", "<object data=javascript:{}>", "<embed src=javascript:{}>"),
    *("<a href=javascript:{}>x</a>", "<form action=javascript:{}><button>", "<math href=javascript:{}>"),
    *("<marquee onstart={}>", "<style onload={}></style>", "<link rel=stylesheet onerror={} href=x>"),
]
_OUT_OF = [
    "{}",
    '">{}',
    "'>{}",
    "</title>{}",
    "</textarea>{}",
    "<!--{}-->",
    "]]>{}",
    "</pre>{}",
    "\u202e{}",
    "`{}`",
]
XSS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "'-alert(1)-'",
    "javascript:alert(1)",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "<ScRiPt>alert(1)</sCrIpT>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<scr<script>ipt>alert(1)</script>",
    *(tag.format("alert(1)") for tag in _TAGS),
    *(around.format(_TAGS[n % len(_TAGS)].format("alert(1)")) for n, around in enumerate(_OUT_OF[1:] * 3)),
    "\x1b[31m<b onmouseover=alert(1)>",
    "<!--><img src=x onerror=alert(1)>-->",
    "</title><script>alert(1)</script>",
]
assert len(set(XSS)) >= 50


class Desk:
    """A store with a dashboard in front of it."""

    def __init__(self, database: Path, address: str, page: Any) -> None:
        self.database, self.address, self.page = database, address, page

    def do(self, work: Callable[[SQLiteStorage], Awaitable[T]]) -> T:
        async def once() -> T:
            async with SQLiteStorage(self.database, durability="relaxed") as storage:
                return await work(storage)

        return apart(lambda: asyncio.run(once()))

    def put(self, *tasks: Task) -> None:
        self.do(lambda storage: storage.enqueue_many(tasks))

    def fail(self, task: Task, error: TaskError) -> None:
        async def work(storage: SQLiteStorage) -> None:
            await storage.enqueue(task)
            [claimed] = await storage.claim("ann", [task.queue])
            await storage.settle([Settlement.failed(claimed, error)])

        self.do(work)

    def status(self, task_id: str) -> str | None:
        async def work(storage: SQLiteStorage) -> str | None:
            task = await storage.get_task(task_id)
            return None if task is None else str(task.status)

        return self.do(work)

    def open(self, place: str = "") -> None:
        self.page.goto(f"{self.address}#/{place}")

    def shows(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()

    def becomes(self, state: str) -> None:
        self.page.locator("h1 .pill", has_text=state).wait_for()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    database = tmp_path_factory.mktemp("desk") / "jobs.db"

    async def make() -> None:
        await SQLiteStorage(database).migrate()

    apart(lambda: asyncio.run(make()))
    with served(database, "--allow-actions", "--show-args") as address:
        yield database, address


@pytest.fixture
def desk(place: tuple[Path, str], page: Any) -> Iterator[Desk]:
    yield Desk(*place, page)
    assert page.wrong == []


def test_a_failed_task_is_retried_and_another_deleted(desk: Desk) -> None:
    for name in ("again", "gone"):
        desk.fail(Task("shop.pay", id=name, queue="pay"), TaskError("CardError", "declined", "Traceback 1"))
    desk.open("task/again")
    desk.shows("CardError")
    desk.page.locator("#error pre", has_text="Traceback 1").wait_for()
    desk.page.get_by_role("button", name="Retry").click()
    desk.becomes("pending")
    assert desk.status("again") == "PENDING"
    desk.open("task/gone")
    desk.page.get_by_role("button", name="Delete").click()
    desk.page.locator("#confirm").click()
    desk.page.locator(".page.tasks").wait_for()
    assert desk.status("gone") is None


def test_a_waiting_task_is_brought_forward_and_cancelled(desk: Desk) -> None:
    desk.put(Task("shop.pay", id="tomorrow", queue="pay", eta=datetime.now(UTC) + timedelta(days=1)))
    desk.open("task/tomorrow")
    desk.shows("its time is ahead")
    desk.page.get_by_role("button", name="Run now").click()
    desk.becomes("pending")
    desk.shows("no living worker serves queue pay")
    desk.page.get_by_role("button", name="Cancel").click()
    desk.page.locator("#confirm").click()
    desk.becomes("cancelled")
    assert desk.status("tomorrow") == "CANCELLED"


def test_a_queue_is_paused_and_resumed_and_the_page_follows(desk: Desk) -> None:
    desk.put(Task("shop.mail", queue="mail"))
    desk.open("queues")
    row = desk.page.locator('tr[data-queue="mail"]')
    row.get_by_role("button", name="Pause").click()
    row.get_by_role("button", name="Resume").wait_for()
    assert "mail" in desk.do(lambda storage: storage.paused())
    desk.put(Task("shop.mail", id="held up", queue="mail"))
    desk.open("task/held up")
    desk.shows("queue mail is paused")
    desk.page.get_by_role("button", name="Resume mail").click()
    desk.page.get_by_role("button", name="Resume mail").wait_for(state="detached")
    desk.shows("no living worker serves queue mail")
    assert "mail" not in desk.do(lambda storage: storage.paused())


def test_what_holds_a_queue_up_is_said_wherever_it_is_seen(desk: Desk) -> None:
    desk.put(
        Task("shop.thumb", id="thumb", queue="thumbs"), Task("shop.letter", id="letter", queue="letters")
    )
    desk.do(lambda storage: storage.pause("letters"))
    for queue, word in (("thumbs", "unserved queue"), ("letters", "paused")):
        desk.open()
        desk.page.locator("#late tr", has_text=queue).locator(".pill", has_text=word).wait_for()
        desk.page.locator(f'tr[data-queue="{queue}"] .pill', has_text=word).wait_for()
        desk.open(f"tasks?queue={queue}")
        desk.page.locator("td.wide .pill", has_text=word).wait_for()
    desk.do(lambda storage: storage.resume("letters"))
    for task_id in ("thumb", "letter"):  # nobody serves them: sooner or later that is a problem on every page
        desk.do(lambda storage, task_id=task_id: storage.cancel(task_id))


def test_a_schedule_is_paused_resumed_and_run(desk: Desk) -> None:
    async def work(storage: SQLiteStorage) -> None:
        call = Task("shop.report", queue="reports")
        await storage.save_schedule(Schedule(name="nightly", call=call, cron="0 2 * * *", tz="Europe/Berlin"))

    async def is_paused(storage: SQLiteStorage) -> bool:
        return any(one.paused for one in await storage.schedules() if one.name == "nightly")

    desk.do(work)
    desk.open("")
    desk.page.locator("#nav a", has_text="Overview").wait_for()
    desk.page.keyboard.press("g")
    desk.page.keyboard.press("s")
    row = desk.page.locator('tr[data-schedule="nightly"]')
    row.get_by_text("0 2 * * *").wait_for()
    row.get_by_role("button", name="Pause").click()
    row.get_by_role("button", name="Resume").wait_for()
    assert desk.do(is_paused)
    row.get_by_role("button", name="Resume").click()
    row.get_by_role("button", name="Pause").wait_for()
    assert not desk.do(is_paused)
    row.get_by_role("button", name="Run now").click()
    desk.becomes("pending")
    desk.page.locator("h1", has_text="shop.report").wait_for()


def test_the_overview_is_live(desk: Desk) -> None:
    desk.open()
    desk.page.locator(".tile").first.wait_for()
    desk.put(*(Task("shop.fresh", queue="fresh") for _ in range(7)))
    desk.page.locator('tr[data-queue="fresh"]', has_text="7").wait_for()
    assert desk.page.locator(".chart svg rect").count() > 60
    desk.page.locator(".chart", has_text="Depth").locator(".legend").get_by_text("waiting").wait_for()
    assert desk.page.locator(".chart", has_text="Depth").locator("polyline").count() == 1
    desk.page.locator(".chart", has_text="Times").get_by_text("the latest").wait_for()


def test_what_is_held_or_selected_outlives_the_next_news(desk: Desk) -> None:
    """A page that is drawn anew every second takes neither the focus from a key nor the place from an eye."""
    desk.put(Task("shop.held", queue="held"))
    desk.open("queues")
    button = desk.page.locator('tr[data-queue="held"]').get_by_role("button", name="Pause")
    button.focus()
    desk.page.evaluate("document.querySelector('[data-queue=held]').className = 'old'")
    desk.page.locator('tr[data-queue="held"]:not(.old)').wait_for()
    assert desk.page.evaluate("document.activeElement.textContent") == "Pause"
    desk.page.keyboard.press("Enter")
    desk.page.locator('tr[data-queue="held"]').get_by_role("button", name="Resume").wait_for()


def test_an_address_that_was_mistyped_is_answered(desk: Desk) -> None:
    desk.open("task/%E0%A4%A")
    desk.shows("no task '%E0%A4%A' in this store")
    desk.page.wrong.clear()  # the browser names the refusal in its console


def test_a_store_that_goes_away_is_told_at_the_top_and_its_return_too(tmp_path: Path, page: Any) -> None:
    database = tmp_path / "jobs.db"
    with served(_made(database)) as address:
        page.goto(address)
        page.locator(".dot.good").wait_for()
        hidden = database.rename(tmp_path / "elsewhere.db")
        page.locator("#trouble", has_text="The store does not answer").wait_for()
        page.locator("#trouble", has_text="What is shown is of").wait_for()
        page.locator("#nav a", has_text="Workers").click()
        page.get_by_role("heading", name="That did not work").wait_for()
        hidden.rename(database)
        page.get_by_text("No worker has been heard of").wait_for()
        assert page.locator("#trouble").is_hidden()


def test_what_nobody_lives_for_is_in_no_slot(tmp_path: Path, page: Any) -> None:
    database = _made(tmp_path / "jobs.db")

    async def claimed() -> None:
        async with SQLiteStorage(database, durability="relaxed") as storage:
            await storage.enqueue(Task("shop.held"))
            await storage.claim("gone@host:1:x")

    apart(lambda: asyncio.run(claimed()))
    with served(database) as address:
        page.goto(address)
        page.locator(".tile", has_text="Workers").get_by_text("0 slots, 1 running").wait_for()


def test_tasks_are_filtered_and_paged(desk: Desk) -> None:
    desk.put(*(Task("shop.many", queue="many", id=f"many-{n:03}") for n in range(120)))
    desk.fail(Task("shop.odd", queue="odd", id="odd"), TaskError("Odd", "needle in a haystack"))
    desk.open("tasks?queue=many")
    rows = desk.page.locator("tbody tr")
    desk.page.get_by_text("50 so far").wait_for()
    desk.page.get_by_role("button", name="More").click()
    desk.page.get_by_text("100 so far").wait_for()
    desk.page.get_by_role("button", name="More").click()
    desk.page.get_by_text("120, that is all").wait_for()
    assert rows.count() == 120
    desk.page.get_by_role("button", name="Clear").click()
    desk.page.get_by_text("50 so far").wait_for()  # another form by now
    desk.page.get_by_label("Text of the error").fill("NEEDLE")
    desk.page.get_by_role("button", name="Filter").click()
    desk.page.get_by_text("1, that is all").wait_for()
    desk.page.get_by_label("Status").select_option("success")
    desk.page.get_by_text("Nothing matches.").wait_for()
    assert desk.page.locator(".row.more").inner_text() == "Nothing matches."


def test_the_list_of_tasks_is_live(desk: Desk) -> None:
    desk.open("tasks?queue=born")
    desk.page.get_by_text("Nothing matches.").wait_for()
    desk.put(Task("shop.born", queue="born"))
    desk.page.get_by_text("1, that is all").wait_for()
    assert desk.page.locator("tbody tr").count() == 1


def test_the_time_that_a_list_goes_back_moves_on(desk: Desk) -> None:
    """Within the last hour is what was asked for, not since an hour before the page was opened."""
    with desk.page.expect_request("**/api/tasks?*enqueued_after=*") as first:
        desk.open("tasks?within=3600")
    with desk.page.expect_request("**/api/tasks?*enqueued_after=*") as second:
        desk.page.locator("tbody").wait_for(state="attached")
    assert first.value.url != second.value.url


def test_what_is_read_out_is_said_once(desk: Desk) -> None:
    desk.open()
    desk.page.locator("#status .dot.good, #status .dot.bad").wait_for()
    desk.page.locator(".tile").first.wait_for()
    desk.page.evaluate(
        "document.querySelector('#status .dot').id = document.querySelector('.tile').id = 'old'"
    )
    desk.page.locator(".tile#old").wait_for(state="detached")
    assert desk.page.locator("#status .dot#old").count() == 1


def test_workers_show_their_slots_and_where_nobody_is_heard_of(desk: Desk) -> None:
    async def work(storage: SQLiteStorage) -> None:
        await storage.beat(WorkerInfo("bob@host:1:x", "bob", "host", 1, ("slow",), 4, 1, ("shop.slow",)))
        await storage.enqueue(Task("shop.slow", id="in the slot", queue="slow"))
        [claimed] = await storage.claim("bob@host:1:x", ["slow"], 1, 600.0)
        await storage.progress(claimed.id, claimed.epoch, 3, 10)

    desk.do(work)
    desk.open("workers")
    card = desk.page.locator(".worker", has_text="bob")
    card.get_by_text("1 of 4 slots").wait_for()
    card.get_by_role("link", name="shop.slow").click()
    desk.shows("3 of 10")
    desk.page.get_by_role("button", name="Cancel").click()
    desk.page.locator("#confirm").click()
    desk.becomes("cancelling")


def test_workers_show_their_processes_and_why_there_are_so_many(desk: Desk) -> None:
    """And follow: a decision that is told while the page is open appears on it."""
    now = datetime.now(UTC)
    busy = ProcessInfo(4711, "busy", now - timedelta(seconds=90), 12, "in a process", "shop.render")
    idle = ProcessInfo(4712, "ready", now, 3)
    grown = Scaling(now - timedelta(seconds=91), 1, 2, "1 waiting, 1 busy")
    pool = PoolInfo("tasks", 0, 4, 3, ("renders",), "0 waiting, 1 busy, 1 idle", (busy, idle), (grown,))
    info = WorkerInfo("cyd@host:1:x", "cyd", "host", 1, ("renders",), 4, 0, pools=(pool,))

    async def beat(storage: SQLiteStorage) -> None:
        await storage.beat(info)

    async def shrink(storage: SQLiteStorage) -> None:
        gone = Scaling(datetime.now(UTC), 2, 1, "0 waiting, 1 busy, 1 idle, 1 not needed for 15 s")
        shrunk = replace(pool, processes=(busy,), scalings=(gone, grown))
        await storage.beat(replace(info, pools=(shrunk,)))

    desk.put(Task("shop.render", id="in a process", queue="renders"))
    desk.do(beat)
    desk.open("workers")
    card = desk.page.locator(".worker", has_text="cyd")
    card.get_by_text("2 now, 1 busy; 0 to 4 allowed; 0 waiting, 1 busy, 1 idle").wait_for()
    row = card.locator(".pool tr", has_text="pid 4711")
    row.get_by_text("busy").wait_for()
    assert card.locator(".scalings tr", has_text="1 → 2").inner_text().endswith("1 waiting, 1 busy")
    desk.do(shrink)
    card.locator(".scalings tr", has_text="2 → 1").get_by_text("1 not needed for 15 s").wait_for()
    row.get_by_role("link", name="shop.render").click()
    desk.page.locator("code", has_text="in a process").wait_for()


def test_everything_can_be_done_by_keyboard(desk: Desk) -> None:
    desk.fail(Task("shop.keys", id="keys", queue="keys"), TaskError("E", "boom"))
    desk.open()
    desk.page.locator(".tile").first.wait_for()
    desk.page.keyboard.press("g")
    desk.page.keyboard.press("t")
    desk.page.locator(".page.tasks tbody tr").first.wait_for()
    desk.page.keyboard.press("/")
    desk.page.keyboard.type("keys")
    desk.page.keyboard.press("Enter")
    desk.page.get_by_text("1, that is all").wait_for()
    desk.page.locator("h1").click()
    desk.page.keyboard.press("j")
    desk.page.keyboard.press("Enter")
    desk.becomes("failed")
    desk.page.keyboard.press("r")
    desk.becomes("pending")
    desk.page.keyboard.press("?")
    desk.shows("light or dark")
    desk.page.keyboard.press("Escape")
    desk.page.keyboard.press("D")
    assert desk.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_long_name_pushes_no_figure_out_of_sight(desk: Desk) -> None:
    """The time that a task has waited is what the list is for."""
    queue = "integrations-" + "long-name-" * 5 + "priority"
    overdue = datetime.now(UTC) - timedelta(days=400)
    desk.put(Task("acme." + "integrations." * 6 + "run", queue=queue, eta=overdue, priority=9))
    for width in (390, 1280):
        desk.page.set_viewport_size({"width": width, "height": 800})
        desk.open()
        # Measured at one moment: each second the rows are drawn anew.
        right = "getBoundingClientRect().right"
        ends = f"(row) => [row.lastElementChild.{right}, row.closest('#late').{right}]"
        seen, card = desk.page.locator("#late tr", has_text=queue).evaluate(ends)
        assert seen <= card, width


@pytest.mark.parametrize("width", [360, 721, 1280])
def test_whatever_is_long_needs_no_sideways_scrolling(desk: Desk, width: int) -> None:
    now, queue = datetime.now(UTC), "W" * 128
    leaving = ProcessInfo(4711, "stopping", now, 9, reason="it has run as many as it may, " * 8)
    pool = PoolInfo("tasks", 0, 4, processes=(leaving,))
    info = WorkerInfo("w" * 150, "w" * 60, "host" * 30, 1, (queue,), 4, functions=("f" * 150,), pools=(pool,))
    task = Task("shop.phone" + ".very" * 20, id="x" * 200, queue=queue, headers={"k" * 100: "v" * 3_000})
    desk.put(task)
    desk.do(lambda storage: storage.beat(info))
    desk.page.set_viewport_size({"width": width, "height": 740})
    for place in ("", "queues", "tasks", "workers", "schedules", f"task/{'x' * 200}"):
        desk.open(place)
        desk.page.locator(f".page.{place.partition('/')[0] or 'overview'} .card").first.wait_for()
        assert desk.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        assert desk.page.evaluate("document.getElementById('nav').scrollWidth <= innerWidth"), place
        if place == "workers":
            fits = "(one) => one.scrollWidth <= one.clientWidth"
            assert desk.page.locator(".pool .scroll", has_text="pid 4711").first.evaluate(fits)


def test_a_phone_shows_why_a_task_failed(desk: Desk) -> None:
    """Beside a list of failures there is no room for it there, so it stands below each name."""
    desk.fail(Task("shop.small", id="small", queue="small"), TaskError("Declined", "no money"))
    desk.page.set_viewport_size({"width": 360, "height": 740})
    desk.open("tasks?status=FAILED&queue=small")
    desk.page.locator("tbody td:first-child").get_by_text("Declined: no money").wait_for()


def test_work_that_is_done_is_no_warning(desk: Desk) -> None:
    """Its bar is full, and that is well; where no slot is free, that is worth a look."""

    async def work(storage: SQLiteStorage) -> None:
        await storage.beat(WorkerInfo("dan@host:1:x", "dan", "host", 1, ("bars",), 1, 1))
        await storage.enqueue(Task("shop.bars", queue="bars"))
        [claimed] = await storage.claim("dan@host:1:x", ["bars"], 1, 600.0)
        await storage.progress(claimed.id, claimed.epoch, 10, 10)

    desk.do(work)
    desk.open("workers")
    card = desk.page.locator(".worker", has_text="dan")
    card.locator("td .meter .fill").wait_for(state="attached")
    card.locator(".row .meter .full").wait_for(state="attached")


def test_a_task_that_is_deleted_while_somebody_looks_is_told(desk: Desk) -> None:
    desk.fail(Task("shop.pruned", id="pruned", queue="pruned"), TaskError("Declined", "no money"))
    desk.open("task/pruned")
    desk.becomes("failed")
    desk.do(lambda storage: storage.delete("pruned"))
    desk.page.locator(".card.bad", has_text="no task 'pruned' in this store").wait_for()
    desk.page.wrong.clear()  # the browser names the refusal in its console


def test_a_page_that_could_not_be_had_can_be_asked_for_again(desk: Desk) -> None:
    desk.put(*(Task("shop.paged", queue="paged") for _ in range(60)))
    desk.open("tasks?queue=paged")
    more = desk.page.get_by_role("button", name="More")
    more.wait_for()
    desk.page.route("**/api/tasks?*after=*", lambda route: route.fulfill(status=503, json={"error": "away"}))
    more.click()
    desk.page.locator(".toast.bad", has_text="away").wait_for()
    desk.page.unroute("**/api/tasks?*after=*")
    more.click()
    desk.page.get_by_text("60, that is all").wait_for()
    desk.page.wrong.clear()  # the browser names the refusal in its console


def test_no_text_of_a_user_becomes_markup(desk: Desk) -> None:
    """S10: canaries in every field that a user can fill; nothing is born from data, and no script runs."""
    named = ["".join(filter(str.isprintable, canary)) for canary in XSS]  # a name has no other characters
    for number, (canary, name) in enumerate(zip(XSS, named, strict=True)):
        call = Task(
            "shop.evil",
            (canary, {canary: canary}),
            {canary: canary},
            id=f"{number} {name}",
            queue="evil",
            unique_key=f"{number}{name}",
            headers={name: name},
        )
        desk.fail(call, TaskError(canary, canary, canary))

    async def work(storage: SQLiteStorage) -> None:
        await storage.enqueue(Task("shop.evil", id="held", queue="evil2"))
        process = ProcessInfo(1, XSS[1], datetime.now(UTC), 1, XSS[1], XSS[1], XSS[0])
        scaling = Scaling(datetime.now(UTC), 0, 1, XSS[1])
        pool = PoolInfo(XSS[1], 0, 1, 0, (), XSS[1], (process,), (scaling,))
        await storage.beat(WorkerInfo(XSS[1], XSS[1], XSS[1], 1, None, 1, 1, (XSS[0],), pools=(pool,)))
        await storage.claim(XSS[1], ["evil2"], 1, 600.0)
        await storage.save_schedule(Schedule(name=XSS[1], call=Task("shop.evil"), every=86400))

    desk.do(work)
    wrong = "main script, main img, main svg [onload], main [onerror], [href^=javascript]"
    born = f"document.querySelectorAll('{wrong}').length"
    places = ["", "queues", "tasks?queue=evil", "workers", "schedules", "task/held"]
    places += [f"task/{_quoted(f'{n} {name}')}" for n, name in enumerate(named)]
    for place in places:
        desk.open(place)
        desk.page.locator("main .card").first.wait_for()
        assert desk.page.evaluate(born) == 0, place
        desk.page.locator("details").evaluate_all("all => all.forEach((one) => one.open = true)")
    desk.shows(XSS[-1])


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def test_without_leave_there_are_no_buttons(tmp_path: Path, page: Any) -> None:
    database = tmp_path / "jobs.db"
    with served(_made(database), "--token", "sixteen characters at least") as address:
        desk = Desk(database, address, page)
        desk.put(Task("shop.pay", id="t1"))
        page.goto(address)
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("that is not the token").wait_for()
        page.wrong.clear()  # the browser names the refusal in its console
        page.get_by_label("Token").fill("sixteen characters at least")
        page.get_by_role("button", name="Sign in").click()
        page.locator(".tile").first.wait_for()
        desk.open("task/t1")
        desk.shows("Read-only")
        assert page.get_by_role("button", name="Cancel").count() == 0
        assert page.wrong == []


def _made(database: Path) -> Path:
    async def make() -> None:
        await SQLiteStorage(database).migrate()

    apart(lambda: asyncio.run(make()))
    return database
