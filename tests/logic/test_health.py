"""When due work counts as standing still."""

import pytest

from omniq.logic.health import Work, judge


@pytest.mark.parametrize(
    ("waits_s", "moved", "workers", "free_slots", "ok", "says"),
    [
        (None, 0, 0, 0, True, "nothing is due"),  # an idle queue needs no worker
        (500, 3, 1, 5, True, "3 runs began or ended"),  # a backlog that moves
        (5, 0, 0, 0, True, "less than 30 s"),
        (30, 0, 0, 0, True, "less than 30 s"),
        (31, 0, 0, 0, False, "no worker is there"),
        (31, 0, 2, 5, False, "2 workers have 5 free slots"),
        (31, 0, 2, 0, True, "taken by long runs"),
    ],
)
def test_judge(waits_s: float | None, moved: int, workers: int, free_slots: int, ok: bool, says: str) -> None:
    health = judge(Work(waits_s, moved, workers, free_slots), lease_s=30)
    assert health.ok is ok
    assert says in health.why
