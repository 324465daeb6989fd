"""How long the dashboard's pages take on a store with a million tasks.

    python -m benchmarks.pages [--tasks N] [--requests N] [sqlite] [postgres]

`omniq dashboard` in a process of its own, asked over HTTP by one client, one request after the other: what a
page waits for. The questions take turns. PostgreSQL is a private one (or that of OMNIQ_BENCH_POSTGRES).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks.harness.postgres import PostgresServer
from benchmarks.million import fill_postgres, fill_sqlite
from benchmarks.systems.base import address_in

GOAL_MS = 100.0
STORES = ("sqlite", "postgres")
# What people ask; the last ones find little or nothing, which must not make them slow (S11).
QUESTIONS = {
    "overview": "overview",
    "tasks": "tasks",
    "tasks, running": "tasks?status=RUNNING",
    "tasks, waiting in a queue": "tasks?status=PENDING&queue=reports",
    "tasks, failed": "tasks?status=FAILED",
    "tasks, done, of a function": "tasks?status=SUCCESS&func=shop.images.resize",
    "tasks, text of the error": "tasks?error=identify",
    "tasks, 200 of them": "tasks?limit=200",
    "tasks, deep in the list": "tasks?status=SUCCESS&after={deep}",
    "tasks, an error that nobody had": "tasks?error=(a%2B)%2B%24",
    "tasks, a queue that is not there": "tasks?queue=nowhere",
    "tasks, a function that is not there": "tasks?func=nobody",
    "one task": "task?id={deep}",
    "workers": "workers",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stores", nargs="*", metavar="STORE", help=" or ".join(STORES))
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=200)
    told = parser.parse_args()
    if unknown := set(told.stores) - set(STORES):
        parser.error(f"no store is called {', '.join(sorted(unknown))} here; there are: {', '.join(STORES)}")
    print(f"{told.tasks:,} tasks, {told.requests} requests each, ms\n")
    print("| store | question | p50 | p99 | largest |\n|---|---|---|---|---|")
    for store in told.stores or STORES:
        with _filled(store, told.tasks) as (url, deep), _served(url) as address:
            for name, taken in _asked(address, deep, told.requests).items():
                ordered = sorted(taken)
                p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
                late = "" if p99 < GOAL_MS else " MISSED"
                print(
                    f"| {store} | {name} | {statistics.median(taken):.1f} | {p99:.1f}{late} "
                    f"| {ordered[-1]:.1f} |",
                    flush=True,
                )


@contextlib.contextmanager
def _filled(store: str, tasks: int) -> Iterator[tuple[str, str]]:
    """The address of a full store, and the id of a task deep in it."""
    with tempfile.TemporaryDirectory(prefix="omniq-pages-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if store == "sqlite":
            fill_sqlite(folder / "jobs.db", tasks)
            yield f"sqlite:///{folder}/jobs.db", f"{2:08x}-0000-7000-8000-{tasks // 4:012x}"
            return
        server = PostgresServer()
        stack.callback(server.stop)
        server.start()
        stack.enter_context(server.place(folder))
        asyncio.run(fill_postgres(address_in(folder), tasks))
        yield address_in(folder), f"mail-2-{tasks // 4:012}"


@contextlib.contextmanager
def _served(url: str) -> Iterator[str]:
    command = [sys.executable, "-m", "omniq", "dashboard", "--port", "0", "--url", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[2]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def _asked(address: str, deep: str, requests: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in QUESTIONS}
    with httpx.Client(base_url=address, timeout=60) as asking:
        for turn in range(requests + 1):
            for name, question in QUESTIONS.items():
                began = time.perf_counter()
                asking.get(f"api/{question.format(deep=deep)}").raise_for_status()
                if turn:  # the first opens connections and files
                    taken[name].append(1000 * (time.perf_counter() - began))
    return taken


if __name__ == "__main__":
    main()
