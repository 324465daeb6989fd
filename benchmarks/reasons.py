"""Why a goal is missed: what is known of the cause, and the figures of the very run that missed it.

No figure stands here: another machine, or another version of a peer, would make it wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.goals import BEST_KEEPER, DATASETS, Goal
from benchmarks.harness.samples import Case, Record

_BATCHES = (
    "each result is where it outlives its process before the next call begins; the other keeps no account"
)
_THREADS = "SPDL's workers are threads of the program, so nothing is there twice; torch's loader takes more"
_STARTED = (
    "a program is started from which workers are forked, once for all epochs; torch forks the program that "
    "trains, which is not safe where it has threads, and SPDL starts only threads"
)
_ONE_CALL = (
    "one exchange is under way at a time, so the store's part of a task and the worker's follow each other"
)
_THREAD = "its body runs in a thread, and at each write that it makes the threads of the worker change over"
_SAME_LOCK = "SQLite and the bodies share one interpreter, whose lock lets only one of them work"
_NO_RESULTS = "it keeps no results"
WHY: Final[dict[str, str]] = {
    "SQLite: drain with async bodies / huey": _SAME_LOCK,
    "SQLite: drain with sync bodies / huey": f"{_SAME_LOCK}; {_THREAD}",
    "SQLite: drain with async bodies / raw limit": _SAME_LOCK,
    "SQLite: drain with sync bodies / raw limit": f"{_SAME_LOCK}; {_THREAD}",
    "SQLite: enqueue one by one, sync / raw insert": (
        "a task is made, checked, encoded and counted between two syncs, each time with cold caches"
    ),
    "SQLite: enqueue one by one, async / raw insert": (
        "the loop hands a write to another thread and is woken by it, so that no disk holds it up"
    ),
    "SQLite: enqueue, 100 in flight / raw insert": (
        "each task has a future of its own on the loop, besides being made, checked and encoded"
    ),
    "SQLite: latency p50, ms": "two commits have to be on the disk first: the producer's and the claim's",
    "SQLite: latency p99, ms": "a sync of the disk that takes long",
    "SQLite: idle worker, % of a core": (
        "it looks twice a second whether a task was cancelled or a worker has died"
    ),
    "PostgreSQL: drain with one process / pgqueuer": f"{_NO_RESULTS}; {_ONE_CALL}",
    "PostgreSQL: drain with one process / procrastinate": _ONE_CALL,
    "PostgreSQL: drain with async bodies / raw limit": _ONE_CALL,
    "PostgreSQL: drain with sync bodies / raw limit": f"{_ONE_CALL}; {_THREAD}",
    "PostgreSQL: drain at a backlog of 1,000,000 / 10,000": (
        "the index of ids is a level higher, and each task goes down it three times; a worker that begins "
        "walks once over what others have claimed"
    ),
    f"Redis: drain with async bodies / {BEST_KEEPER}": "server and worker share the cores",
    "Redis: drain with sync bodies / raw limit": _THREAD,
    "Redis: drain at a backlog of 1,000,000 / 10,000": (
        "a server built with libc looks for memory among what a million tasks have left free, which is most "
        "of it; and hash tables that have just passed a power of two are moved by whoever uses them, a step "
        "with each look-up"
    ),
    "Redis: enqueue one by one, sync / huey": (
        "huey pushes one value onto a list; a script keeps record, order, digest and tallies with a dozen "
        "commands, which takes the server as much longer as huey takes in Python"
    ),
    "Redis: latency p50, ms": (
        "from the ring to the worker, from there to the claim, from its answer to the body: each is a "
        "process that slept and finds its memory cold"
    ),
    "calls all at once / ProcessPoolExecutor": "a worker gets a call when it has reported the one before",
    **{f"batches of {size} / the best other": _BATCHES for size in ("100", "1,000")},
    **{f"loader: time to the first batch, {kind} / the best other": _STARTED for kind in DATASETS},
    **{f"loader: memory, {kind} / the best other": _THREADS for kind in DATASETS},
}


def why(goal: Goal, record: Record) -> str:
    """What is known, or that nothing is; then what this run shows of it."""
    return "; ".join([WHY.get(goal.title, "not explained yet"), *_shown_by(goal, record)])


def _shown_by(goal: Goal, record: Record) -> Iterator[str]:
    bare = _bare(goal.case)
    if goal.against is None or bare is None:
        return
    if isinstance(goal.against, Case) and goal.against.system == bare.system:
        ours, theirs = (record.spread(case, "cpu_us") for case in (goal.case, bare))
        if ours is not None and theirs is not None:
            yield _cpu(ours.median, theirs.median)
    asked, most = goal.asked(record), record.spread(bare, goal.metric)
    if goal.against != bare and asked is not None and most is not None:
        yield f"it asks for {asked:,.0f} tasks/s, {asked / most.median:.2f} of what the bare statements do"


def _cpu(ours: float, bare: float) -> str:
    """The statements are a part of what a task costs, unless they cost more where they stand alone."""
    if bare < ours:
        return f"{ours:.0f} µs of CPU a task, of which the bare statements need {bare:.0f}"
    return f"{ours:.0f} µs of CPU a task, where the bare statements alone took {bare:.0f}"


def _bare(case: Case) -> Case | None:
    """What the statements of a store do with nothing around them, said as many at a time as in `case`."""
    raw = case.system.replace("omniq-", "raw-")
    if raw == case.system:
        return None
    match case.measure, case.variant:
        case "drain", "async" | "sync":  # one process: two share what they ask for, and the limit has one
            return Case("drain", raw, "statements")
        case "enqueue", "async":
            return Case("enqueue", raw, "blocking")
        case "enqueue", _:
            return Case("enqueue", raw, case.variant)
        case _:
            return None
