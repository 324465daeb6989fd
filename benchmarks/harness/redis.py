"""A Valkey or Redis of its own for every sample: the program of the tests, or what OMNIQ_BENCH_REDIS names.

Without a file, as peers are mostly run, or with an append-only one that is synced before each answer. It
listens on loopback, because not every peer speaks through a unix socket.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from benchmarks.harness.servers import NoServer, Server
from benchmarks.systems.base import ADDRESS

IN_MEMORY = {"appendonly": "no", "save": ""}
SYNCED = {"appendonly": "yes", "appendfsync": "always", "save": ""}
ANSWER_LIMIT_S = 60.0
GIVEN = "OMNIQ_BENCH_REDIS"


def program() -> Path:
    """What is started for a sample."""
    from tests.redis import server

    return Path(given) if (given := os.environ.get(GIVEN)) else server.find_program()


class RedisServers(Server):
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._running: dict[Path, Any] = {}

    def start(self) -> None:
        from tests.redis import server

        try:
            program()
        except server.NoServer as exc:
            raise NoServer(str(exc)) from None

    def stop(self) -> None:
        for folder in list(self._running):
            self.remove(folder)

    def make(self, folder: Path) -> None:
        from tests.redis import server

        self._running[folder] = one = server.Private(self._settings, program=program(), port=True)
        one.start()
        (folder / ADDRESS).write_text(one.url, encoding="utf-8")

    def remove(self, folder: Path) -> None:
        self._running.pop(folder).remove()

    def requests(self, folder: Path) -> int:
        return self._told(folder, "total_commands_processed")

    def used_bytes(self, folder: Path) -> int:
        """What its memory holds, without what fragments of it are lost to the allocator."""
        return self._told(folder, "used_memory")

    def _told(self, folder: Path, name: str) -> int:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(ANSWER_LIMIT_S)
            line.connect(str(self._running[folder].socket))
            line.sendall(b"INFO everything\r\n")
            with line.makefile("rb") as answer:
                length = int(answer.readline()[1:])
                lines = answer.read(length).decode(errors="replace").splitlines()
        [value] = [text.partition(":")[2] for text in lines if text.startswith(f"{name}:")]
        return int(value)
