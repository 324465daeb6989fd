"""What the tasks of the fault tests do. They run in children, and write down that they ran."""

import asyncio
import os
import signal
import threading
import time

from omniq import Context, Snooze
from tests.faults.ledger import own_ledger


class noted:  # noqa: N801 - reads as a word: `with noted(ctx):`
    """RUN before the body and END after it, or CUT where it raised or was cancelled."""

    def __init__(self, ctx: Context) -> None:
        self._run = (ctx.task_id, ctx.epoch, os.getpid())

    def __enter__(self) -> None:
        own_ledger().write("RUN", *self._run)

    def __exit__(self, kind: object, exc: object, tb: object) -> None:
        own_ledger().write("END" if kind is None else "CUT", *self._run)


async def nap(seconds: float, ctx: Context) -> int:
    with noted(ctx):
        await asyncio.sleep(seconds)
    return ctx.epoch


def thread_nap(seconds: float, ctx: Context) -> int:
    with noted(ctx):
        time.sleep(seconds)
    return ctx.epoch


async def die(ctx: Context) -> None:
    """A poison pill."""
    with noted(ctx):
        own_ledger().write("KILL", "pill", os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


async def made(path: str) -> None:
    """Until somebody, most likely another process, has made the file."""
    while not os.path.exists(path):  # noqa: ASYNC110 - no event reaches from there to here
        await asyncio.sleep(0.01)


async def until_file(path: str, ctx: Context) -> int:
    """Until somebody makes the file; who ran it is the result."""
    with noted(ctx):
        await made(path)
    return os.getpid()


async def until_file_then_fail(path: str, ctx: Context) -> None:
    with noted(ctx):
        await made(path)
    raise ValueError("failed after all")


async def until_file_then_snooze(path: str, ctx: Context) -> None:
    with noted(ctx):
        await made(path)
    raise Snooze(60)


async def block_the_loop(seconds: float, ctx: Context) -> int:
    with noted(ctx):
        time.sleep(seconds)
    return ctx.epoch


def never_return(ctx: Context) -> None:
    with noted(ctx):
        threading.Event().wait()


async def fail(ctx: Context) -> None:
    with noted(ctx):
        pass
    raise ValueError("on purpose")
