"""An application whose tasks run in processes, as they would stand in a module of its own.

Nothing here knows the tests: what a body has done it leaves in a file whose path it is given.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

from omniq import Context, OmniQ, Retry, Snooze, context
from omniq.storage import MemoryStorage

q = OmniQ(MemoryStorage())


def note(file: str, word: str) -> None:
    with open(file, "a") as notes:
        notes.write(f"{word} {os.getpid()} {time.monotonic()}\n")


@q.task(executor="process", queue="cpu")
def pid_of(ctx: Context, value: int) -> tuple[int, int, int, str]:
    assert context() is ctx
    return os.getpid(), value, ctx.attempt, ctx.task_id


@q.task(executor="process", queue="cpu")
async def awaits(value: int) -> int:
    await asyncio.sleep(0)
    return value * 2


@q.task(executor="process", queue="cpu")
def tells_progress(ctx: Context, file: str) -> str:
    ctx.progress(3, 10)
    while not Path(file).exists():
        time.sleep(0.01)
    return "seen"


@q.task(executor="process", queue="cpu", max_retries=1)
def fails(how: str) -> None:
    match how:
        case "error":
            raise ValueError("boom")
        case "exit":
            raise SystemExit(3)
        case "snooze":
            if context().epoch == 1:
                raise Snooze(0.01)
        case "retry":
            raise Retry(0.01)
        case _:
            assert how == "lock"


@q.task(executor="process", queue="cpu", max_retries=0)
def returns_a_lock() -> object:
    return object()


@q.task(executor="process", queue="cpu")
def dies(file: str, times: int) -> str:
    note(file, "BEGUN")
    if len(Path(file).read_text().splitlines()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@q.task(executor="process", queue="cpu", timeout=0.3, max_retries=0)
def spins() -> None:
    while True:  # holds the interpreter: no thread could be told
        pass


@q.task(executor="process", queue="cpu")
def sleeps_unless_told(file: str) -> None:
    note(file, "BEGUN")
    try:
        time.sleep(60)
    finally:
        note(file, "CLEANED" if context().cancelled else "LEFT")


@q.task(executor="process", queue="cpu")
def naps(seconds: float) -> None:
    time.sleep(seconds)


@q.task
def dozes(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@q.task
async def stays_here(value: int) -> tuple[int, int]:
    return os.getpid(), value


@q.task(executor="process", queue="cpu")
def beside_others() -> int:
    return os.getpid()


@q.task(executor="process", queue="cpu")
def leaves_a_thread(ctx: Context, file: str) -> None:
    """Its thread speaks when the file is there, and then removes it."""

    def speak() -> None:
        while not os.path.exists(file):
            time.sleep(0.002)
        ctx.progress(99, 100)
        assert not ctx.cancelled
        os.remove(file)

    threading.Thread(target=speak, daemon=True).start()


@q.task(executor="process", queue="cpu")
def lets_it_speak(ctx: Context, file: str) -> None:
    ctx.progress(1, 2)
    Path(file).touch()
    while os.path.exists(file):
        time.sleep(0.002)
    Path(f"{file}.spoken").touch()
    while not os.path.exists(f"{file}.end"):
        time.sleep(0.002)


@q.task(executor="process", queue="cpu")
def holds(file: str) -> int:
    """Goes on until the file is there; its parent is the process that made it."""
    note(f"{file}.begun", str(os.getppid()))
    while not os.path.exists(file):
        time.sleep(0.005)
    return os.getpid()


@q.task(executor="process", queue="cpu")
def grows(file: str, size_mib: int) -> str:
    """Takes memory, the first time only, and waits for what becomes of it."""
    if not os.path.exists(file):
        Path(file).touch()
        block = bytearray(os.urandom(1 << 20) * size_mib)
        time.sleep(60)
        del block
    return "small"


@q.task(max_retries=0)
def wants_a_transaction(ctx: Context) -> None:
    ctx.transaction()
