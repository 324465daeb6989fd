"""`omniq demo`: a short run with real processes, and an accounting that finds what is missing."""

import os
import re
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from omniq.cli.demo.accounting import Account, account, print_account
from omniq.cli.demo.display import LiveScreen
from omniq.cli.demo.ledger import Entry, Ledger, Reader, Word
from omniq.cli.demo.scene import KINDS, Crew, Scene, Tally
from omniq.task import Task, TaskStatus

FACTS = {"seconds": 1.0, "burst_per_s": 1.0, "enqueue_per_s": 1.0, "taken_over_s": 0.1, "replaced_s": 0.5}


def test_without_a_terminal_every_task_is_accounted_for(tmp_path: Path) -> None:
    started_at = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "omniq", "demo", "--seconds", "3"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    assert "\x1b" not in ended.stdout
    assert "Every task is accounted for." in ended.stdout
    assert re.search(r"killed worker process \d+ with SIGKILL", ended.stdout)
    assert "cancelled the marathon while it ran" in ended.stdout
    assert len(re.findall(r"waiting \d+ +running \d+ +succeeded \d+", ended.stdout)) >= 2
    rows = {line.split()[0]: line.split()[1:] for line in ended.stdout.splitlines() if line.split()}
    assert set(KINDS) < set(rows)
    enqueued, succeeded, _, cancelled, retried, run_again, lost = (
        0 if cell == "·" else int(cell.replace(",", "")) for cell in rows["all"]
    )
    assert enqueued > 500
    assert succeeded > 500
    assert cancelled == 2
    assert retried > 0
    assert run_again > 0
    assert lost == 0
    assert list(tmp_path.iterdir()) == []
    assert time.monotonic() - started_at < 50


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "omniq", "demo"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        pids: list[str] = []
        while not pids and (line := demo.stdout.readline()):
            pids = re.findall(r"\d+", line.partition("worker processes")[2])
        demo.send_signal(signal.SIGINT)
        _, err = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert err.strip() == "omniq: interrupted"
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists()]
    assert list(tmp_path.iterdir()) == []


# --- the accounting ------------------------------------------------------------------------------


def told(*words: Word, kind: str = "fetch", pid: int = 1) -> list[Entry]:
    return [Entry(word, float(n), kind, "t", n, pid) for n, word in enumerate(words)]


def stored(status: TaskStatus, losses: int = 0) -> list[Task]:
    return [Task("omniq.cli.demo.jobs.fetch", id="t", status=status, losses=losses)]


ENQ, RUN, END, FAIL, CUT = Word
GOOD = told(ENQ, RUN, END)


@pytest.mark.parametrize(
    ("entries", "tasks", "lost", "complaints"),
    [
        (GOOD, stored(TaskStatus.SUCCESS), 0, 0),
        (told(ENQ, RUN, FAIL, kind="hopeless"), stored(TaskStatus.FAILED), 0, 0),
        (told(ENQ, RUN, CUT, kind="marathon"), stored(TaskStatus.CANCELLED), 0, 0),
        (told(ENQ), [], 1, 0),  # the store has forgotten it
        (told(ENQ), stored(TaskStatus.PENDING), 1, 0),  # it never ran
        (told(ENQ, RUN), stored(TaskStatus.RUNNING), 1, 0),  # it is still said to run
        (told(ENQ, RUN), stored(TaskStatus.SUCCESS), 1, 0),  # a success that no body knows of
        (told(ENQ, RUN, FAIL), stored(TaskStatus.FAILED), 0, 1),  # it should have succeeded
        (told(RUN, END), stored(TaskStatus.SUCCESS), 0, 1),  # nobody enqueued it
        ([], stored(TaskStatus.SUCCESS), 0, 1),
        (GOOD, stored(TaskStatus.SUCCESS, losses=1), 0, 0),  # somebody ran it again
        (told(ENQ, RUN, END, pid=9), stored(TaskStatus.SUCCESS, losses=1), 0, 1),  # only the dead did
    ],
)
def test_the_accounting_misses_nothing(
    entries: list[Entry], tasks: list[Task], lost: int, complaints: int
) -> None:
    result = account(entries, tasks, {"killed_pid": 9.0})
    assert (result.total.lost, len(result.complaints)) == (lost, complaints)
    assert result.is_complete == (lost == complaints == 0)


def test_an_exit_code_is_a_complaint() -> None:
    assert not account([], [], {"exit_code": 1.0}).is_complete


def test_the_closing_table_says_what_is_lost() -> None:
    page = StringIO()
    print_account(account(told(ENQ), [], FACTS), Console(file=page, width=80))
    assert "1 tasks lost, 0 unaccounted for" in page.getvalue()
    assert max(len(line.rstrip()) for line in page.getvalue().splitlines()) <= 80


def test_latency_counts_from_before_the_enqueue() -> None:
    result: Account = account(GOOD, stored(TaskStatus.SUCCESS), {})
    assert result.latencies_ms == [1000.0]


# --- the ledger and the picture ------------------------------------------------------------------


def test_a_ledger_is_followed_as_it_grows(tmp_path: Path) -> None:
    ledger, reader = Ledger(tmp_path / "ledger"), Reader(tmp_path / "ledger")
    ledger.write(Word.BEGUN, "fetch", "a", 1)
    [first] = reader.read()
    assert (first.word, first.kind, first.task_id, first.epoch, first.pid) == (
        RUN,
        "fetch",
        "a",
        1,
        os.getpid(),
    )
    assert reader.read() == []
    with (tmp_path / "ledger").open("ab") as file:
        file.write(b"ended 1.0 fetch a 1 7\nhalf of a li")
    assert [entry.word for entry in reader.read()] == [END]
    ledger.close()


def test_rates_leave_out_what_is_still_being_counted() -> None:
    tally = Tally(0.0)
    tally.add(told(RUN, RUN), 0.4)
    tally.add(told(RUN), 1.2)
    assert tally.rates == [4.0, 0.0]


def test_the_picture_fits_a_small_terminal() -> None:
    page = StringIO()
    console = Console(file=page, force_terminal=True, width=80, height=24, legacy_windows=False)
    crew = [Crew(1, 99), Crew(2, 3, killed=True), Crew(3, 0)]
    many = dict.fromkeys(KINDS, 123_456)
    statuses = {str(status): 123_456 for status in TaskStatus}
    screen = LiveScreen(console)
    for n in range(20):
        screen.say(f"something happened, with a rather long story to it, that goes on and on and on: {n}")
    console.print(screen.picture(Scene(12.0, statuses, many, many, [1.0, 5_000.0], crew)))
    lines = page.getvalue().splitlines()
    assert len(lines) <= 24
    assert "killed with SIGKILL" in page.getvalue()
    assert "story to it" in page.getvalue()
