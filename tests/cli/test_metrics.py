"""`omniq worker --metrics-port`: what Prometheus reads from each worker process."""

import asyncio
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omniq import AsyncWorkerPool, Task
from omniq.metrics import BOUNDS, MAX_QUEUES, OTHERS, Times
from omniq.storage import MemoryStorage
from omniq.task import replace
from tests.cli.site import Site, Worker, call, until

ADDRESS = re.compile(r"metrics on (http://127\.0\.0\.1:\d+/metrics)")
Samples = dict[tuple[str, str, str], float]


async def addresses(worker: Worker, many: int = 1) -> list[str]:
    async def told() -> bool:
        return len(ADDRESS.findall(worker.log)) >= many

    await until(told, lambda: f"{many} addresses; the log:\n{worker.log}")
    return ADDRESS.findall(worker.log)


async def scraped(address: str) -> Samples:
    """Every sample by its name, its queue, and its status or state."""
    async with httpx.AsyncClient(timeout=30) as asking:
        answer = await asking.get(address)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (
            one.name,
            one.labels.get("queue", ""),
            one.labels.get("status", one.labels.get("state", "")),
        ): one.value
        for family in text_string_to_metric_families(answer.text)
        for one in family.samples
        if "le" not in one.labels
    }


def test_buckets_count_what_took_no_longer_than_they_say() -> None:
    """In parts as in one go; what took less than nothing, because a clock was set back, took nothing."""
    taken = [-0.5, 0.0, 0.001, 0.0011, 0.5, 0.5, 7200.0, 7201.0]
    once, parts = Times(), Times()
    once.add(taken)
    for one in taken:
        parts.add([one])
    parts.add([])
    expected = {bound: sum(max(0.0, one) <= float(bound) for one in taken) for bound in BOUNDS}
    assert dict(once.buckets()) == dict(parts.buckets()) == expected
    assert once.sum_s == parts.sum_s == sum(taken) + 0.5


async def test_queues_without_end_are_counted_together() -> None:
    pool = AsyncWorkerPool(MemoryStorage(), queues=["first", "second"])
    meter = pool.measured()
    task = replace(Task("jobs.a"), enqueued_at=datetime.now(UTC))
    many = MAX_QUEUES + 50
    for n in range(many):
        flight = SimpleNamespace(claim=replace(task, queue=f"q{n}"), began=0.0)
        meter.ended(flight, None)  # type: ignore[arg-type]
    families = {one.name: one for one in meter.collect()}
    lost = {
        one.labels["queue"]: one.value
        for one in families["omniq_worker_tasks"].samples
        if one.labels["status"] == "lost"
    }
    assert (lost["q0"], lost[OTHERS], lost["first"]) == (1, 50, 0)
    assert sum(lost.values()) == many
    assert len(lost) == MAX_QUEUES + 3


async def test_who_goes_away_before_the_answer_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    """Prometheus does, after its timeout; a stack trace for each is what people see at night."""
    pool = AsyncWorkerPool(MemoryStorage(), queues=[f"queue-{n}" for n in range(200)])
    meter, listening = pool.measured(), socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()

    def hang_up() -> None:
        for _ in range(5):
            with socket.create_connection(address) as asking:
                asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with socket.create_connection(address) as asking:
            asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            while asking.recv(65_536):
                pass

    async with pool:
        with meter.served(listening):
            await asyncio.to_thread(hang_up)
            while any("process_request_thread" in one.name for one in threading.enumerate()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert "Traceback" not in capfd.readouterr().err


async def test_a_worker_counts_and_times_its_runs(site: Site) -> None:
    async with site.store() as store:
        for name in ("a", "b"):
            await store.enqueue(call("nap", name, queue="mail"))
        await store.enqueue(call("boom", 1, queue="mail", max_retries=0))  # without its token
        with site.worker("--metrics-port", "0") as worker:
            [address] = await addresses(worker)
            seen: Samples = {}

            async def ended() -> bool:
                nonlocal seen
                seen = await scraped(address)
                return sum(n for (name, *_), n in seen.items() if name == "omniq_worker_tasks_total") >= 3

            await until(ended, lambda: f"three runs, not {seen}; the log:\n{worker.log}")
            assert seen["omniq_worker_tasks_total", "mail", "success"] == 2
            assert seen["omniq_worker_tasks_total", "mail", "failed"] == 1
            # What never happened is 0, not missing: else `increase()` does not see its first time.
            never = [seen["omniq_worker_tasks_total", "mail", one] for one in ("retried", "died", "lost")]
            assert never == [0, 0, 0]
            assert seen["omniq_worker_run_seconds_count", "mail", ""] == 3
            assert seen["omniq_worker_wait_seconds_count", "mail", ""] == 3
            assert 0 < seen["omniq_worker_run_seconds_sum", "mail", ""] < 60
            assert sum(n for (name, *_), n in seen.items() if name == "omniq_worker_slots") == 100
            zeros = ("stale_reports_total", "lapses_total", "loop_stalls_total", "pool_processes")
            assert {seen[f"omniq_worker_{name}", "", ""] for name in zeros} == {0}
            async with httpx.AsyncClient(timeout=30) as asking:
                assert (await asking.get(address.removesuffix("metrics"))).status_code == 404


async def test_what_waits_and_what_lapsed(site: Site) -> None:
    async with site.store() as store:
        await store.enqueue(call("nap", "mine", queue="mail"))
        await store.claim("worker@gone:1:abc", limit=1, lease=0.05)
        await store.enqueue(call("hold", "now", queue="mail"))
        with site.worker("--metrics-port", "0", "--concurrency", "1") as worker:
            [address] = await addresses(worker)
            seen: Samples = {}

            async def lapsed_and_full() -> bool:
                nonlocal seen
                seen = await scraped(address)
                return (
                    seen.get(("omniq_worker_lapses_total", "", "")) == 1
                    and seen.get(("omniq_worker_slots", "", "busy")) == 1
                    and ("omniq_worker_oldest_due_seconds", "mail", "") in seen
                )

            await until(lapsed_and_full, lambda: f"a lapse, not {seen}; the log:\n{worker.log}")
            assert seen["omniq_worker_oldest_due_seconds", "mail", ""] >= 0


async def test_each_process_serves_its_own_and_its_heir_goes_on(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--metrics-port", "0", "--processes", "2") as worker:
            both = await addresses(worker, 2)
            first, _ = await worker.ready(store, 2)
            assert len(set(both)) == 2
            assert all([await scraped(one) for one in both])
            os.kill(first, signal.SIGKILL)

            async def replaced() -> bool:
                return first not in worker.children() and len(worker.children()) == 2

            await until(replaced, lambda: worker.log)
            # Whoever asks meanwhile waits for the heir; nobody is turned away.
            assert all(await asyncio.gather(*map(scraped, both)))
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0


def test_a_taken_port_is_told_in_one_line(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = site.run("worker", "jobs:q", "--metrics-port", str(port))
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "--metrics-port 0" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_without_the_library_it_says_what_to_install(site: Site) -> None:
    """A module that is None counts as not there, for `import` as for `find_spec`."""
    hidden = "import sys; sys.modules['prometheus_client'] = None; from omniq.cli import main; main()"
    command = [sys.executable, "-c", hidden, "worker", "jobs:q", "--metrics-port", "0"]
    ended = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, timeout=40, check=False)
    assert ended.returncode == 1
    assert "omniq-tasks[metrics]" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_nothing_of_it_is_imported_unasked() -> None:
    look = "import sys, omniq.cli.child, omniq.cli.supervisor; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], timeout=40, check=False).returncode == 0
