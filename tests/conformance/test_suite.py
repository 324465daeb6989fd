"""The suite itself: nothing in it hides, it needs no plugin, and a broken store turns it red."""

import subprocess
import sys
from pathlib import Path

from omniq.testing.conformance import StorageConformance

# Beside a good store, one that takes every report for the newest.
SOMEBODYS_TESTS = """
from omniq.storage import MemoryStorage
from omniq.task import Held, replace
from omniq.testing.conformance import SeedConformance
from omniq.testing.conformance.fence import Fence

class Unfenced(MemoryStorage):
    async def exchange(self, settlements, claim=None):
        current = []
        for one in settlements:
            task = await self.get_task(one.task.id)
            current.append(replace(one, task=Held(one.task.id, task.epoch)) if task else one)
        return await super().exchange(current, claim)

class TestGood(SeedConformance):
    async def open(self, clock):
        return MemoryStorage(clock=clock)

class TestUnfenced(Fence):
    async def open(self, clock):
        return Unfenced(clock=clock)
"""


def test_no_test_of_the_suite_hides_another() -> None:
    seen: dict[str, type] = {}
    for part in StorageConformance.__mro__:
        for name in vars(part):
            if name.startswith("test_"):
                assert name not in seen, f"{name} is in {part.__name__} and in {seen[name].__name__}"
                seen[name] = part
    assert len(seen) > 200


def test_every_transition_has_a_test() -> None:
    names = " ".join(name for name in dir(StorageConformance) if name.startswith("test_"))
    numbers = [*(f"t{number}" for number in range(1, 17)), "t4i", "t6c"]
    assert [number for number in numbers if f"test_{number}_" not in names] == []


def test_it_runs_with_plain_pytest_and_finds_a_store_without_a_fence(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_mine.py").write_text(SOMEBODYS_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:hypothesispytest", "-p", "no:xdist"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "FAILED test_mine.py::TestGood" not in run.stdout
    assert "PASSED test_mine.py::TestGood::test_two_claimers_never_share_a_task" in run.stdout
    assert "FAILED test_mine.py::TestUnfenced::test_a_zombies_report_is_stale_and_changes" in run.stdout
    # Asserts of the suite show their values, as in any other test file.
    assert "<Answer.HELD: 'held'> is <Answer.STALE: 'stale'>" in run.stdout
