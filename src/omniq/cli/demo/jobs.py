"""The tasks of the demo, as an application would write them; only the ledger is extra.

`omniq worker omniq.cli.demo.jobs:q` runs them on the store that OMNIQ_URL names.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omniq import Context, GiveUp, OmniQ
from omniq.cli.demo.ledger import ENVIRONMENT, Ledger, Word

q = OmniQ()


@functools.cache
def ledger() -> Ledger:
    return Ledger(Path(os.environ[ENVIRONMENT]))


@contextmanager
def noted(kind: str, ctx: Context) -> Iterator[None]:
    """Write down that this run begins, and how it ends."""
    ledger().write(Word.BEGUN, kind, ctx.task_id, ctx.epoch)
    try:
        yield
    except asyncio.CancelledError:
        ledger().write(Word.CUT, kind, ctx.task_id, ctx.epoch)
        raise
    except Exception:
        ledger().write(Word.FAILED, kind, ctx.task_id, ctx.epoch)
        raise
    ledger().write(Word.ENDED, kind, ctx.task_id, ctx.epoch)


@q.task
async def fetch(seconds: float, ctx: Context) -> None:
    """An async body: many of them wait at once."""
    with noted("fetch", ctx):
        await asyncio.sleep(seconds)


@q.task
def resize(seconds: float, ctx: Context) -> int:
    """A plain function: it runs in a thread."""
    with noted("resize", ctx):
        time.sleep(seconds)
        return round(seconds * 1000)


@q.task(max_retries=5)
async def flaky(failures: int, ctx: Context) -> int:
    """Fails so many times, then works; the pauses in between grow."""
    with noted("flaky", ctx):
        if ctx.attempt <= failures:
            raise ConnectionError("the other side hung up")
        return ctx.attempt


@q.task
async def hopeless(ctx: Context) -> None:
    """Gives up, and stays where people can look at it."""
    with noted("hopeless", ctx):
        raise GiveUp("no such customer")


@q.task
async def remind(ctx: Context) -> None:
    """Enqueued for later."""
    with noted("remind", ctx):
        await asyncio.sleep(0)


@q.task
def pulse(ctx: Context) -> None:
    """Runs at an interval, until somebody cancels it."""
    with noted("pulse", ctx):
        return


@q.task
async def marathon(ctx: Context) -> None:
    """Would run for an hour; it is cancelled while it does."""
    with noted("marathon", ctx):
        for minute in range(60):
            ctx.progress(minute, 60)
            await asyncio.sleep(60)


@q.task
async def burst(ctx: Context) -> None:
    """Does nothing, as fast as it can."""
    with noted("burst", ctx):
        return
