"""Functions that the tests of the transport run in children; children import them by name."""

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from omniq.pool import ranges
from omniq.pool.child import current, room
from omniq.pool.lines import INTERRUPT_SIGNAL
from omniq.pool.pickles import CallInterrupted

kept: list[Any] = []


def echo(value: Any) -> Any:
    return value


def keep(value: Any) -> int:
    kept.append(value)
    return len(kept)


def kept_sum(index: int) -> float:
    return float(kept[index].sum())


def forget_all() -> None:
    kept.clear()


def total(array: Any) -> float:
    return float(array.sum())


def ones(count: int) -> Any:
    import numpy as np

    return np.ones(count)


def pid() -> int:
    return os.getpid()


def wait_after_importing(begun: str) -> None:
    os.environ["OMNIQ_TEST_IMPORTING"] = begun
    from tests.pool import imports_once

    assert imports_once.VALUE
    time.sleep(30)


def value_of_imported() -> int:
    from tests.pool import imports_once

    return imports_once.VALUE


class Secretive(Exception):
    """Raises where it is looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name in self.args:
            raise RuntimeError(f"no {name} for you")
        return super().__getattribute__(name)


def raise_secretive(name: str) -> NoReturn:
    raise Secretive(name)


def count_signals_while_cleaning_up(begun: str, for_s: float) -> None:
    heard: list[int] = []
    try:
        Path(begun).touch()
        time.sleep(30)
    finally:
        signal.signal(INTERRUPT_SIGNAL, lambda number, _: heard.append(number))
        time.sleep(for_s)
        Path(begun).write_text(str(len(heard)))


def surroundings() -> tuple[list[str], list[str], str, str | None]:
    return sys.path, sys.argv, os.getcwd(), os.environ.get("PYTHONPATH")


def kill_self(number: int = signal.SIGKILL) -> NoReturn:
    os.kill(os.getpid(), number)
    raise AssertionError("still here")


def segfault() -> None:
    ctypes.string_at(0)


def leave(code: int) -> NoReturn:
    os._exit(code)


def leave_at(value: int, fatal: int) -> int:
    if value == fatal:
        os._exit(9)
    return value


def die_at_three(value: int) -> int:
    return leave_at(value, 3)


def text_until_three(value: int) -> list[str]:
    return [str(leave_at(value, 3))]


FATAL = "fatal"


def echo_unless_fatal(value: Any) -> Any:
    if isinstance(value, str) and value == FATAL:
        os._exit(9)
    return value


def echo_after_touching(value: Any) -> Any:
    """A path is touched, and then nothing happens for a while; anything else comes back at once."""
    if isinstance(value, str):
        sleep_after_touching(value)
    return value


def close_socket() -> None:
    """Close every socket of this process, and go on as if nothing had happened."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:") and int(name) > 2:
                os.close(int(name))
        except OSError:
            continue
    time.sleep(60)


def write_to_sockets(data: bytes) -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:") and int(name) > 2:
                socket.socket(fileno=os.dup(int(name))).send(data)
        except OSError:
            continue


def need_memory(limit_bytes: int, wanted_bytes: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))
    return len(bytearray(wanted_bytes))


