"""The program of one worker process, forked by the template or started as `python -m omniq.pool.child`.

Sets the process up (signals, descriptors, paths), serves its channel, and leaves without the interpreter's
farewell to what it inherited.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NoReturn

from omniq.pool import copies
from omniq.pool.arena import Attached
from omniq.pool.control import JOURNAL, ControlPage
from omniq.pool.lines import INTERRUPT_SIGNAL, Line, ParentGone
from omniq.pool.pickles import Journal
from omniq.pool.serving import CurrentCall, Server
from omniq.pool.wire import Where

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
EXIT_BROKEN: Final = 70

_server: Server | None = None


def current() -> CurrentCall | None:
    """The call that runs in this process: its id, whether it should end, and a way to tell the parent."""
    return None if _server is None else _server.current()


def room(nbytes: int) -> memoryview | None:
    """Memory in the arena for a result of the call that runs here; None where there is none to be had."""
    return None if _server is None else _server.room(nbytes)


def run(sock: socket.socket, arena_fd: int, page: Where, maker: int) -> NoReturn:
    """Be a worker process until the end. `maker` is the process that must not die before this one."""
    code = EXIT_BROKEN
    try:
        die_with(maker)
        with suppress(Exception):  # no stderr to write to
            faulthandler.enable()
        _serve(sock, arena_fd, page)
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        code = 0
    except ParentGone:
        code = 0
    except BaseException:
        with suppress(Exception):
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _serve(sock: socket.socket, arena_fd: int, page: Where) -> None:
    global _server  # noqa: PLW0603 - a process serves one channel, and bodies must find it
    arena = Attached(arena_fd)
    line = Line(sock, arena)
    start = line.read()
    if start is None:
        return
    told = json.loads(bytes(start.body))
    settle_in(told)
    if told["arena"]:
        arena.map_whole(told["arena"], told["filled"])
    memory = arena.map_alone(page)
    _server = Server(line, ControlPage(memoryview(memory)), Journal(memory, JOURNAL))
    signal.signal(INTERRUPT_SIGNAL, _server.on_signal)
    copies.watch(memory, _server.end_soon)
    _server.serve()


def settle_in(start: dict[str, Any]) -> None:
    """Look like the parent: the same folder, arguments and import path."""
    sys.path[:] = start["path"]
    sys.argv[:] = start["argv"]
    with suppress(OSError):  # a folder that is gone meanwhile
        os.chdir(start["cwd"])
    os.environ.pop("PYTHONPATH", None)
    if start["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = start["pythonpath"]


def describe() -> dict[str, Any]:
    """What `settle_in` needs, seen in the parent."""
    return {
        "path": import_path(),
        "argv": [str(argument) for argument in sys.argv],
        "cwd": _cwd(),
        "pythonpath": os.environ.get("PYTHONPATH"),
    }


def import_path() -> list[str]:
    """Where this process finds modules, for one that is elsewhere. Python passes over what is no text."""
    cwd = _cwd()
    texts = [entry or cwd for entry in sys.path if isinstance(entry, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
    return [text for text in texts if text]  # without a folder to start in, Python takes no relative ones


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder is gone, so they have none either
        return ""


def after_fork() -> None:
    """Undo in a forked child what it must not share with the template and its siblings."""
    atexit._clear()  # pyright: ignore[reportPrivateUsage]
    for name in ("random", "numpy.random"):
        if (generator := sys.modules.get(name)) is not None:
            generator.seed()  # or every child would draw the same numbers


def die_with(maker: int) -> None:
    """Ask the system to kill this process when the one that made it ends, however that ends."""
    for number in (signal.SIGINT, signal.SIGTERM, INTERRUPT_SIGNAL):
        # The parent decides when calls end. Not SIG_IGN: programs that a body starts would inherit that.
        signal.signal(number, _leave_it_to_the_parent)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        libc.prctl(PR_SET_NAME, b"omniq-pool", 0, 0, 0)
    if os.getppid() != maker:  # it died before we asked
        os._exit(0)


def _leave_it_to_the_parent(_signal: int, _frame: FrameType | None) -> None:
    """Do nothing."""


def main() -> NoReturn:
    sock_fd, arena_fd, number, generation, offset, size = map(int, sys.argv[1:7])
    run(socket.socket(fileno=sock_fd), arena_fd, Where(number, generation, offset, size), os.getppid())


if __name__ == "__main__":
    # Under the name __main__ this module is not the one that bodies import.
    from omniq.pool.child import main as main_of_the_module

    main_of_the_module()
