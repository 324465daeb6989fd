"""`omniq top`, in a pseudo-terminal: what it shows, and what its keys do."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from omniq.cli.glance import glance
from omniq.storage import SQLiteStorage
from omniq.task import Settlement, Task, TaskError, TaskStatus, WorkerInfo
from tests.cli.site import OMNIQ, Site, call, until, until_status

URL = "sqlite:///jobs.db"


class Screen:
    """What a terminal was sent so far, and a keyboard."""

    def __init__(self, end: int, process: subprocess.Popen[bytes]) -> None:
        self._end = end
        self.process = process
        self.sent = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):  # the other end is gone
            while part := os.read(self._end, 65536):
                self.sent += part

    def press(self, key: str) -> None:
        self.sent = b""
        os.write(self._end, key.encode())

    async def shows(self, text: str) -> None:
        async def is_there() -> bool:
            return text.encode() in self.sent

        await until(is_there, lambda: f"{text!r} on the screen, which got {self.sent[-2000:]!r}")

    async def ended(self) -> int:
        async def gone() -> bool:
            return self.process.poll() is not None

        await until(gone, lambda: f"the end; the screen got {self.sent[-2000:]!r}")
        return self.process.returncode


@contextmanager
def top(site: Site) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    process = subprocess.Popen(
        [*OMNIQ, "top", "--url", URL],
        cwd=site.folder,
        env=site.environment | {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Screen(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


async def failed(store: SQLiteStorage, task: Task, error: str = "ZeroDivisionError") -> str:
    task_id = await store.enqueue(task)
    [claimed] = await store.claim("worker@test:1:abc", limit=1)
    await store.settle([Settlement.failed(claimed, TaskError(error, "c4nary"))])
    return str(task_id)


async def test_the_keys_do_what_they_say(site: Site) -> None:
    async with site.store() as store:
        task_id = await failed(store, call("nap", "a", queue="mail"))
        with top(site) as screen:
            await screen.shows("ZeroDivisionError")
            await screen.shows("jobs.nap")
            assert b"c4nary" not in screen.sent  # a message may quote an argument

            screen.press("p")

            async def paused() -> bool:
                return await store.paused() == {"mail"}

            await until(paused, "the queue to be paused")
            await screen.shows("mail: paused")
            screen.press("r")
            await until_status(store, [task_id], TaskStatus.PENDING)
            await screen.shows("will run again")
            screen.press("c")
            await screen.shows("c again cancels")
            [asked] = await until_status(store, [task_id], TaskStatus.PENDING)
            assert not asked.cancel_requested
            screen.press("c")
            await until_status(store, [task_id], TaskStatus.CANCELLED)
            await screen.shows("cancelled")
            screen.press("p")

            async def resumed() -> bool:
                return await store.paused() == set()

            await until(resumed, "the queue to be open again")
            screen.press("q")
            assert await screen.ended() == 0


async def test_it_follows_the_store_and_reads_names_as_they_are(site: Site) -> None:
    """S12: neither markup nor escape sequences in a name reach the terminal as such."""
    async with site.store() as store:
        await store.enqueue(Task("jobs.first", queue="a"))
        with top(site) as screen:
            await screen.shows("jobs.first")
            await failed(store, Task("jobs.second", queue="b", priority=9), "[blink]Bad\x1b]0;title\x07")
            await screen.shows("jobs.second")
            await screen.shows("[blink]Bad")
            assert b"\x1b]0;title" not in screen.sent
            screen.press("q")
            assert await screen.ended() == 0


async def test_what_is_seen_is_bounded(site: Site) -> None:
    async with site.store() as store:
        await store.enqueue_many([call("nap", n, priority=n % 10, queue=f"q{n % 90}") for n in range(900)])
        seen = await glance(store)
    assert len(seen.queues) == 90
    assert len(seen.tasks) == 50


async def test_what_waits_says_what_holds_it_up_however_long_its_name(site: Site) -> None:
    async with site.store() as store:
        await store.enqueue_many([Task("jobs." + "x" * 60 + ".end", queue="a"), Task("jobs.b", queue="b")])
        await store.pause("b")
        await store.beat(WorkerInfo("w", "w", "host", 1, ("b",), 4, 0, None, None, store.clock.now()))
        seen = await glance(store)
    assert seen.lines[0] == "1 worker, 0 of 4 slots busy"
    assert {row.cells[2]: row.cells[-1] for row in seen.tasks} == {"a": "unserved queue", "b": "paused"}
    [long] = [row.cells[1] for row in seen.tasks if row.cells[2] == "a"]
    assert (len(long), long[0], long[-4:]) == (36, "…", ".end")


def test_without_a_terminal_it_says_what_to_use(site: Site) -> None:
    ended = site.run("top")
    assert ended.returncode == 1
    assert "needs a terminal" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_nothing_of_textual_is_imported_by_other_commands() -> None:
    look = "import sys, omniq.cli.entry; sys.exit('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], timeout=40, check=False).returncode == 0