def forbid_growth(more_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def sleep_after_touching(path: str, seconds: float = 60.0) -> str:
    Path(path).touch()
    time.sleep(seconds)
    return "slept"


def sleep_deaf_to_the_first(path: str) -> str:
    """As if the first signal had come between the last look for signals and the wait."""
    hears = signal.getsignal(INTERRUPT_SIGNAL)
    signal.signal(INTERRUPT_SIGNAL, lambda *_: signal.signal(INTERRUPT_SIGNAL, hears))
    return sleep_after_touching(path)


def tidy_when_interrupted(path: str) -> None:
    try:
        sleep_after_touching(path)
    except CallInterrupted:
        Path(path + ".tidied").touch()
        raise


def ignore_interrupts(path: str) -> str:
    with contextlib.suppress(CallInterrupted):
        sleep_after_touching(path)
    return "went on"


def poll_until_cancelled(path: str) -> str:
    call = current()
    assert call is not None
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    Path(path).touch()
    while not call.cancelled:
        time.sleep(0.001)
    return "ended by itself"


def note_often(count: int) -> int:
    call = current()
    assert call is not None
    for number in range(count):
        call.note(number)
    return call.call_id


def note_for_ever() -> None:
    call = current()
    assert call is not None
    while True:
        call.note(b"x" * 5000)


def ones_while_threads_note(count: int, notes: int) -> Any:
    """Return an array while two threads are in the middle of telling something."""
    call = current()
    assert call is not None
    begun = threading.Semaphore(0)

    def tell() -> None:
        for _ in range(notes):
            call.note("x" * 300_000)
            begun.release()

    for _ in range(2):
        threading.Thread(target=tell, daemon=True).start()
    for _ in range(2):
        begun.acquire()
    return ones(count)


def threads() -> int:
    return threading.active_count()


def parent_pid() -> int:
    return os.getppid()


class NeedsTwo(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unpicklable:
    def __reduce__(self) -> str | tuple[Any, ...]:
        raise RuntimeError("not me")


def explode() -> None:
    raise RuntimeError("does not unpickle")


class DoesNotUnpickle:
    def __reduce__(self) -> str | tuple[Any, ...]:
        return explode, ()


class OnlyInThe:
    """An object that unpickles in one process only."""

    def __init__(self, home: int) -> None:
        self.home = home

    def __reduce__(self) -> str | tuple[Any, ...]:
        return only_in_the, (os.getpid(),)


def only_in_the(home: int) -> OnlyInThe:
    if os.getpid() != home:
        raise RuntimeError(f"I live in {home}")
    return OnlyInThe(home)


ENDS: dict[str, type[BaseException]] = {
    "exit": SystemExit,
    "ctrl-c": KeyboardInterrupt,
    "generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
}


class Ending(Exception):
    """Where it is unpickled, other than where it was made, it raises what would end a program."""

    def __init__(self, kind: str, home: int) -> None:
        super().__init__(kind, home)
        self.home = home

    def __reduce__(self) -> str | tuple[Any, ...]:
        return end_unless_in, self.args


def end_unless_in(kind: str, home: int) -> Ending:
    if os.getpid() != home:
        raise ENDS[kind]("from a pickle")
    return Ending(kind, home)


def return_ending(kind: str) -> Ending:
    return Ending(kind, os.getpid())


def raise_ending(kind: str) -> NoReturn:
    raise Ending(kind, os.getpid())


def note_ending(kind: str) -> str:
    call = current()
    assert call is not None
    call.note(Ending(kind, os.getpid()))
    return kind


def return_ending_or_die(kind: str) -> Ending:
    return Ending(kind, os.getpid()) if kind != FATAL else os._exit(9)


class SaysGoodbye(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words")


def make(kind: str) -> Any:
    return {"lock": threading.Lock, "bad": Unpicklable, "elsewhere": lambda: OnlyInThe(os.getpid())}[kind]()


def raise_(kind: str) -> NoReturn:
    raised: BaseException = {
        "two": lambda: NeedsTwo("one", "other"),
        "unshowable": Unshowable,
        "goodbye": SaysGoodbye,
        "huge": lambda: ValueError("x" * 50_000_000),
        "bytes": lambda: ValueError("\udcff\x1b[31m red"),
        "lock": lambda: ValueError(threading.Lock()),
        "exit": lambda: SystemExit(3),
        "stop": StopIteration,
        "plain": lambda: KeyError("k"),
    }[kind]()
    raise raised


def random_numbers() -> tuple[float, float]:
    import random

    import numpy as np

    return random.random(), float(np.random.random())


def read_or_echo(value: Any) -> Any:
    """Two paths, one per line: the second is touched, then the first is read. Anything else comes back."""
    if not isinstance(value, str):
        return value
    source, begun = value.splitlines()
    Path(begun).touch()
    Path(source).read_bytes()
    return 1


def fork_and_return(n: int) -> int:
    """Both processes return from here; each run of a call leaves a line in a file."""
    ranges.FLUSH_EVERY_S = 60.0  # type: ignore[misc]  # nothing is sent on the way that would end the copy
    with open(os.environ["RUNS"], "a") as file:
        file.write(f"{n}\n")
    if n == 3:
        copy = os.fork()
        if copy:
            os.waitpid(copy, 0)
    return n


def fork_and_return_text(n: int) -> list[str]:
    """As above, with results that are pickled."""
    return [str(fork_and_return(n))]


def fork_and_die(n: int) -> int:
    """The copy returns; then the worker dies."""
    if n == 3 and (copy := os.fork()):
        os.waitpid(copy, 0)
        kill_self()
    return n


def fork_and_exit(code: int) -> int:
    copy = os.fork()
    if not copy:
        sys.exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def fork_and_speak() -> bool:
    """The copy says something and asks for memory, as if it were the call."""
    call = current()
    assert call is not None
    copy = os.fork()
    if not copy:
        call.note("from the copy")
        os._exit(0 if room(1 << 20) is None else 1)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.001)


def room_when_told(path: str) -> str:
    wait_for(path)
    return "had room" if room(100_000) is not None else "had none"


def what_runs_when_it_goes(array: Any) -> list[str]:
    """Which functions of Python are called when an argument, and a room, are let go."""
    held, ran = [array, room(100_000)], list[str]()
    del array
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    return ran


def room_kept_until_the_next(n: int) -> Any:
    import numpy as np

    memory = room(1024 * 1024)
    assert memory is not None
    array = np.frombuffer(memory, np.uint8)
    array[:] = n
    kept[:] = [array]
    call = current()
    assert call is not None
    call.note("the one before is gone")  # what is free goes along
    return array
