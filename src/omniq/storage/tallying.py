"""Counts and rates without counting: what each write changes, added up by queue and minute.

A store adds the changes of a transaction to its tallies in that same transaction, so that all tallies added
up are what it holds, whatever dies when. Nobody ever counts rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from omniq.task import Rates, Run, RunOutcome, Tally, TaskStatus

# So long minutes are told apart; what is older is put together into one, at the epoch.
KEEP_MINUTES: Final = 120
FIRST_MINUTE: Final = datetime(1970, 1, 1, tzinfo=UTC)

COLUMNS: Final = Tally.__struct_fields__[2:]
_AT: Final = {name: index for index, name in enumerate(COLUMNS)}
_STATUS_AT: Final = {status: index for index, status in enumerate(TaskStatus)}
_ARRIVING: Final = {
    TaskStatus.SUCCESS: _AT["succeeded"],
    TaskStatus.FAILED: _AT["given_up"],
    TaskStatus.CANCELLED: _AT["stopped"],
}
# What a run that leaves its task waiting again counts as.
_GOING_ON: Final = {
    RunOutcome.SUCCESS: _AT["succeeded"],
    RunOutcome.FAILED: _AT["given_up"],
    RunOutcome.RETRIED: _AT["retried"],
}
_ENQUEUED: Final = _AT["enqueued"]
_LOST: Final = _AT["lost"]


def minute_of(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def oldest_minute(now: datetime) -> datetime:
    """What is before this is put together."""
    return minute_of(now) - timedelta(minutes=KEEP_MINUTES)


class Changes:
    """What one transaction changes, by queue."""

    def __init__(self) -> None:
        self.by_queue: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_queue)

    def clear(self) -> None:
        self.by_queue = {}

    def copy(self) -> dict[str, list[int]]:
        return {queue: list(numbers) for queue, numbers in self.by_queue.items()}

    def _of(self, queue: str) -> list[int]:
        numbers = self.by_queue.get(queue)
        if numbers is None:
            numbers = self.by_queue[queue] = [0] * len(COLUMNS)
        return numbers

    def move(self, queue: str, before: TaskStatus | None, after: TaskStatus | None, many: int = 1) -> None:
        """`many` tasks went from one status to another; None is "no such task"."""
        if before is after:
            return
        numbers = self._of(queue)
        if before is not None:
            numbers[_STATUS_AT[before]] -= many
        if after is None:
            return
        numbers[_STATUS_AT[after]] += many
        if before is None:
            numbers[_ENQUEUED] += many
        elif after in _ARRIVING:
            numbers[_ARRIVING[after]] += many

    def close(self, queue: str, after: TaskStatus, run: Run) -> None:
        """A run ended that has a line in the history; `after` is the status of its task now."""
        if run.outcome in (RunOutcome.LOST, RunOutcome.DIED):
            self._of(queue)[_LOST] += 1
        elif after is TaskStatus.PENDING and run.outcome in _GOING_ON:
            self._of(queue)[_GOING_ON[run.outcome]] += 1


def counted(tallies: Iterable[Tally]) -> dict[str, dict[TaskStatus, int]]:
    """How many tasks each queue has in each status; queues without any are left out."""
    sums: dict[str, list[int]] = {}
    for tally in tallies:
        of = sums.get(tally.queue)
        if of is None:
            of = sums[tally.queue] = [0] * len(_STATUS_AT)
        of[0] += tally.pending
        of[1] += tally.running
        of[2] += tally.success
        of[3] += tally.failed
        of[4] += tally.cancelled
    return {queue: dict(zip(_STATUS_AT, of, strict=True)) for queue, of in sums.items() if any(of)}


def miscounted(tallies: Iterable[Tally], rows: Mapping[tuple[str, TaskStatus], int]) -> list[str]:
    """For `verify`: where the tallies say something else than the rows themselves."""
    told = {(queue, status): n for queue, of in counted(tallies).items() for status, n in of.items() if n}
    differing = [key for key in sorted(told.keys() | rows.keys()) if told.get(key, 0) != rows.get(key, 0)]
    return [
        f"queue {key[0]} counts {told.get(key, 0)} {key[1]}, but has {rows.get(key, 0)}" for key in differing
    ]


def rated(tallies: Iterable[Tally], since: datetime, now: datetime) -> Rates:
    """What happened since the beginning of the minute that `since` is in."""
    begin = minute_of(since)
    told = [tally for tally in tallies if tally.minute >= begin]
    return Rates(
        enqueued=sum(one.enqueued for one in told),
        succeeded=sum(one.succeeded for one in told),
        failed=sum(one.given_up for one in told),
        cancelled=sum(one.stopped for one in told),
        over_s=(now - begin).total_seconds(),
        retried=sum(one.retried for one in told),
        lost=sum(one.lost for one in told),
    )
