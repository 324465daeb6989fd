"""The environments of the peers: beside ours, with pinned versions, so that they meet none of our packages.

Most share one. A peer that wants other versions of what they share has one of its own, with pins of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.processes import ROOT

INSTALL_LIMIT_S = 300.0
WHERE = "OMNIQ_BENCH_PEERS"  # names the folder of the environments; the checkout if nothing is said


class NotInstalled(Exception):
    """A peer that cannot be had here; it is named and left out."""


def python_with(package: str, environment: str = "peers") -> Path:
    """The interpreter that has `package` in its pinned version; whatever is missing is installed."""
    folder, pins = Path(os.environ.get(WHERE, ROOT)) / f".venv-{environment}", pins_of(environment)
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)], "cannot make the environment of the peers")
    if _installed(python, package) != pinned(environment)[package]:
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        _run([*pip, "-c", str(pins), package], f"cannot install {package}")
    return python


def pins_of(environment: str) -> Path:
    return ROOT / "benchmarks" / "pins" / f"{environment}.txt"


def pinned(environment: str) -> dict[str, str]:
    lines = pins_of(environment).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def _installed(python: Path, package: str) -> str | None:
    ask = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    asked = subprocess.run(
        [python, "-c", ask, package], capture_output=True, text=True, timeout=60, check=False
    )
    # What stands behind a plus says for which hardware it was built.
    return asked.stdout.strip().partition("+")[0] if asked.returncode == 0 else None


def _run(command: list[str], trouble: str) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{trouble}: not done within {INSTALL_LIMIT_S:g} s") from None
    if ended.returncode != 0:
        raise NotInstalled(f"{trouble}: {(ended.stderr or ended.stdout).strip().splitlines()[-1]}")
