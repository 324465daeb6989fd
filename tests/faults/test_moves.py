"""A move that is killed at any step, and then done again, loses nothing and doubles nothing."""

from pathlib import Path

import pytest

from tests.faults.moves import judge_moves


@pytest.mark.bound(120)
def test_a_move_may_be_killed_at_every_step(tmp_path: Path) -> None:
    judge_moves(f"sqlite:///{tmp_path / 'old.db'}", f"sqlite:///{tmp_path / 'new.db'}")
