"""What a store has to say to Prometheus: the same tallies and heads that the pages show."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from omniq.errors import Unsupported
from omniq.logic.health import is_silent
from omniq.storage.base import BaseStorage
from omniq.storage.tallying import counted
from omniq.task import Tally, TaskStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Each queue is a dozen series. Where there are more queues than this, the others are counted together.
MAX_QUEUES: Final = 500
OTHERS: Final = "(others)"  # no queue can have this name
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
    tallies, workers, closed = await storage.tallies(), await storage.workers(), await storage.paused()
    heads = await storage.heads()
    shown = _shown(tallies, closed)

    def label(queue: str) -> str:
        return queue if queue in shown else OTHERS

    held = GaugeMetricFamily("omniq_tasks", "Tasks in the store.", labels=["queue", "status"])
    counts = {(queue, status): 0 for queue in shown for status in TaskStatus}
    for queue, per_status in counted(tallies).items():
        for status, many in per_status.items():
            counts[label(queue), status] = counts.get((label(queue), status), 0) + many
    for (queue, status), many in counts.items():
        held.add_metric([queue, status.lower()], many)
    events = CounterMetricFamily("omniq_task_events", "What happened to tasks.", labels=["queue", "event"])
    for (queue, event), many in _sums(tallies, label).items():
        events.add_metric([queue, event], many)
    oldest = GaugeMetricFamily(
        "omniq_oldest_due_seconds", "Wait of the oldest due task; 0 where none is due.", labels=["queue"]
    )
    waited = dict.fromkeys(shown, 0.0)
    for head in heads:
        queue, wait_s = label(head.queue), (now - head.due_at).total_seconds()
        waited[queue] = max(waited.get(queue, 0.0), wait_s)
    for queue, wait_s in waited.items():
        oldest.add_metric([queue], wait_s)
    paused = GaugeMetricFamily("omniq_queue_paused", "1 for each paused queue.", labels=["queue"])
    for queue in dict.fromkeys((*shown, *map(label, sorted(closed)))):
        paused.add_metric([queue], queue in closed or (queue == OTHERS and not closed <= shown.keys()))
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


def _shown(tallies: list[Tally], paused: Collection[str]) -> dict[str, None]:
    """The queues that have series of their own: where there are too many, those that had the most tasks.

    A queue that is not there is no number that falls to 0: whoever draws it sees a gap.
    """
    had = dict.fromkeys(paused, 0)
    for tally in tallies:
        had[tally.queue] = had.get(tally.queue, 0) + tally.enqueued
    return dict.fromkeys(sorted(sorted(had, key=lambda queue: (-had[queue], queue))[:MAX_QUEUES]))


def _sums(tallies: list[Tally], label: Callable[[str], str]) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for tally in tallies:
        queue = label(tally.queue)
        for name, event in _EVENTS.items():
            sums[queue, event] = sums.get((queue, event), 0) + getattr(tally, name)
    return sums
