"""Ids of tasks and claims: ordered by time, made anywhere without asking anybody.

Knows nothing of what an id is given to.
"""

from __future__ import annotations

import os
import random
import threading
import time

# Its own source of chance: `random.seed(0)` in an application must not make two processes agree on ids.
_chance = random.Random()
_id_lock = threading.RLock()  # a signal handler may want an id while its own thread makes one
_last_id_time = 0


def _begin_anew_in_child() -> None:
    global _id_lock  # noqa: PLW0603 - another thread of the parent may have held it
    _id_lock = threading.RLock()
    _chance.seed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew_in_child)


def new_id() -> str:
    """A UUID version 7 as text: time-ordered over this process, random enough over all of them."""
    global _last_id_time  # noqa: PLW0603 - the point is one order for the whole process
    with _id_lock:
        # 48 bits of milliseconds and 12 bits of their fraction; two ids never share that time.
        now = (time.time_ns() << 12) // 1_000_000
        if now <= _last_id_time:
            now = _last_id_time + 1
        _last_id_time = now
        tail = _chance.getrandbits(62)
    # `%` at once: every task pays for its id, and an f-string of slices takes half as long again.
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031
        now >> 28,
        now >> 12 & 0xFFFF,
        now & 0xFFF,
        tail >> 48 | 0x8000,
        tail & 0xFFFF_FFFF_FFFF,
    )
