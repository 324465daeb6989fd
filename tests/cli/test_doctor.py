"""`omniq doctor`: well stores, sick ones, and who works on them."""

import json
import os
import signal
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from omniq.cli.examine_store import wal_reset
from omniq.task import TaskStatus
from tests.cli.site import Site, call, until, until_begun, until_status

URL = "sqlite:///jobs.db"
Findings = list[tuple[str, str, str]]


def examined(site: Site, code: int = 0) -> Findings:
    ended = site.run("doctor", "--json", "--url", URL)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr == ""
    return [(one["level"], one["about"], one["text"]) for one in json.loads(ended.stdout)]


def levels(findings: Findings, about: str) -> list[str]:
    return [level for level, what, _ in findings if what == about]


async def test_a_store_that_is_well(site: Site) -> None:
    async with site.store() as store:
        with site.worker() as worker:
            [child] = await worker.ready(store)
            await store.enqueue(call("nap", "nap", 600.0))
            await until_begun(site, "nap")
            findings = examined(site)
    assert levels(findings, "data") == ["ok"]
    assert levels(findings, "workers") == ["ok"]
    assert levels(findings, "files") == ["ok"]
    assert levels(findings, "clock") == ["ok"]
    assert levels(findings, "leftovers") == ["ok"]
    [(level, _, text)] = [finding for finding in findings if finding[1] == "running"]
    assert level == "ok"
    assert f":{child}:" in text
    assert "jobs.nap" in text
    plain = site.run("doctor", "--url", URL).stdout
    assert "problems: 0" in plain


async def test_what_killed_processes_leave_behind(site: Site) -> None:
    async with site.store() as store:
        with site.worker() as worker:
            [child] = await worker.ready(store)
            task_id = await store.enqueue(call("nap", "nap", 600.0))
            await until_begun(site, "nap")
            os.kill(worker.pid, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
            await worker.ended()

            async def dead() -> bool:
                return levels(examined(site), "running") == ["warning"]

            await until(dead, "the dead worker is noticed")
        findings = examined(site)
        assert levels(findings, "workers") == ["warning"]
        assert levels(findings, "leftovers") == ["note"]
        [task] = await until_status(store, [task_id], TaskStatus.RUNNING)
        assert task.epoch == 1, "looking changed something"


async def test_modes_that_let_others_in(site: Site) -> None:
    async with site.store():
        site.file.chmod(0o644)
        site.folder.chmod(0o777)
        texts = [text for level, about, text in examined(site) if (level, about) == ("warning", "files")]
        assert any("jobs.db has mode 644" in text for text in texts)
        assert any("everybody can write" in text for text in texts)


async def test_a_clock_that_was_set_back(site: Site) -> None:
    async with site.store() as store:
        task_id = await store.enqueue(call("nap", "nap"))
    ahead = round((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1_000_000)
    change(site, "UPDATE omniq_task SET enqueued_at = ?, due = ? WHERE id = ?", (ahead, ahead, task_id))
    assert levels(examined(site), "clock") == ["warning"]


async def test_data_that_makes_no_sense(site: Site) -> None:
    async with site.store() as store:
        task_id = await store.enqueue(call("nap", "nap"))
    change(site, "UPDATE omniq_task SET status = 1 WHERE id = ?", (task_id,))
    problems = [
        text for level, about, text in examined(site, code=1) if (level, about) == ("problem", "data")
    ]
    assert any(task_id in text for text in problems)


def change(site: Site, statement: str, values: tuple[object, ...]) -> None:
    with sqlite3.connect(site.file) as connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be one", b"SQLite format 3\x00" * 400]
)
def test_a_file_that_is_no_store(site: Site, content: bytes) -> None:
    site.file.write_bytes(content)
    assert "problem" in levels(examined(site, code=1), "store")
    assert site.file.read_bytes() == content


@pytest.mark.parametrize(
    ("version", "processes", "level"),
    [
        ((3, 6, 23), 8, "ok"),
        ((3, 7, 0), 2, "warning"),
        ((3, 51, 2), 2, "warning"),
        ((3, 51, 2), 1, "note"),
        ((3, 51, 3), 2, "ok"),
        ((4, 0, 0), 2, "ok"),
    ],
)
def test_the_wal_reset_race_is_named(version: tuple[int, ...], processes: int, level: str) -> None:
    finding = wal_reset(version, processes)
    assert finding.level == level
    assert ".".join(map(str, version)) in finding.text
