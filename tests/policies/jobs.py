"""An application with policies and hooks, as it would stand in a module of its own: processes import it."""

from __future__ import annotations

import contextvars
import os
import time
from pathlib import Path

from omniq import Context, OmniQ, Retry, Snooze
from omniq.storage import MemoryStorage

q = OmniQ(MemoryStorage())
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class Hopeless(Exception):
    pass


class TooBusy(ConnectionError):
    pass


def fails(which: str) -> None:
    raise {"busy": TooBusy, "hopeless": Hopeless, "value": ValueError}[which](which)


def rules_of(executor: str) -> dict[str, object]:
    return {
        "executor": executor,
        "retry_on": (ConnectionError, Hopeless),
        "give_up_on": Hopeless,
        "retry_delay": 0.01,
        "max_retries": 2,
        "name": f"jobs.fails_{executor}",
    }


@q.task(**rules_of("auto"))  # type: ignore[arg-type]
async def fails_async(which: str) -> None:
    fails(which)


@q.task(**rules_of("thread"))  # type: ignore[arg-type]
def fails_thread(which: str) -> None:
    fails(which)


@q.task(**rules_of("process"))  # type: ignore[arg-type]
def fails_process(which: str) -> None:
    fails(which)


@q.task(max_retries=1, name="jobs.whereabouts_async")
async def whereabouts_async(ctx: Context, wish: str = "") -> tuple[int, str, str]:
    return body(ctx, wish)


@q.task(max_retries=1, name="jobs.whereabouts_thread")
def whereabouts_thread(ctx: Context, wish: str = "") -> tuple[int, str, str]:
    return body(ctx, wish)


@q.task(max_retries=1, executor="process", name="jobs.whereabouts_process")
def whereabouts_process(ctx: Context, wish: str = "") -> tuple[int, str, str]:
    return body(ctx, wish)


def body(ctx: Context, wish: str) -> tuple[int, str, str]:
    if wish == "fail":
        raise Hopeless("no way")
    if wish == "snooze" and ctx.epoch == 1:
        raise Snooze(0.01)
    if wish == "retry" and ctx.attempt == 1:
        raise Retry(0.01)
    return os.getpid(), tenant.get(), ctx.task_id


@q.task(timeout=0.2, max_retries=0, name="jobs.waits_in_thread")
def waits_in_thread(file: str) -> str:
    while not Path(file).exists():
        time.sleep(0.01)
    return "seen"


@q.task(max_retries=0, name="jobs.waits_for_file")
def waits_for_file(started: str, file: str) -> str:
    Path(started).touch()
    while not Path(file).exists():
        time.sleep(0.01)
    return "seen"
