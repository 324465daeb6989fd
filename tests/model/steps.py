"""What can be done in one step, as Hypothesis draws it: a method of the machine, and its arguments."""

from typing import Any

from hypothesis import strategies as st

WORKERS = st.sampled_from(["ann", "bob", "eve"])
LEASES = st.sampled_from([5.0, 30.0])
# Which of those that there are, counted from the newest: mostly a recent one, sometimes any.
ONES = st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5, 7, 11, 17, 29, 61])
PAGES = st.sampled_from([None, 1, 3, 100])

# Only what differs from a plain call; moments are seconds from now.
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "func_path": st.just("jobs.b"),
        "arg": st.just(1),
        "queue": st.just("mail"),
        "priority": st.sampled_from([5, 9]),
        "eta": st.sampled_from([-10, -10, 10]),
        "expires_at": st.sampled_from([8, 60, 10**5, 10**6]),
        "interval": st.just(20.0),
        "unique_key": st.sampled_from(["k", "l"]),
        "max_losses": st.sampled_from([1, 2, 9]),
        "result_ttl": st.sampled_from([0.0, 50.0]),
    },
)
BATCHES = st.lists(CALLS, min_size=1, max_size=4)
REPORTS = st.tuples(
    ONES,
    # Of the runs that go on, of those that were lost while another one goes on, of all there ever were.
    st.sampled_from(["current", "current", "zombie", "any"]),
    st.sampled_from(["done", "retry", "fail", "continue", "give back", "die"]),
    st.sampled_from([0, 0, 3, 30]),
)

_ARGUMENTS: dict[str, tuple[st.SearchStrategy[Any], ...]] = {
    "work": (
        st.lists(REPORTS, max_size=3),
        st.integers(0, 3),
        WORKERS,
        st.sampled_from([None, None, ["default"], ["mail", "default"]]),
        LEASES,
    ),
    "enqueue": (
        BATCHES,
        st.sampled_from(["skip", "skip", "raise", "replace"]),
        st.sampled_from([None, None, None, 0, 2, 5]),
        st.sampled_from([False, False, True]),
    ),
    "renew": (WORKERS, LEASES, ONES),
    "time_passes": (st.sampled_from([1, 5, 8, 12, 40, 40, 300]), PAGES),
    "days_pass": (st.sampled_from([1, 31]), PAGES),
    "by_hand": (ONES, st.sampled_from(["cancel", "retry", "delete"])),
    "touch": (ONES, st.sampled_from([-5, 0, 25]), st.integers(0, 5)),
    "set_paused": (st.sampled_from(["default", "mail"]), st.sampled_from([True, False, False])),
    "release": (WORKERS,),
    "prune": (),
    "set_wall": (st.sampled_from([-7200, -15, 15, 7200]),),
}
_OFTEN = {"work": 10, "enqueue": 2, "time_passes": 3, "by_hand": 4, "renew": 2}

STEPS = st.sampled_from([name for name in _ARGUMENTS for _ in range(_OFTEN.get(name, 1))]).flatmap(
    lambda name: st.tuples(st.just(name), *_ARGUMENTS[name])
)
