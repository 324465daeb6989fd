"""One worker process as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

import omniq
from omniq.cli.wire import Link, Plan, Report, Start, Stop, to_child
from omniq.storage.base import BaseStorage

_ROOT: Final = Path(omniq.__file__).parents[1]


class Child:
    """A running process, the line to it, and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process, link: Link[Report], identity: str) -> None:
        self.process = process
        self.link = link
        self.identity = identity
        self.started_at = time.monotonic()
        self.storage: BaseStorage | None = None
        self.ready = False
        self.quiet_s = 0.0
        self.killed = False
        self.told_to_stop = False
        self.refused = False
        self.kill_at: float | None = None  # told to make way for another; gone by then

    @classmethod
    async def spawn(cls, plan: Plan, metrics: socket.socket | None = None) -> Child:
        """Start it in a session of its own, so that Ctrl-C reaches the supervisor only."""
        ours, theirs = socket.socketpair()
        extra = () if metrics is None else (metrics.fileno(),)
        with contextlib.ExitStack() as unless_started, theirs:
            unless_started.enter_context(ours)
            process = await asyncio.create_subprocess_exec(
                *python("omniq.cli.child", plan.app, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *extra),
                start_new_session=True,
            )
            unless_started.pop_all()
        link = await to_child(ours)
        # A random part: a process that gets an old one's number is another worker.
        identity = f"worker@{socket.gethostname()}:{process.pid}:{secrets.token_hex(4)}"
        link.send(Start(plan, identity, *extra))
        return cls(process, link, identity)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self.started_at

    def stop(self, *, now: bool) -> None:
        self.told_to_stop = True
        self.link.send(Stop(now))
        if not self.ready:
            # It is still importing, and holds nothing.
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()

    def kill(self) -> None:
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def how_it_ended(self) -> str:
        code = self.process.returncode
        assert code is not None
        if code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules with this interpreter."""
    # -P: the working directory comes later, and not first (`application.load`). Not where omniq itself is
    # found only because it lies there.
    safe_path = [] if Path.cwd() == _ROOT else ["-P"]
    return [sys.executable, *safe_path, "-m", module, *arguments]
