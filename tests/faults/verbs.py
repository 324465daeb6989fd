"""F17 for every verb that changes something: cut off before it or its answer arrives, and repeated.

What a server keeps, and what its network looks for, the tests of its store say.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from omniq import Task
from omniq.errors import Conflict, NotFound, StoreUnavailable
from omniq.storage import BaseStorage
from omniq.task import Claim, Held, Settlement, TaskError, WorkerInfo
from tests.faults.network import Network

JOB = "tests.faults.bodies.nap"
ID = "the-task"
BOOM = TaskError("ValueError", "boom")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
TIMES = 10

Verb = Callable[[BaseStorage], Awaitable[Any]]

# By name: what must have happened before, and the call.
VERBS: dict[str, tuple[str, Verb]] = {
    "enqueue": ("", lambda s: s.enqueue(Task(JOB, (1,), id=ID))),
    "enqueue with a key": ("", lambda s: s.enqueue(Task(JOB, (1,), id=ID, unique_key="k"))),
    "claim": ("waits", lambda s: s.claim("ann", claim_id="c")),
    "settle": ("runs", lambda s: s.settle([Settlement.success(_held(), b"\xc0")])),
    "retry later": ("runs", lambda s: s.settle([Settlement.retry(_held(), 60.0, BOOM)])),
    "give back": ("runs", lambda s: s.settle([Settlement.give_back(_held())])),
    "settle and claim": (
        "runs, another waits",
        lambda s: s.exchange([Settlement.success(_held(), b"\xc0")], Claim("ann", None, 5, 60.0, "d")),
    ),
    "renew": ("runs", lambda s: s.renew("ann", 60.0)),
    "release": ("runs", lambda s: s.release("ann")),
    "lapse": ("is over", lambda s: s.lapse()),
    "progress": ("runs", lambda s: s.progress(ID, 1, 1, 2)),
    "cancel": ("waits", lambda s: s.cancel(ID)),
    "cancel a run": ("runs", lambda s: s.cancel(ID)),
    "retry by hand": ("failed", lambda s: s.retry(ID)),
    "reschedule": ("waits", lambda s: s.reschedule(ID, LONG_AGO)),
    "delete": ("failed", lambda s: s.delete(ID)),
    "prune": ("failed long ago", lambda s: s.prune()),
    "pause": ("waits", lambda s: s.pause("default")),
    "resume": ("is paused", lambda s: s.resume("default")),
    "beat": ("", lambda s: s.beat(_info())),
    "leave": ("", lambda s: s.leave("ann")),
}
# Whoever repeats these after they have happened is told so; or there is nothing left to be done.
TOLD = ("retry by hand", "delete")
NOTHING_LEFT = ("lapse",)


def _held() -> Held:
    return Held(ID, 1)


def _info() -> WorkerInfo:
    return WorkerInfo("ann", "ann", "here", 1, None, 1, 0, None, LONG_AGO)


async def prepare(store: BaseStorage, before: str) -> None:
    """That it failed long ago only the store itself can bring about."""
    if not before:
        return
    await store.enqueue(Task(JOB, (1,), id=ID))
    if before == "is paused":
        await store.pause("default")
    if before in ("runs", "runs, another waits", "is over", "failed", "failed long ago"):
        lease_s = 0.001 if before == "is over" else 60.0
        [claim] = await store.claim("ann", lease=lease_s, claim_id="first")
        if before.startswith("failed"):
            await store.settle([Settlement.failed(claim, BOOM)])
    if before == "runs, another waits":
        await store.enqueue(Task(JOB, (2,), id="another"))


async def cut_off_and_repeat(
    store: BaseStorage,
    network: Network,
    name: str,
    pattern: str,
    look: Callable[[], Awaitable[Any]],
    expected: Any,
) -> None:
    """`look` gives everything that is stored but for the moments; `expected` is that after one call."""
    untouched = await look()
    network.lose_answers(pattern, 2, unheard=True)
    await _call_until_answered(store, network, name)
    assert (network.lost, await look()) == (2, untouched)
    network.lose_answers(pattern, TIMES)
    await _call_until_answered(store, network, name)
    assert network.lost == (1 if name in NOTHING_LEFT else TIMES)
    network.losses = 0
    with suppress(*((Conflict, NotFound) if name in TOLD else ())):
        await VERBS[name][1](store)
    assert await look() == expected


async def _call_until_answered(store: BaseStorage, network: Network, name: str) -> None:
    while network.losses:
        try:
            await VERBS[name][1](store)
        except StoreUnavailable:
            continue
        except (Conflict, NotFound):
            assert name in TOLD
            return
        assert name in NOTHING_LEFT, "it was answered"
        return
