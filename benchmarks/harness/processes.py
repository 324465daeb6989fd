"""Child processes that are measured: start them, ask them, watch what they use, end them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from benchmarks.harness.marks import FOLDER_VARIABLE

ROOT = Path(__file__).parents[2]
STOP_GRACE_S = 3.0
LOG_TAIL_CHARS = 600


class ChildFailed(Exception):
    """A measured process ended too early, too late, or with an error."""


class Usage(NamedTuple):
    """What a process and everything that it started have used."""

    cpu_s: float
    rss_bytes: int


class Child:
    """One process of a system, in a session of its own, which ends at the end of the `with`."""

    def __init__(
        self, python: Path, marks: Path, log: Path, environment: Mapping[str, str], system: str, verb: str,
        **arguments: Any,
    ) -> None:  # fmt: skip
        self.what = f"{system} {verb}"
        self.log = log
        # Installed packages have been compiled; ours would be anew in every process, where that is forbidden.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("OMNIQ_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        self._output = log.with_suffix(".out")
        with log.open("ab") as stderr, self._output.open("wb") as stdout:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.harness.child", system, verb, json.dumps(arguments)],
                cwd=log.parent,
                env={**kept, **environment, "PYTHONPATH": str(ROOT), FOLDER_VARIABLE: str(marks)},
                stdin=subprocess.PIPE,  # kept open as long as we live
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def answer(self, limit_s: float) -> Any:
        """Wait for its end; what it said last."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise self._failed(f"has not answered within {limit_s:g} s") from None
        if self._process.returncode != 0:
            raise self._failed(f"ended with {self._process.returncode}")
        return json.loads(self._output.read_text(encoding="utf-8").splitlines()[-1])

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise self._failed(f"ended early with {self._process.returncode}")

    def _failed(self, what: str) -> ChildFailed:
        tail = self.log.read_text(encoding="utf-8", errors="replace").strip()[-LOG_TAIL_CHARS:]
        return ChildFailed(f"{self.what} {what}{': ' if tail else ''}{tail}")

    def usage(self) -> Usage:
        """Of its whole session; only where there is /proc."""
        processes = [
            folder for folder in Path("/proc").glob("[0-9]*") if _session(folder) == self._process.pid
        ]
        return Usage(sum(map(cpu_s, processes)), sum(map(_rss_bytes, processes)))

    def stop(self) -> None:
        """Ask it to end, and see to it."""
        if self._process.poll() is None:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the session that was started here
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()


CAN_WATCH = sys.platform == "linux"


def _session(process: Path) -> int:
    try:
        return int(_after_name(process)[3])
    except OSError:
        return -1


def _after_name(process: Path) -> list[str]:
    """The fields of `stat` from the state on: before it stands a name that may contain anything."""
    return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def cpu_s(process: Path) -> float:
    """In nanoseconds where the kernel counts them, else in ticks of ten milliseconds."""
    try:
        threads = list((process / "task").iterdir())
        return sum(int((t / "schedstat").read_text(encoding="ascii").split()[0]) for t in threads) / 1e9
    except OSError:
        user, system = _after_name(process)[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _rss_bytes(process: Path) -> int:
    pages = (process / "statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
