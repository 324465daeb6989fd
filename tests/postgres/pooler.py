"""A real PgBouncer between a store and its server, where one is installed: for a test, in its own folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from tests.postgres.server import _other_user
from tests.servers import WATCHDOG

Mode = Literal["transaction", "session"]
PORT = 6432  # of a unix socket in that folder: nobody else is in its way
START_BOUND_S = 20.0
STOP_BOUND_S = 10.0


def find_pgbouncer() -> str:
    """Skips the test where there is none."""
    found = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    if found is None:
        pytest.skip("no pgbouncer is installed here")
    return found


def settings(dsn: str, folder: Path, mode: Mode, sessions: int) -> str:
    parts = urlsplit(dsn)
    options = parse_qs(parts.query)
    host = options["host"][0] if "host" in options else parts.hostname
    server = {
        "host": host,
        "port": parts.port or 5432,
        "user": parts.username,
        "password": parts.password,
        "dbname": parts.path.lstrip("/"),
    }
    known = " ".join(f"{name}={value}" for name, value in server.items() if value)
    return f"""
[databases]
pooled = {known}
[pgbouncer]
listen_addr =
listen_port = {PORT}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {sessions}
max_client_conn = 200
logfile = {folder}/log
"""


@contextlib.contextmanager
def pooled(dsn: str, mode: Mode, sessions: int) -> Iterator[str]:
    """The address of a pooler in front of that server, with so many sessions of its own."""
    program = find_pgbouncer()
    folder = Path(tempfile.mkdtemp(prefix="omniq-pooler-"))
    try:
        (folder / "ini").write_text(settings(dsn, folder, mode, sessions))
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        process = subprocess.Popen(
            [program, "--quiet", str(folder / "ini")], cwd=folder, start_new_session=True, **_other_user()
        )
        starter = [str(os.getpid()), str(process.pid), str(int(signal.SIGTERM)), str(folder)]
        watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCHDOG, *starter], start_new_session=True
        )
        try:
            _wait_for(folder / f".s.PGSQL.{PORT}", process)
            yield f"postgresql://any@/pooled?host={quote(str(folder), safe='')}&port={PORT}"
        finally:
            watchdog.kill()  # first: the number of a process that has ended may be somebody else's
            watchdog.wait()
            process.terminate()
            try:
                process.wait(STOP_BOUND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(place: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_BOUND_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as tried:
            tried.connect(str(place))
            return
        time.sleep(0.02)
    log = place.parent / "log"
    pytest.fail(f"pgbouncer did not start: {log.read_text()[-500:] if log.exists() else 'no log'}")
