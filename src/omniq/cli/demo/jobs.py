"""The tasks of the demo, as an application would write them; only the ledger is extra.

`omniq worker omniq.cli.demo.jobs:q` runs them on the store that OMNIQ_URL names.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from omniq import Context, GiveUp, OmniQ, context
from omniq.cli.demo.ledger import ENVIRONMENT, Ledger, Word

q = OmniQ()


@functools.cache
def ledger() -> Ledger:
    return Ledger(Path(os.environ[ENVIRONMENT]))


@contextmanager
def noted(kind: str) -> Generator[Context]:
    """Write down that this run begins, and how it ends."""
    ctx = context()
    ledger().write(Word.BEGUN, kind, ctx.task_id, ctx.epoch)
    try:
        yield ctx
    except asyncio.CancelledError:
        ledger().write(Word.CUT, kind, ctx.task_id, ctx.epoch)
        raise
    except Exception:
        ledger().write(Word.FAILED, kind, ctx.task_id, ctx.epoch)
        raise
    ledger().write(Word.ENDED, kind, ctx.task_id, ctx.epoch)


@q.task
async def fetch(seconds: float) -> None:
    """An async body: many of them wait at once."""
    with noted("fetch"):
        await asyncio.sleep(seconds)


@q.task
def resize(seconds: float) -> int:
    """A plain function: it runs in a thread."""
    with noted("resize"):
        time.sleep(seconds)
        return round(seconds * 1000)


@q.task(max_retries=5)
async def flaky(failures: int) -> int:
    """Fails so many times, then works; the pauses in between grow."""
    with noted("flaky") as ctx:
        if ctx.attempt <= failures:
            raise ConnectionError("the other side hung up")
        return ctx.attempt


@q.task
async def hopeless() -> None:
    """Gives up, and stays where people can look at it."""
    with noted("hopeless"):
        raise GiveUp("no such customer")


@q.task
async def remind() -> None:
    """Enqueued for later."""
    with noted("remind"):
        await asyncio.sleep(0)


@q.task
def pulse() -> None:
    """Runs at an interval, until somebody cancels it."""
    with noted("pulse"):
        return


@q.task
async def marathon() -> None:
    """Would run for an hour; it is cancelled while it does."""
    with noted("marathon") as ctx:
        for minute in range(60):
            ctx.progress(minute, 60)
            await asyncio.sleep(60)


@q.task
async def burst() -> None:
    """Does nothing, as fast as it can."""
    with noted("burst"):
        return
