"""`omniq worker --reload` and `--log-format json`."""

import json
import os
import time
from pathlib import Path

from omniq.cli.reload import stamps
from tests.cli.site import Site, Worker


def wait_for_log(worker: Worker, text: str, count: int = 1) -> None:
    until = time.monotonic() + 40
    while worker.log.count(text) < count:
        assert time.monotonic() < until, worker.log
        assert worker.process.poll() is None, worker.log
        time.sleep(0.05)


def test_changed_files_mean_other_worker_processes(site: Site) -> None:
    """The new code runs; an application that cannot be imported waits for the next change."""
    app = site.folder / "small.py"

    def write(word: str) -> None:
        app.write_text(
            "import logging\nfrom omniq import OmniQ\nq = OmniQ('sqlite:///jobs.db')\n@q.task\ndef say():\n"
            f"    logging.getLogger('small.shop').warning('%s\\nis said', {word!r})\n    return {word!r}\n"
        )
        os.utime(app, ns=(time.time_ns(), time.time_ns()))

    write("one")
    with site.worker("--reload", "--log-format", "json", app="small:q") as worker:
        wait_for_log(worker, "worker started")
        assert say(site) == "'one'"
        app.write_text("import nothing_of_the_kind\n")
        wait_for_log(worker, "waiting for a file to change")
        assert "nothing_of_the_kind" in worker.log
        write("two")
        wait_for_log(worker, "worker started", 2)
        assert say(site) == "'two'"
        worker.process.terminate()
        assert worker.process.wait(30) == 0
    entries = [json.loads(line) for line in worker.log.splitlines()]
    assert all({"time", "level", "pid", "message"} <= set(entry) for entry in entries)
    started = [entry for entry in entries if entry["message"].startswith("started ")]
    assert {entry["func"] for entry in started} == {"small.say"}
    assert all(entry["task"] in entry["message"] for entry in started)
    # Of the application that could not be imported; a restart that was asked for is no warning.
    assert len([entry for entry in entries if " ended: " in entry["message"]]) == 1
    said = [
        entry for entry in entries if entry["logger"] == "small.shop"
    ]  # by the standard library's logging
    assert [(entry["level"], entry["message"]) for entry in said] == [
        ("warning", "one\nis said"),
        ("warning", "two\nis said"),
    ]
    assert any(
        entry["message"].endswith("small.py changed: the worker processes start again") for entry in entries
    )


def say(site: Site) -> str:
    ran = site.run("enqueue", "small:q", "say")
    assert ran.returncode == 0, ran.stderr
    task_id = ran.stdout.strip()
    return site.run("result", task_id, "--timeout", "30", "--url", "sqlite:///jobs.db").stdout.strip()


def test_only_python_files_of_the_project_count(tmp_path: Path) -> None:
    for name in ("a.py", "deep/b.py", "notes.txt", ".venv/c.py", "node_modules/d.py", "__pycache__/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert {path.name for path in stamps(tmp_path)} == {"a.py", "b.py"}
