"""What one worker tells Prometheus, over HTTP on a socket that somebody else has bound.

Imported only where somebody asked for metrics, so that a worker without them needs no prometheus-client.

    crew ── began, ended ──> counters and histograms ──┐
    worker, upkeep: plain numbers ─────────────────────┴──> GET /metrics, answered in a thread of its own
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from omniq.task import Action, Settlement

if TYPE_CHECKING:
    from omniq.executors import Flight
    from omniq.storage.base import Claimed
    from omniq.worker import AsyncWorkerPool

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# A loop that is blocked, or a store that is away, must not keep the rest from being told.
ASK_WITHIN_S: Final = 2.0
# Who connects and says nothing is let go.
SPEAK_WITHIN_S: Final = 5.0
ADDED_AT_ONCE: Final = 500
POLL_S: Final = 0.1  # how soon an end is noticed
BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
BOUNDS: Final = (*(str(float(bound)) for bound in BUCKETS), "+Inf")
STATUSES: Final = {
    Action.SUCCEED: "success",
    Action.REPEAT: "success",
    Action.RETRY: "retried",
    Action.FAIL: "failed",
    Action.CONTINUE: "failed",
    Action.GIVE_BACK: "given_back",
    Action.LOSE: "died",
}
LOST: Final = "lost"  # the lease was over before the run was


class Times:
    """How long something took, by bucket: what `Histogram` keeps, without its locks; one loop adds to it."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum_s = 0.0

    def add(self, took_s: float) -> None:
        self.counts[bisect_left(BUCKETS, took_s)] += 1
        self.sum_s += took_s

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each counts what the ones before it count."""
        return list(zip(BOUNDS, accumulate(self.counts), strict=True))


class Meter(Collector):
    """Counts what one worker does. `began` and `ended` are called on its loop, the rest by whoever asks."""

    def __init__(self, pool: AsyncWorkerPool) -> None:
        self._pool = pool
        self._monotonic = pool.clock.monotonic
        self._ended: deque[tuple[str, Action | None, float, timedelta | None]] = deque()  # not added up yet
        self._adding = threading.Lock()
        self._tasks: dict[tuple[str, str], int] = {}
        self._runs: dict[str, Times] = {}
        self._waits: dict[str, Times] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.registry.register(_Present(pool))

    def began(self, flight: Flight) -> None:
        flight.began = self._monotonic()

    def ended(self, flight: Flight, settlement: Settlement | None) -> None:
        """`None`: nobody asks us any more what becomes of the task."""
        task = flight.claim
        action = None if settlement is None else settlement.action
        self._ended.append((task.queue, action, self._monotonic() - flight.began, _wait_of(task)))
        if len(self._ended) >= ADDED_AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        """Many at once, in one go: a short loop is far quicker than the same steps in between other work."""
        with self._adding:
            for _ in range(len(self._ended)):
                queue, action, run_s, wait = self._ended.popleft()
                status = LOST if action is None else STATUSES[action]
                self._tasks[queue, status] = self._tasks.get((queue, status), 0) + 1
                _of(self._runs, queue).add(max(0.0, run_s))
                if wait is not None:
                    _of(self._waits, queue).add(max(0.0, wait.total_seconds()))

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        self._add_up()
        tasks = CounterMetricFamily(
            "omniq_worker_tasks", "Runs that ended, by what became of the task.", labels=["queue", "status"]
        )
        for (queue, status), many in list(self._tasks.items()):
            tasks.add_metric([queue, status], many)
        yield tasks
        for name, text, times in (
            ("run", "From a run's beginning to its end.", self._runs),
            ("wait", "From a task's due time to the beginning of its run.", self._waits),
        ):
            seconds = HistogramMetricFamily(f"omniq_worker_{name}_seconds", text, labels=["queue"])
            for queue, taken in list(times.items()):
                seconds.add_metric([queue], taken.buckets(), taken.sum_s)
            yield seconds

    @contextlib.contextmanager
    def served(self, listening: socket.socket) -> Generator[None]:
        """Answer `GET /metrics` on a socket that listens already."""
        registry = self.registry

        class Handler(_Handler):
            def exposition(self) -> bytes:
                return generate_latest(registry)

        server = ThreadingHTTPServer(listening.getsockname()[:2], Handler, bind_and_activate=False)
        server.socket.close()  # the one that it made for itself
        server.socket = listening
        server.daemon_threads = True
        thread = threading.Thread(
            target=server.serve_forever, args=(POLL_S,), name="omniq-metrics", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _wait_of(task: Claimed) -> timedelta | None:
    """From when it was due to when it was claimed, by the store's own clock."""
    due, eta, started = task.enqueued_at, task.eta, task.started_at
    if due is None or (eta is not None and eta > due):
        due = eta
    return None if due is None or started is None else started - due


def _of(times: dict[str, Times], queue: str) -> Times:
    found = times.get(queue)
    if found is None:
        found = times[queue] = Times()
    return found


class _Handler(BaseHTTPRequestHandler):
    timeout = SPEAK_WITHIN_S
    server_version, sys_version = "omniq", ""

    def exposition(self) -> bytes:
        raise NotImplementedError

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "there is only /metrics")
            return
        body = self.exposition()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A line per scrape says nothing."""


class _Present(Collector):
    """What is true at the moment of the question."""

    def __init__(self, pool: AsyncWorkerPool) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Metric]:
        return ()  # so that nothing is asked of a worker that has not begun

    def collect(self) -> Iterator[Metric]:
        pool = self._pool
        slots = GaugeMetricFamily("omniq_worker_slots", "Slots for runs.", labels=["state"])
        slots.add_metric(["busy"], pool.in_flight)
        slots.add_metric(["all"], pool.concurrency)
        yield slots
        for name, text, many in (
            ("stale_reports", "Reports of runs that somebody else had closed.", pool.stale_reports),
            ("lapses", "Tasks of others that were taken back, or ended, because their time was over.",
             pool.lapses),
            ("loop_stalls", "How often the event loop was found blocked.", pool.loop_stalls),
        ):  # fmt: skip
            yield CounterMetricFamily(f"omniq_worker_{name}", text, value=many)
        yield from self._asked()

    def _asked(self) -> list[Metric]:
        """What only the worker's loop knows; left out while that is blocked, or its store away."""
        loop = self._pool.loop
        if loop is None or loop.is_closed():
            return []
        asking = asyncio.run_coroutine_threadsafe(self._ask(), loop)
        try:
            return asking.result(ASK_WITHIN_S)
        except Exception:  # it is no news for whoever asks that a store is away
            asking.cancel()
            return []

    async def _ask(self) -> list[Metric]:
        pool = self._pool
        size = GaugeMetricFamily(
            "omniq_worker_pool_processes",
            "Processes that run tasks for this worker.",
            value=pool.process_count,
        )
        oldest = GaugeMetricFamily(
            "omniq_worker_oldest_due_seconds", "Wait of the oldest due task.", labels=["queue"]
        )
        now, waits = pool.storage.clock.now(), dict[str, float]()
        for head in await pool.storage.heads():
            if pool.queues is None or head.queue in pool.queues:
                wait_s = max(0.0, (now - head.due_at).total_seconds())
                waits[head.queue] = max(waits.get(head.queue, 0.0), wait_s)
        for queue, wait_s in waits.items():
            oldest.add_metric([queue], wait_s)
        return [size, oldest]
