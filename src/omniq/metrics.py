"""What one worker tells Prometheus, over HTTP on a socket that somebody else has bound.

Imported only where somebody asked for metrics, so that a worker without them needs no prometheus-client.

    crew ── ended ──> lists of numbers ── some hundreds at once ──> counts and buckets ──┐
    worker, upkeep: plain numbers ───────────────────────────────────────────────────────┴──> GET /metrics,
                                                                        answered in a thread of its own
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeVar

from loguru import logger
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from omniq.task import Action, Settlement

if TYPE_CHECKING:
    from omniq.executors import Flight
    from omniq.worker import AsyncWorkerPool

T = TypeVar("T")
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
# A series that is missing until something fails hides the first failure from `increase()`.
ALL_STATUSES: Final = tuple(dict.fromkeys((*STATUSES.values(), LOST)))
# Each queue is some forty series. Where queues are named after customers, later ones are counted together.
MAX_QUEUES: Final = 500
OTHERS: Final = "(others)"  # no queue can have this name


class Times:
    """How long something took, by bucket: what `Histogram` keeps, without its locks."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum_s = 0.0

    def add(self, took_s: Iterable[float]) -> None:
        """Sorted, so that only the ends of the buckets have to be looked for."""
        ordered = sorted(took_s)
        if ordered and ordered[0] < 0:  # a clock was set back
            ordered = [max(0.0, one) for one in ordered]
        below = 0
        for n, bound in enumerate(BUCKETS):
            up_to = bisect_right(ordered, bound, below)
            self.counts[n] += up_to - below
            below = up_to
        self.counts[-1] += len(ordered) - below
        self.sum_s += sum(ordered)

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each counts what the ones before it count."""
        return list(zip(BOUNDS, accumulate(self.counts), strict=True))


class _Queue:
    """The runs of one queue: those that were added up, and the latest, as bare numbers.

    Numbers in lists are nothing that the garbage collector counts. Anything else that is kept for each run
    makes it go round several times as often, which costs more than all of the counting.
    """

    __slots__ = ("actions", "run_s", "runs", "statuses", "waited", "waits")

    def __init__(self) -> None:
        self.actions: list[Action | None] = []
        self.run_s: list[float] = []
        self.waited: list[timedelta] = []
        self.statuses: dict[str, int] = {}
        self.runs = Times()
        self.waits = Times()

    def add_up(self) -> None:
        for action, many in Counter(_taken(self.actions)).items():
            status = LOST if action is None else STATUSES[action]
            self.statuses[status] = self.statuses.get(status, 0) + many
        self.runs.add(_taken(self.run_s))
        self.waits.add(map(timedelta.total_seconds, _taken(self.waited)))


def _taken(latest: list[T]) -> list[T]:
    """Emptied, while the loop may go on to add at its end: the interpreter does each step in one."""
    taken = latest[:]
    del latest[: len(taken)]
    return taken


class Meter(Collector):
    """Counts what one worker does. `ended` is called on its loop, the rest by whoever asks."""

    def __init__(self, pool: AsyncWorkerPool) -> None:
        self._pool = pool
        self._monotonic = pool.clock.monotonic
        self._queues: dict[str, _Queue] = {}
        self._adding = threading.Lock()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.registry.register(_Present(pool))

    def ended(self, flight: Flight, settlement: Settlement | None) -> None:
        """`None`: nobody asks us any more what becomes of the task."""
        task = flight.claim
        found = self._queues.get(task.queue) or self._queue(task.queue)
        found.actions.append(None if settlement is None else settlement.action)
        found.run_s.append(self._monotonic() - flight.began)
        # The wait is from when it was due to when it was claimed, by the store's own clock.
        due, eta, started = task.enqueued_at, task.eta, task.started_at
        if due is None or (eta is not None and eta > due):
            due = eta
        if due is not None and started is not None:
            found.waited.append(started - due)
        if len(found.run_s) >= ADDED_AT_ONCE:
            with self._adding:
                found.add_up()

    def _queue(self, name: str) -> _Queue:
        if len(self._queues) >= MAX_QUEUES:
            name = OTHERS
        return self._queues.setdefault(name, _Queue())

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for name in (self._pool.queues or ())[:MAX_QUEUES]:  # also those where nothing has ended yet
            self._queues.setdefault(name, _Queue())
        queues = sorted(self._queues.items())
        tasks = CounterMetricFamily(
            "omniq_worker_tasks", "Runs that ended, by what became of the task.", labels=["queue", "status"]
        )
        runs = HistogramMetricFamily(
            "omniq_worker_run_seconds", "From a run's beginning to its end.", labels=["queue"]
        )
        waits = HistogramMetricFamily(
            "omniq_worker_wait_seconds",
            "From a task's due time to the beginning of its run.",
            labels=["queue"],
        )
        for queue, found in queues:
            with self._adding:  # for each anew: the loop is not to wait for all of them
                found.add_up()
                for status in ALL_STATUSES:
                    tasks.add_metric([queue, status], found.statuses.get(status, 0))
                runs.add_metric([queue], found.runs.buckets(), found.runs.sum_s)
                waits.add_metric([queue], found.waits.buckets(), found.waits.sum_s)
        yield from (tasks, runs, waits)

    @contextlib.contextmanager
    def served(self, listening: socket.socket) -> Generator[None]:
        """Answer `GET /metrics` on a socket that listens already."""
        registry = self.registry

        class Handler(_Handler):
            def exposition(self) -> bytes:
                return generate_latest(registry)

        server = _Server(listening.getsockname()[:2], Handler, bind_and_activate=False)
        server.socket.close()  # the one that it made for itself
        server.socket = listening
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked may go away before the answer, as Prometheus does after its timeout."""
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            logger.opt(exception=error).error("could not answer a question for metrics")


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
        slots.add_metric(["free"], max(0, pool.concurrency - pool.in_flight))
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
        now, waits = pool.storage.clock.now(), dict.fromkeys((pool.queues or ())[:MAX_QUEUES], 0.0)
        for head in sorted(await pool.storage.heads(), key=lambda one: one.due_at):
            if pool.queues is None or head.queue in pool.queues:
                queue = head.queue if head.queue in waits or len(waits) < MAX_QUEUES else OTHERS
                wait_s = max(0.0, (now - head.due_at).total_seconds())
                waits[queue] = max(waits.get(queue, 0.0), wait_s)
        for queue, wait_s in waits.items():
            oldest.add_metric([queue], wait_s)
        return [size, oldest]
