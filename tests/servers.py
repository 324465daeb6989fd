"""What the servers that tests start have in common: they end with whoever started them; sessions share one.

All processes of a test session share one server of a kind. A small guardian process starts and stops it, so
that nothing stays behind when pytest is killed:

    pytest (controller) <─ watched by ─ guardian ── parent of ──> server
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

REQUIRE = "OMNIQ_REQUIRE"
START_BOUND_S = 40.0
STOP_BOUND_S = 20.0
LOOK_EVERY_S = 0.02
WATCH_EVERY_S = 0.5

# Runs beside a server and ends it when whoever started it is gone without a word, as pytest is when it hangs.
WATCHDOG = """
import os, shutil, sys, time
starter, server, how, folder = *map(int, sys.argv[1:4]), sys.argv[4]
while os.getppid() == starter:
    time.sleep(0.5)
try:
    os.kill(server, how)
except ProcessLookupError:
    pass
time.sleep(1)
shutil.rmtree(folder, ignore_errors=True)
"""


class NoServer(Exception):
    """No such server can be had here; the message says why."""


def missing(kind: str, why: NoServer) -> None:
    """Skip, with one line; fail where a server of that kind was asked for."""
    if kind in os.environ.get(REQUIRE, "").replace(",", " ").split():
        pytest.fail(f"{REQUIRE} names {kind}, but {why}", pytrace=False)
    pytest.skip(f"no {kind}: {why}")


class PrivateServer(ABC):
    """A server in a temporary folder: started, stopped in any way, started again on its data, removed."""

    # It then ends at once, as in a crash, with all that it has started.
    crash: ClassVar[int] = signal.SIGKILL

    def __init__(self, prefix: str) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))

    @property
    @abstractmethod
    def address(self) -> str: ...

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def _is_ready(self) -> bool: ...

    def _launch(self, command: Sequence[str], **whom: Any) -> None:
        assert self._server is None
        with (self.folder / "log").open("ab") as log:
            # A group of its own: Ctrl-C is for pytest, which ends before its server.
            self._server = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True, **whom
            )
        told = [str(os.getpid()), str(self._server.pid), str(int(self.crash)), str(self.folder)]
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCHDOG, *told], start_new_session=True
        )
        until = time.monotonic() + START_BOUND_S
        while not self._is_ready():
            if self._server.poll() is not None or time.monotonic() > until:
                log_end = (self.folder / "log").read_text(errors="replace")[-400:]
                self._end(self.crash)
                raise NoServer(f"{Path(command[0]).name} did not start: {log_end}")
            time.sleep(LOOK_EVERY_S)

    def _end(self, how: int) -> None:
        server, self._server = self._server, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:  # first: the number of a server that has ended may be somebody else's
            watchdog.kill()
            watchdog.wait()
        if server is None:
            return
        server.send_signal(how)
        try:
            server.wait(STOP_BOUND_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def remove(self) -> None:
        """Nobody needs its data any more, so it need not save them."""
        self._end(self.crash)
        shutil.rmtree(self.folder, ignore_errors=True)


# --- one server for a whole test session -----------------------------------------------------------


def shared_address(kind: str, folder: Path, controller: int) -> str:
    """Where the session's server is; whoever asks first starts it. `folder` is the session's own."""
    with (folder / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = _note(kind, folder)
        if not note.exists():
            note.write_text(json.dumps(_start_guardian(kind, controller)))
        answer = json.loads(note.read_text())
    if "address" not in answer:
        raise NoServer(answer["error"])
    return str(answer["address"])


def _note(kind: str, folder: Path) -> Path:
    return folder / f"{kind}.json"  # the name is known to tests/conftest.py


def _start_guardian(kind: str, controller: int) -> dict[str, Any]:
    guardian = subprocess.Popen(
        [sys.executable, "-m", f"tests.{kind}.server", str(controller)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    )
    assert guardian.stdout is not None
    with guardian.stdout as said:
        line = said.readline()
    guardian.wait()
    return json.loads(line) if line else {"error": f"the guardian of {kind} died"}


def stop_shared(kind: str, folder: Path) -> None:
    """Called once, by the process that began the session."""
    note = _note(kind, folder)
    if not note.exists():
        return
    answer = json.loads(note.read_text())
    note.unlink()
    if "pid" in answer:
        with contextlib.suppress(ProcessLookupError):
            os.kill(answer["pid"], signal.SIGTERM)


def guard(make: Callable[[], PrivateServer], controller: int) -> None:
    """Start a server, say where, and stop it when told to, or when the test session is gone."""
    # Nobody's child: a test that looks for the processes which it has started must not find this one.
    if os.fork() > 0:
        os._exit(0)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        server = make()
    except (NoServer, OSError, subprocess.SubprocessError) as exc:
        _say({"error": str(exc)})
        return
    try:
        server.start()
        _say({"address": server.address, "pid": os.getpid()})
        while not told and _lives(controller):
            time.sleep(WATCH_EVERY_S)
    except NoServer as exc:
        _say({"error": str(exc)})
    finally:
        server.remove()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _lives(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
