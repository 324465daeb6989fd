"""The suite that every store must pass, shipped so that the author of a store can run it.

    from omniq.testing.conformance import StorageConformance

    class TestMyStorage(StorageConformance):
        async def open(self, clock):
            return MyStorage(clock=clock)

That is all: plain pytest runs it, and each test gets an empty store from `open`. A storage with nothing
but the seed's five verbs derives its class from `SeedConformance` instead. A store whose clock is its
server's puts `RealTime` in front: `class TestMyStorage(RealTime, StorageConformance)`.
"""

try:
    import pytest
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        "omniq.testing.conformance is a suite for pytest; write pip install pytest", name=exc.name
    ) from None

for _name in (
    *("case", "seed", "lifecycle", "byhand", "fence", "claims", "unique", "leases", "results"),
    *("looking", "waiting", "verbs", "badinput", "schedules", "limits", "moving", "reasons"),
):
    # So that a failing assert here shows its values, as in any other test file.
    pytest.register_assert_rewrite(f"{__name__}.{_name}")

from omniq.storage.batched import BatchedStorage  # noqa: E402
from omniq.testing.conformance.badinput import BadInput  # noqa: E402
from omniq.testing.conformance.byhand import ByHand  # noqa: E402
from omniq.testing.conformance.case import Case, FullCase, RealTime  # noqa: E402
from omniq.testing.conformance.claims import Claims  # noqa: E402
from omniq.testing.conformance.fence import Fence, Repeats  # noqa: E402
from omniq.testing.conformance.leases import Leases  # noqa: E402
from omniq.testing.conformance.lifecycle import Lifecycle  # noqa: E402
from omniq.testing.conformance.limits import Limits  # noqa: E402
from omniq.testing.conformance.looking import Looking  # noqa: E402
from omniq.testing.conformance.moving import Moving  # noqa: E402
from omniq.testing.conformance.reasons import Reasons  # noqa: E402
from omniq.testing.conformance.results import History, Results  # noqa: E402
from omniq.testing.conformance.schedules import Schedules  # noqa: E402
from omniq.testing.conformance.seed import SeedConformance  # noqa: E402
from omniq.testing.conformance.unique import Unique  # noqa: E402
from omniq.testing.conformance.verbs import AsBackend, BlockingEnqueue, SeedVerbs  # noqa: E402
from omniq.testing.conformance.waiting import WaitingForResults, WaitingForWork  # noqa: E402

__all__ = ["Case", "FullCase", "RealTime", "SeedConformance", "StorageConformance"]


class StorageConformance(
    Lifecycle,
    ByHand,
    Fence,
    Repeats,
    Claims,
    Unique,
    Leases,
    Results,
    History,
    Looking,
    Reasons,
    WaitingForWork,
    WaitingForResults,
    SeedVerbs,
    BlockingEnqueue,
    AsBackend,
    BadInput,
    Schedules,
    Limits,
    Moving,
    SeedConformance[BatchedStorage],
):
    """Everything. Override `open`."""
