"""Many handles at once, and waiting with a bar: `q.gather`, `q.as_completed`, `handle.wait(show=True)`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from omniq import InvalidOption, NotFound, OmniQ, ResultTimeout, TaskFailed, TaskStatus
from omniq.storage import MemoryStorage, SQLiteStorage

WITHIN_S = 30.0


class Made:
    def __init__(self, q: OmniQ) -> None:
        self.q = q

        @q.task(name="b.double", max_retries=0)
        async def double(n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            return n * 2

        @q.task(name="b.forever")
        async def forever() -> None:
            await asyncio.Event().wait()

        self.double, self.forever = double, forever


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    store = MemoryStorage() if request.param == "memory" else SQLiteStorage(tmp_path / "jobs.db")
    return Made(OmniQ(store))


def test_gather_keeps_the_order(app: Made) -> None:
    with app.q, app.q.worker():
        handles = app.q.enqueue_many([app.double.call(n) for n in range(50)])
        assert app.q.gather(handles, timeout=WITHIN_S) == [n * 2 for n in range(50)]
        assert app.q.gather([]) == []


def test_gather_raises_the_first_failure_at_once(app: Made) -> None:
    with app.q:
        pool = app.q.worker()
        pool.start()
        handles = [app.double.enqueue(1), app.forever.enqueue(), app.double.enqueue(-1)]
        with pytest.raises(TaskFailed, match="negative"):
            app.q.gather(handles, timeout=WITHIN_S)
        with pytest.raises(ResultTimeout, match="1 of 2 tasks"):
            app.q.gather(handles[:2], timeout=0.2)
        [two, failed] = app.q.gather([handles[0], handles[2]], return_exceptions=True)
        assert two == 2
        assert isinstance(failed, TaskFailed)
        pool.stop(cancel_in_flight=True)


def test_as_completed_gives_handles_as_they_end(app: Made) -> None:
    with app.q:
        first, second, third = [app.double.options(delay=n).enqueue(n) for n in (60, 0, -1)]
        pool = app.q.worker()
        pool.start()
        ended = [one.id for _, one in zip("ab", app.q.as_completed([first, second, third]), strict=False)]
        assert set(ended) == {second.id, third.id}, "a failure is an end too"
        assert third.status() is TaskStatus.FAILED
        with pytest.raises(ResultTimeout, match="1 of 3 tasks"):
            list(app.q.as_completed([first, second, third], timeout=0.3))
        pool.stop()


async def test_the_same_inside_a_loop(app: Made) -> None:
    async with app.q, app.q.async_worker():
        handles = await app.q.aenqueue_many([app.double.call(n) for n in range(5)])
        assert await app.q.agather(handles, timeout=WITHIN_S) == [0, 2, 4, 6, 8]
        ended = [handle.id async for handle in app.q.as_completed(handles, timeout=WITHIN_S)]
        assert sorted(ended) == sorted(handle.id for handle in handles)
        with pytest.raises(NotFound):
            await app.q.agather([app.q.handle("nobody")])
        with pytest.raises(NotFound):
            [handle async for handle in app.q.as_completed([app.q.handle("nobody")])]
        async for _ in app.q.as_completed(handles):
            break  # what is left is waited for no more


def test_wait_says_how_it_ended(app: Made) -> None:
    with app.q, app.q.worker():
        assert app.double.enqueue(1).wait(WITHIN_S) is TaskStatus.SUCCESS
        assert app.double.enqueue(-1).wait(WITHIN_S) is TaskStatus.FAILED
        with pytest.raises(ResultTimeout):
            app.double.options(delay=60).enqueue(1).wait(0.05)


SCRIPT = """
import time
from omniq import Context, OmniQ
from omniq.storage import MemoryStorage

q = OmniQ(MemoryStorage())

@q.task(name="count_sheep")
def count_sheep(ctx: Context) -> int:
    for n in range(1, 4):
        ctx.progress(n, 4)
        time.sleep(0.6)
    return 4

with q, q.worker():
    print(count_sheep.enqueue().wait(show=True))
"""


def test_a_bar_for_people() -> None:
    """On stderr, with what the body said; a pipe gets no control characters and stdout stays clean."""
    for environment, drawn in (({"FORCE_COLOR": "1", "COLUMNS": "100"}, True), ({"COLUMNS": "100"}, False)):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.stdout == "SUCCESS\n", done.stderr
        bars = [line for line in done.stderr.splitlines() if "count_sheep" in line and "omniq" not in line]
        assert any("4/4" in line for line in bars), done.stderr
        assert any("/4" in line and "4/4" not in line for line in bars) is drawn
        assert ("\x1b[" in "".join(bars)) is drawn


async def test_what_is_no_handle_is_refused_before_anybody_waits(app: Made) -> None:
    async with app.q:
        waits = await app.forever.aenqueue()
        with pytest.raises(InvalidOption, match=r"q\.handle\(task_id\)"):
            await app.q.agather([waits, waits.id])  # type: ignore[list-item]
        with pytest.raises(InvalidOption, match="takes handles, not 7"):
            app.q.as_completed([waits, 7])  # type: ignore[list-item]
