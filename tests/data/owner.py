"""A program that owns a data pool, to be killed, interrupted or left in other ways by a test.

usage: python -m tests.data.owner HOW     prints its processes, then does what it was told
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from omniq.data import WorkerPool
from tests.data import bodies
from tests.pool.leftovers import family


def main(how: str) -> None:
    pool = WorkerPool(2, arena=8 * bodies.MIB).start()
    pool.submit_batch([partial(bodies.numbers, n) for n in range(50)])
    first = pool.get_result()
    iterator = pool.map(bodies.square, range(1000))
    next(iterator)
    print(*family(), flush=True)
    if how == "sleep":
        time.sleep(60)
    elif how == "read":  # for ever: nobody submits anything more
        pool.submit_task(partial(bodies.nap, 0, 60.0))
        for _ in pool.results():
            pass
    elif how == "raise":
        raise SystemExit(f"3 {first[0]}")
    elif how == "leave":
        os._exit(0)
    elif how == "forget":
        del pool, iterator
    # "exit": the iterator is not exhausted, the pool not stopped


if __name__ == "__main__":
    main(sys.argv[1])
