"""Claims that a storage remembers for verbs without an epoch: the newest of each task, and not for ever."""

from omniq.storage.recent import MAX_REMEMBERED, RecentClaims
from omniq.task import StoredTask


def claimed(number: int, epoch: int = 1) -> StoredTask:
    return StoredTask("m.f", b"", id=f"task-{number}", epoch=epoch)


def test_the_newest_claim_of_a_task_counts() -> None:
    recent = RecentClaims()
    recent.note([claimed(1, 1), claimed(2, 4)])
    recent.note([])
    recent.note([claimed(1, 2)])
    assert (recent.epoch_of("task-1"), recent.epoch_of("task-2")) == (2, 4)
    recent.note([claimed(2, 5)])
    recent.forget("task-1")
    assert (recent.epoch_of("task-1"), recent.epoch_of("task-2")) == (None, 5)


def test_the_oldest_are_forgotten_whether_anybody_asks_or_not() -> None:
    recent = RecentClaims()
    for first in range(0, 3 * MAX_REMEMBERED, 100):
        recent.note([claimed(number) for number in range(first, first + 100)])
    assert sum(len(ids) for ids, _ in recent._heard) == MAX_REMEMBERED
    assert recent.epoch_of("task-0") is None
    assert recent.epoch_of(f"task-{2 * MAX_REMEMBERED}") == 1

    for first in range(0, MAX_REMEMBERED, 100):  # claimed once more: they are the newest now
        recent.note([claimed(number, 2) for number in range(first, first + 100)])
        assert recent.epoch_of(f"task-{first}") == 2
    assert len(recent._epochs) == MAX_REMEMBERED
    assert recent.epoch_of(f"task-{2 * MAX_REMEMBERED}") is None


def test_one_large_claim_is_remembered_whole() -> None:
    recent = RecentClaims()
    recent.note([claimed(number) for number in range(MAX_REMEMBERED + 1)])
    assert recent.epoch_of(f"task-{MAX_REMEMBERED}") == 1
    assert recent.epoch_of("task-0") is None
