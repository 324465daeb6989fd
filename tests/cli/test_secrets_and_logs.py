"""S12 and S19: nothing that is secret is printed, and nothing that a task says can forge a line."""

import os
import signal

from omniq.cli.text import masked, one_line
from omniq.task import TaskStatus
from tests.cli.site import Site, call, until_begun, until_status

CANARIES = ("CANARY-ARG", "CANARY-KWARG", "CANARY-HEADER", "CANARY-ENV", "CANARY-DSN")
FOREIGN = "amqp://ann:CANARY-DSN@db.example.org/jobs"  # nobody speaks that, so nobody is asked
AWAY = "postgresql://ann:CANARY-DSN@127.0.0.1:1/jobs"  # where nobody listens


async def test_s12_secrets_are_never_printed(site: Site) -> None:
    """S12: arguments, headers, the environment and passwords of URLs, at the most talkative level."""
    outputs: list[str] = []
    async with site.store() as store:
        secret = call(
            "boom", "CANARY-ARG", kwargs={"token": "CANARY-KWARG"}, headers={"auth": "CANARY-HEADER"}
        )
        nap = call("nap", "nap", 600.0, kwargs={}, headers={"auth": "CANARY-HEADER"})
        with site.worker("--log-level", "debug", "--debug", "--grace", "0", SECRET="CANARY-ENV") as worker:
            await worker.ready(store)
            failed, _ = await store.enqueue(secret), await store.enqueue(nap)
            await until_status(store, [failed], TaskStatus.FAILED)
            await until_begun(site, "nap")
            for pid in worker.children():
                os.kill(pid, signal.SIGKILL)
            await until_begun(site, "nap", 2)
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0
            outputs.append(worker.log)
            assert failed in worker.log, "the log says nothing about the task at all"
    url = ["--url", "sqlite:///jobs.db", "--debug"]
    commands = (
        ["tasks"],
        ["show", failed],
        ["show", failed, "--json"],
        ["doctor"],
        ["retry", failed, "unknown"],
    )
    ended = [site.run(*command, *url, SECRET="CANARY-ENV") for command in commands]
    ended += [
        site.run(*command, "--debug", "--url", FOREIGN) for command in (["doctor"], ["worker", "jobs:q"])
    ]
    away = [site.run(*command, "--debug", "--url", AWAY) for command in (["doctor"], ["tasks"], ["migrate"])]
    assert all(one.returncode for one in away)
    ended += away
    ended.append(site.run("tasks", "--debug", OMNIQ_URL="sqlite://ann:CANARY-DSN@x"))
    outputs += [one.stdout + one.stderr for one in ended]
    assert all(outputs)
    for canary in CANARIES:
        assert not [output for output in outputs if canary in output]


def test_s12_passwords_are_masked_wherever_they_stand() -> None:
    assert masked("at postgresql://ann:secret@host/db, then") == "at postgresql://ann:***@host/db, then"
    assert masked("redis://:p@ss:w0rd@host:1/0") == "redis://:***@host:1/0"
    assert masked("sqlite:////var/jobs.db") == "sqlite:////var/jobs.db"
    assert masked("'https://host:80/path'") == "'https://host:80/path'"


async def test_s19_a_log_record_is_one_line(site: Site) -> None:
    """S19: line breaks, ANSI and U+2028 in what a task says or raises are spelled out."""
    async with site.store() as store:
        with site.worker() as worker:
            await worker.ready(store)
            ids = [
                await store.enqueue(call("chat")),
                await store.enqueue(call("boom", "a", kwargs={"token": "b"}, max_retries=0)),
            ]
            await until_status(store, ids, TaskStatus.SUCCESS, TaskStatus.FAILED)
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0
            log = worker.log
    assert "\x1b" not in log
    [line] = [line for line in log.splitlines() if "evil" in line]
    assert "evil\\n2020-01-01" in line
    assert not [line for line in log.splitlines() if line.startswith("2020")]
    assert len([line for line in log.splitlines() if ids[1] in line and "ValueError" in line]) == 1
    assert all(line[4] == "-" and line[24:31].strip() in ("INFO", "WARNING") for line in log.splitlines())


def test_s19_text_for_one_line() -> None:
    assert one_line("plain ümläut") == "plain ümläut"
    assert one_line("a\nb\r\x1b[31m\u2028\u202e\x85\x00") == "a\\nb\\r\\x1b[31m\\u2028\\u202e\\x85\\x00"
    assert one_line("lone \udc80") == "lone \\udc80"


async def test_the_level_is_obeyed(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--log-level", "warning") as worker:
            await worker.ready(store)
            await until_status(store, [await store.enqueue(call("chat"))], TaskStatus.SUCCESS)
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0
            assert [line[24:31].strip() for line in worker.log.splitlines()] == ["WARNING"]
