"""Functions that tests run in workers of a data pool, and what tests wait with."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omniq.data import empty
from tests.data.datasets import Unspeakable

MIB = 1 << 20
BOUND_S = 20.0
POLL_S = 0.002


def until(condition: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
    ends_at = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < ends_at, f"not within {bound_s:g} s: {what}"
        time.sleep(POLL_S)


def refuse_without_words() -> None:
    raise Unspeakable


def square(n: int) -> int:
    return n * n


def me() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def hold(path: str, value: Any = None) -> Any:
    """Say that it has begun, and go on until the file `path` is there."""
    Path(f"{path}.{os.getpid()}.{threading.get_ident()}").touch()
    until(lambda: os.path.exists(path), "somebody lets go", 60)
    return value


def append_and_hold(path: str, gate: str, n: int) -> None:
    append(path, str(n))
    hold(gate)


def begun(path: Path) -> int:
    return len(list(path.parent.glob(f"{path.name}.*")))


def meet(folder: str, name: str, count: int) -> str:
    """Return when `count` bodies are here at the same time."""
    (Path(folder) / name).touch()
    until(lambda: len(os.listdir(folder)) >= count, f"{count} bodies meet")
    return name


def refuse(n: int = 0) -> None:
    raise ValueError(f"not {n}")


def refuse_odd(n: int) -> int:
    if n % 2:
        raise ValueError(f"not {n}")
    return n


def append(path: str, text: str) -> str:
    with open(path, "a") as file:
        file.write(f"{text}\n")
    return text


def numbers(n: int, size_bytes: int = 64 * 1024) -> Any:
    """An array that says by itself which one it is, and whether it is whole."""
    array = np.arange(size_bytes // 8, dtype=np.int64)
    array += n * 1_000_003
    return array


def is_numbers(array: Any, n: int) -> bool:
    return bool((array == numbers(n, array.nbytes)).all())


def made_in_place(n: int, size_bytes: int) -> Any:
    array = empty(size_bytes // 8, np.int64)
    array[:] = np.arange(size_bytes // 8)
    array += n * 1_000_003
    return array


@dataclass(frozen=True)
class Sample:
    image: Any
    label: int
    more: dict[str, list[Any]]


def sample(n: int) -> Sample:
    return Sample(numbers(n), n, {"masks": [numbers(n + 1), numbers(n + 2)]})


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def segfault_at(n: int, fatal: int) -> int:
    if n == fatal:
        ctypes.string_at(0)
    return n


def die_once(n: int, path: str) -> int:
    """Die the first time, return the second."""
    append(path, str(n))
    if Path(path).read_text().count("\n") == 1:
        die()
    return n


class Unpicklable:
    def __reduce__(self) -> str | tuple[Any, ...]:
        raise RuntimeError("not me")


def unpicklable() -> Unpicklable:
    return Unpicklable()


kept: list[Any] = []


def return_again() -> Any:
    if not kept:
        kept.append(empty(MIB, np.uint8))
    return kept[0]


def numbers_slowly(n: int, size_bytes: int, pause_s: float) -> Any:
    time.sleep(pause_s)
    return numbers(n, size_bytes)


def made_in_place_slowly(n: int, size_bytes: int, pause_s: float) -> Any:
    array = made_in_place(n, size_bytes)
    time.sleep(pause_s)
    return array


def nap(n: int, seconds: float) -> int:
    time.sleep(seconds)
    return n


def note(path: str, naps_at: int, n: int) -> int:
    """Every run leaves a line. One takes so long that what stands behind it is taken back."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{n}\n".encode())
    os.close(file)
    if n == naps_at:
        time.sleep(1.0)
    return n
