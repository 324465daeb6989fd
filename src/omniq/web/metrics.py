"""What a store has to say to Prometheus: the same tallies and heads that the pages show."""

from __future__ import annotations

from typing import Final

from omniq.errors import Unsupported
from omniq.logic.health import is_silent
from omniq.storage.base import BaseStorage
from omniq.storage.tallying import counted
from omniq.task import Tally

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_EVENTS: Final = {
    "enqueued": "enqueued",
    "succeeded": "succeeded",
    "given_up": "failed",
    "stopped": "cancelled",
    "retried": "retried",
    "lost": "lost",
}


async def exposition(storage: BaseStorage) -> bytes:
    """All of it as Prometheus reads it."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError:
        raise Unsupported("metrics need pip install 'omniq-tasks[metrics]'") from None

    now = storage.clock.now()
    tallies, workers = await storage.tallies(), await storage.workers()
    held = GaugeMetricFamily("omniq_tasks", "Tasks in the store.", labels=["queue", "status"])
    for queue, per_status in counted(tallies).items():
        for status, many in per_status.items():
            held.add_metric([queue, status.lower()], many)
    events = CounterMetricFamily("omniq_task_events", "What happened to tasks.", labels=["queue", "event"])
    for (queue, event), many in _sums(tallies).items():
        events.add_metric([queue, event], many)
    oldest = GaugeMetricFamily("omniq_oldest_due_seconds", "Wait of the oldest due task.", labels=["queue"])
    waited: dict[str, float] = {}
    for head in await storage.heads():
        waited[head.queue] = max(waited.get(head.queue, 0.0), (now - head.due_at).total_seconds())
    for queue, wait_s in waited.items():
        oldest.add_metric([queue], wait_s)
    paused = GaugeMetricFamily("omniq_queue_paused", "1 for each paused queue.", labels=["queue"])
    for queue in await storage.paused():
        paused.add_metric([queue], 1)
    workers = [
        one for one in workers if not is_silent(one.seen_at, now)
    ]  # the slots of the dead are not free
    slots = GaugeMetricFamily("omniq_slots", "Slots of the workers that beat.", labels=["state"])
    slots.add_metric(["busy"], sum(one.in_flight for one in workers))
    slots.add_metric(["free"], sum(max(0, one.concurrency - one.in_flight) for one in workers))

    class Seen:
        def collect(self) -> list[object]:
            return [held, events, oldest, paused, slots]

    registry = CollectorRegistry()
    registry.register(Seen())  # type: ignore[arg-type]
    return generate_latest(registry)


def _sums(tallies: list[Tally]) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for tally in tallies:
        for name, event in _EVENTS.items():
            key = (tally.queue, event)
            sums[key] = sums.get(key, 0) + getattr(tally, name)
    return sums
