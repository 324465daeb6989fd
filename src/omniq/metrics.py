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
from collections.abc import Generator, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omniq.task import Action, Settlement

if TYPE_CHECKING:
    from omniq.executors import Flight
    from omniq.worker import AsyncWorkerPool

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# A loop that is blocked, or a store that is away, must not keep the rest from being told.
ASK_WITHIN_S: Final = 2.0
# Who connects and says nothing is let go.
SPEAK_WITHIN_S: Final = 5.0
POLL_S: Final = 0.1  # how soon an end is noticed
BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
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


class Meter:
    """Counts what one worker does. `began` and `ended` are called on its loop, the rest by whoever asks."""

    def __init__(self, pool: AsyncWorkerPool) -> None:
        self._pool = pool
        self.registry = CollectorRegistry()
        self._tasks = Counter(
            "omniq_worker_tasks",
            "Runs that ended, by what became of the task.",
            ["queue", "status"],
            registry=self.registry,
        )
        self._run = Histogram(
            "omniq_worker_run_seconds", "From a run's beginning to its end.", ["queue"],
            buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._wait = Histogram(
            "omniq_worker_wait_seconds", "From a task's due time to the beginning of its run.", ["queue"],
            buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._counters: dict[tuple[str, str], Counter] = {}
        self._timers: dict[str, tuple[Histogram, Histogram]] = {}
        self.registry.register(_Present(pool))

    def began(self, flight: Flight) -> None:
        task, clock = flight.claim, self._pool.clock
        flight.began = clock.monotonic()
        due = [at for at in (task.enqueued_at, task.eta) if at is not None]
        if due:
            _, wait = self._timers_of(task.queue)
            wait.observe(max(0.0, (clock.now() - max(due)).total_seconds()))

    def ended(self, flight: Flight, settlement: Settlement | None) -> None:
        """`None`: nobody asks us any more what becomes of the task."""
        queue = flight.claim.queue
        status = LOST if settlement is None else STATUSES[settlement.action]
        counter = self._counters.get((queue, status))
        if counter is None:
            counter = self._counters[queue, status] = self._tasks.labels(queue, status)
        counter.inc()
        self._timers_of(queue)[0].observe(max(0.0, self._pool.clock.monotonic() - flight.began))

    def _timers_of(self, queue: str) -> tuple[Histogram, Histogram]:
        """Found once per queue: `labels` takes longer than what is done with them."""
        timers = self._timers.get(queue)
        if timers is None:
            timers = self._timers[queue] = (self._run.labels(queue), self._wait.labels(queue))
        return timers

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
