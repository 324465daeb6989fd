"""Takes docs/dashboard/*.png: the dashboard in front of a shop's busy hour, light, dark and on a phone.

    python docs/draw_dashboard.py [FOLDER]

The hour is written with the store's own verbs and a clock that the script moves; `omniq dashboard` is a
process of its own, and the pictures are what the system's Chromium shows of it (apt-get install chromium).
"""

import asyncio
import math
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import sync_playwright

from omniq.clock import RealClock
from omniq.reports import PoolInfo, ProcessInfo, Scaling
from omniq.schedule import Schedule
from omniq.storage import SQLiteStorage
from omniq.task import Settlement, Task, TaskError, WorkerInfo, replace

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
MINUTES: Final = 60
WIDE: Final = {"width": 1240, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
# queue, function, share of the work, seconds that it runs, share that fails
WORK: Final = [
    ("mail", "shop.mail.send_receipt", 0.55, 0.3, 0.004),
    ("images", "shop.images.resize", 0.30, 2.4, 0.010),
    ("search", "shop.search.reindex", 0.15, 0.9, 0.002),
]
BAD_IMAGE: Final = TaskError(
    "UnidentifiedImageError",
    "cannot identify image file 'uploads/8841/label.heic'",
    """Traceback (most recent call last):
  File "shop/images.py", line 41, in resize
    with open_image(path) as image:
UnidentifiedImageError: cannot identify image file 'uploads/8841/label.heic'
""",
)


class Moved(RealClock):
    """An hour that is over at once."""

    def __init__(self, now: datetime) -> None:
        self.at = now

    def now(self) -> datetime:
        return self.at


async def busy_hour(database: Path) -> None:
    """A sale begins after half an hour: for a while more comes in than is done, then that is made up for."""
    chance = random.Random(7)
    began = datetime.now(UTC) - timedelta(minutes=MINUTES)
    clock = Moved(began)
    async with SQLiteStorage(database, durability="relaxed", clock=clock) as storage:
        for minute in range(MINUTES):
            sale = 1.2 if 30 <= minute < 40 else 0.0
            swing = 1 + 0.4 * math.sin(minute / 7) + sale + chance.uniform(-0.1, 0.1)
            for queue, func, share, run_s, failing in WORK:
                clock.at = began + timedelta(minutes=minute)
                await storage.enqueue_many(
                    [Task(func, queue=queue) for _ in range(round(60 * swing * share))]
                )
                await one_minute(storage, clock, chance, (queue, run_s, failing), round(86 * share))


async def one_minute(
    storage: SQLiteStorage, clock: Moved, chance: random.Random, kind: tuple[str, float, float], most: int
) -> None:
    queue, run_s, failing = kind
    began, waits_for = clock.at, 1.5 if queue == "images" else 0.2
    for _ in range(most):
        clock.at = began + timedelta(seconds=chance.expovariate(1 / waits_for))
        claimed = await storage.claim(f"{queue}-1@web-2:71:a9", [queue], 1, 60.0)
        if not claimed:
            return
        clock.at += timedelta(seconds=chance.lognormvariate(math.log(run_s), 0.5))
        end = Settlement.failed(claimed[0], BAD_IMAGE) if chance.random() < failing else None
        await storage.settle([end or Settlement.success(claimed[0], storage.serializer.dumps(None))])


async def the_present(database: Path) -> None:
    """What stands in the store when the pictures are taken: some waits, some runs, one thing is stuck."""
    now = datetime.now(UTC)
    clock = Moved(now - timedelta(minutes=23))
    async with SQLiteStorage(database, durability="relaxed", clock=clock) as storage:
        await storage.enqueue(Task("shop.billing.charge", (8841,), id="order-8841", queue="billing"))
        await storage.claim(WORKERS["cashier"].id, ["billing"], 1, 7200.0)
        clock.at = now - timedelta(minutes=21)
        await storage.enqueue_many(
            [Task("shop.billing.charge", (n,), id=f"order-{n}", queue="billing") for n in range(8842, 8845)]
        )
        clock.at = now - timedelta(seconds=42)
        await storage.enqueue(Task("shop.video.transcode", (311,), id="video-311", queue="video"))
        [video] = await storage.claim(WORKERS["render"].id, ["video"], 1, 7200.0)
        await storage.progress(video.id, video.epoch, 311, 480)
        await failed_twice(storage, clock, now)
        await storage.pause("newsletter")
        await storage.enqueue_many([Task("shop.mail.newsletter", queue="newsletter") for _ in range(24)])
        await storage.enqueue_many([Task("shop.mail.send_receipt", queue="mail") for _ in range(5)])
        await storage.enqueue_many([Task("shop.images.resize", queue="images") for _ in range(6)])
        await storage.claim(WORKERS["mail"].id, ["mail"], 3, 7200.0)
        await storage.claim(WORKERS["render"].id, ["images"], 1, 7200.0)
        for name, cron in (("nightly-report", "0 2 * * *"), ("stock", "*/10 * * * *")):
            call = Task(f"shop.{name.partition('-')[0]}.run", queue="search")
            await storage.save_schedule(Schedule(name=name, call=call, cron=cron, tz="Europe/Berlin"))


WORKERS: Final = {
    name: WorkerInfo(f"{name}@web-2:{pid}:a9c4", name, "web-2", pid, queues, slots, 0, functions)
    for name, pid, queues, slots, functions in (
        ("mail", 7108, ("mail", "search"), 8, ("shop.mail.send_receipt", "shop.search.reindex")),
        (
            "render",
            7104,
            ("images", "thumbnails", "video"),
            4,
            ("shop.images.resize", "shop.video.transcode"),
        ),
        ("cashier", 7101, ("billing",), 1, ("shop.billing.charge",)),
    )
}


async def beat(database: Path) -> None:
    now = datetime.now(UTC)
    async with SQLiteStorage(database, durability="relaxed") as storage:
        for name, info in WORKERS.items():
            pools = (processes("video-311", now),) if name == "render" else ()
            busy = len(await storage.held(info.id))
            started_at = now - timedelta(hours=19)
            await storage.beat(replace(info, started_at=started_at, pools=pools, in_flight=busy))


async def failed_twice(storage: SQLiteStorage, clock: Moved, now: datetime) -> None:
    """A task with a history, which waits for its third chance."""
    clock.at = now - timedelta(minutes=4)
    await storage.enqueue(
        Task(
            "shop.images.resize",
            ("uploads/8841/label.heic",),
            id="label-8841",
            queue="thumbnails",
            headers={"tenant": "north"},
        )
    )
    for ago_s, delay_s in ((200, 60.0), (120, 300.0)):
        clock.at = now - timedelta(seconds=ago_s)
        [claimed] = await storage.claim("render@web-2:7104:a9c4", ["thumbnails"], 1, 60.0)
        clock.at += timedelta(seconds=1.4)
        await storage.settle([Settlement.retry(claimed, delay_s, BAD_IMAGE)])
    clock.at = now


def processes(task_id: str, now: datetime) -> PoolInfo:
    def ago(seconds: float) -> datetime:
        return now - timedelta(seconds=seconds)

    return PoolInfo(
        "tasks", 0, 4, 2, ("video",), "0 waiting, 1 busy, 1 idle",
        (
            ProcessInfo(7311, "busy", ago(42), 18, task_id, "shop.video.transcode"),
            ProcessInfo(7312, "ready", ago(9), 11),
        ),
        (
            Scaling(ago(31), 3, 2, "0 waiting, 1 busy, 2 idle, 1 not needed for 15 s"),
            Scaling(ago(126), 1, 3, "2 waiting, 1 busy"),
            Scaling(ago(131), 0, 1, "1 waiting, 0 busy"),
        ),
    )  # fmt: skip


@contextmanager
def served(database: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "omniq", "dashboard", "--port", "0", "--url", f"sqlite:///{database}"]
    process = subprocess.Popen([*command, "--allow-actions"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[2]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


PICTURES: Final[list[tuple[str, str, str, Any, str]]] = [
    ("overview", "", ".chart svg", WIDE, "light"),
    ("overview-dark", "", ".chart svg", WIDE, "dark"),
    ("task-dark", "task/label-8841", "#history", WIDE, "dark"),
    ("workers", "workers", ".scalings", WIDE, "light"),
    ("phone", "", ".chart svg", PHONE, "light"),
]


def take(database: Path, address: str, folder: Path) -> None:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("no Chromium on this machine (apt-get install chromium)")
    with sync_playwright() as playwright, ThreadPoolExecutor(1) as apart:
        # It may be run as root, where Chromium's sandbox does not start.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, place, until, size, scheme in PICTURES:
            apart.submit(
                lambda: asyncio.run(beat(database))
            ).result()  # workers that are not heard of look dead
            context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            page = context.new_page()
            page.goto(f"{address}#/{place}")
            page.locator(until).first.wait_for()
            page.locator(".dot.good, .dot.bad").wait_for()
            page.screenshot(path=folder / f"{name}.png", full_page=size is WIDE and scheme == "light")
            context.close()
        browser.close()


def shrink(file: Path) -> None:
    """To 64 colours, a third of the bytes, where that program is installed."""
    if program := shutil.which("pngquant"):
        subprocess.run([program, "--force", "--ext", ".png", "64", str(file)], check=True)
    print(f"{file} {file.stat().st_size:,} bytes")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="omniq-dashboard-") as scratch:
        database = Path(scratch) / "jobs.db"
        asyncio.run(busy_hour(database))
        with served(database) as address:
            asyncio.run(the_present(database))
            take(database, address, folder)
    for name, *_ in PICTURES:
        shrink(folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("dashboard"))
