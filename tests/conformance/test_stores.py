"""The shipped suite, unchanged, on every store of this repository."""

from pathlib import Path

import pytest

from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.storage.batched import BatchedStorage
from omniq.testing import VirtualClock
from omniq.testing.conformance import RealTime, SeedConformance, StorageConformance
from tests.conformance.minimal import FiveVerbs, WithReschedule


class TestMemory(StorageConformance):
    async def open(self, clock: VirtualClock) -> BatchedStorage:
        return MemoryStorage(clock=clock)


class TestSQLite(StorageConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "jobs.db"

    async def open(self, clock: VirtualClock) -> BatchedStorage:
        return SQLiteStorage(self.path, clock=clock)


class TestFiveVerbs(SeedConformance[FiveVerbs]):
    async def open(self, clock: VirtualClock) -> FiveVerbs:
        return FiveVerbs(clock)


class TestWithReschedule(SeedConformance[WithReschedule]):
    async def open(self, clock: VirtualClock) -> WithReschedule:
        return WithReschedule(clock)


@pytest.mark.soak
class TestInRealTime(RealTime, StorageConformance):
    """How a store with a server's clock runs the suite: nothing virtual, short leases."""

    async def open(self, clock: VirtualClock) -> BatchedStorage:
        return MemoryStorage()
