"""The supervisor renews for its children: one that cannot be renewed for harms no other, nor in silence."""

import asyncio
from collections.abc import Iterable, Iterator

import pytest
from loguru import logger

from omniq.cli.renewal import keep_renewing
from omniq.cli.supervisor import Supervisor
from omniq.cli.wire import Plan
from omniq.storage import MemoryStorage
from omniq.task import Held, Renewal

LEASE_S = 0.03


class Renewed(MemoryStorage):
    """Counts the renewals; a broken one fails as a bug does, not as a store."""

    def __init__(self, *, broken: bool) -> None:
        super().__init__()
        self.broken = broken
        self.asked = asyncio.Queue[str]()

    async def held(self, worker: str) -> list[Held]:
        self.asked.put_nowait(worker)
        if self.broken:
            raise TypeError("a bug")
        return [Held("id", 1)]

    async def renew(self, worker: str, lease: float, holding: Iterable[Held] = ()) -> Renewal:
        return Renewal({}, frozenset(), frozenset())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level="ERROR", format="{message}")
    yield lines
    logger.remove(handler)


async def test_one_child_that_fails_keeps_no_other_from_being_renewed(logged: list[str]) -> None:
    bad, good = Renewed(broken=True), Renewed(broken=False)
    renewing = asyncio.create_task(keep_renewing(lambda: [(bad, "bad"), (good, "good")], LEASE_S))
    for storage in (good, bad, good, bad, good, bad):
        await asyncio.wait_for(storage.asked.get(), 5)
    assert not renewing.done()
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)
    assert [line for line in logged if "bad" in line and "TypeError" in line] == logged
    assert len(logged) == 1, "said once"


async def test_a_renewal_that_ends_is_told_and_stops_the_supervisor(logged: list[str]) -> None:
    async def end() -> None:
        raise TypeError("a bug")

    supervisor = Supervisor(Plan(app="site:q"))
    ended = asyncio.create_task(end())
    await asyncio.wait([ended])
    supervisor._renewal_ended(ended)
    assert supervisor._stopping.is_set()
    assert "TypeError" in logged[0]
