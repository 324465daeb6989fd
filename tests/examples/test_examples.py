"""Each example runs by itself, says what its reader should see, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BOUND_S = 50.0

# Lines that must be printed, in this order; others may be between.
EXPECTED = {
    "plain_script": [
        "before a worker runs: PENDING",
        "2 + 3 = 5",
        "sent 5 characters to ann@example.org",
        "doubled: [0, 2, 4, 6, 8]",
        "failed: ZeroDivisionError: division by zero",
        "an ordinary call still works: 4 + 4 = 8",
    ],
    "web_signup": [
        "accepted",
        "accepted",
        "already accepted",
        "welcomed ann@example.org",
        "welcomed bob@example.org",
    ],
    "retries_and_timeouts": [
        "flaky: worked at attempt 3",
        "slow: FAILED, kind timeout: TimeoutError: ran longer than its timeout of 0.2 s",
        "rate_limited: accepted after a pause",
        "not_yet: ready at claim 3",
        "hopeless: FAILED, kind error: GiveUp: nobody@example.org has no mailbox",
    ],
    "interval": [
        "one task: True",
        "beat 1, attempt 1",
        "beat 2, attempt 1",
        "beat 3, attempt 1",
        "latest result is a number: True",
        "between two runs it is PENDING",
        "after cancel it is CANCELLED",
    ],
    "transactional_sqlite": [
        "rolled back: the card of bob was refused",
        "1 order, 1 task",
        "order 1 of ann is confirmed",
    ],
    "own_storage": [
        "first run: ConnectionError: the first call always fails",
        "retry is another task: True",
        "result: 42",
    ],
    "training_loop": [
        "one line says who waits for whom: True",
        "the loss falls: True",
        "stopped after 6 of 16 batches of epoch 1: True",
        "the same weights as without the stop: True",
    ],
    "processes": [
        "primes: [4, 25, 168]",
        "in another process: True",
        "spin: FAILED, kind timeout: ran longer than its timeout of 0.5 s",
        "crash: FAILED, kind poison: its process died: exited with code 3, 2 times while running it",
    ],
    "fastapi_orders": [
        "order 1 is taken",
        "mallory: the card was refused",
        "confirmed order 1 of ann",
        "1 order, 1 task",
    ],
    "flask_signup": [
        "one task for two requests: True",
        "it is PENDING",
        "welcomed ann@example.org",
        "it is SUCCESS",
    ],
    "django_orders": [
        "before a worker runs: READY",
        "SUCCESSFUL: confirmed order 7 of ann",
        "SUCCESSFUL: reminded bob at attempt 1",
    ],
    "thumbnails": [
        "6 thumbnails, the first is 20 by 15",
        "1 failed: ValueError: notes.ppm is no picture",
        "written: 6",
    ],
    "nightly_report": [
        "next at 02:00 in Berlin",
        "sales report, attempt 1",
        "sales report, attempt 1",
        "sales report, attempt 2",
        "sales report, attempt 1",
    ],
    "seed_names": [
        "AsyncWorkerPool: a.png is 20 pixels wide",
        "WorkerPool: b.png was fetched",
        "Worker: c.png is 100 pixels wide",
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    script = EXAMPLES / f"{name}.py"
    # -W error and an empty stderr: no warning either, also not about something that nobody closed.
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    said = iter(ended.stdout.splitlines())
    for line in EXPECTED[name]:
        assert line in said, f"{line!r} is missing, or out of order, in:\n{ended.stdout}"
    assert list(tmp_path.iterdir()) == []


def test_every_example_has_its_expectation() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
