"""Functions that tests run in processes of a pool."""

from __future__ import annotations

import colorsys
import ctypes
import importlib
import logging
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

from loguru import logger

from omniq.pool.child import current

MIB = 1 << 20


def double(n: int) -> int:
    return n * 2


def pid() -> int:
    return os.getpid()


def hold(path: str) -> str:
    """Say that it has begun, and go on until the file `path` is there."""
    Path(f"{path}.{os.getpid()}").touch()
    while not os.path.exists(path):
        time.sleep(0.002)
    return path


def log_import_and_allocate() -> int:
    """Whatever needs a lock that a thread may have held at a fork."""
    logger.debug("in a worker")
    logging.getLogger("a worker").info("in a worker")
    importlib.reload(colorsys)
    return os.getpid() if bytearray(MIB) else 0


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def nap_and_tell(path: str, seconds: float) -> None:
    time.sleep(seconds)
    Path(path).touch()


def run_for_ever() -> None:
    while True:
        time.sleep(0.01)


def ignore_interrupts() -> None:
    """What no interrupt ends: each one is swallowed."""
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


def clean_up_when_interrupted(path: str) -> None:
    Path(f"{path}.begun").touch()
    try:
        run_for_ever()
    finally:
        Path(path).write_text("cleaned up")


def hold_and_count(path: str) -> str:
    """Leave a line in the file `path` and go on until interrupted."""
    with open(path, "a") as file:
        file.write("begun\n")
    return hold(f"{path}.gate")


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def segfault() -> None:
    ctypes.string_at(0)


def die_once(path: str) -> str:
    """Die the first time, return the second."""
    if not os.path.exists(path):
        Path(path).touch()
        die()
    return "the second time"


def die_on(item: int, bad: int) -> int:
    if item == bad:
        segfault()
    return item


def refuse(item: int) -> int:
    raise ValueError(f"not {item}")


def refuse_at(item: int) -> int:
    if item == 5:
        raise ValueError("not 5")
    return item


def raise_much() -> None:
    raise RuntimeError("x" * 50 * MIB + "\udcff\x00")


def keep_memory(size_mib: int) -> int:
    block = bytearray(size_mib * MIB)
    for at in range(0, len(block), 4096):
        block[at] = 1
    _kept.append(block)
    return size_mib


def grow(size_mib: int) -> None:
    keep_memory(size_mib)
    run_for_ever()


_kept: list[Any] = []


def allocate_past_a_limit() -> int:
    """Under a limit of 512 MiB of address space more than now, ask for two GiB."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 512 * MIB, resource.RLIM_INFINITY))
    return len(bytearray(2048 * MIB))


def tell_progress(steps: int) -> str:
    call = current()
    assert call is not None
    for step in range(steps):
        call.note({"step": step})
    return "told"


def leave_a_thread_that_tells(path: str) -> None:
    """The thread outlives the call. When the file `path` is there it speaks, then removes the file."""
    call = current()
    assert call is not None

    def tell() -> None:
        while not os.path.exists(path):
            time.sleep(0.002)
        for _ in range(5):
            call.note("too late")
        os.remove(path)

    threading.Thread(target=tell, daemon=True).start()


def listen_for_a_thread(path: str) -> str:
    """Let the thread of an earlier call speak, and then say something oneself."""
    call = current()
    assert call is not None
    Path(path).touch()
    while os.path.exists(path):
        time.sleep(0.002)
    call.note("in time")
    return "heard"
