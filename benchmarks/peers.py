"""The environment of the peers: beside ours, with pinned versions, so that they meet none of our packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.processes import ROOT

ENVIRONMENT = ROOT / ".venv-peers"
PINS = Path(__file__).with_name("peers.txt")
INSTALL_LIMIT_S = 300.0


class NotInstalled(Exception):
    """A peer that cannot be had here; it is named and left out."""


def python_with(package: str) -> Path:
    """The interpreter that has `package` in its pinned version; whatever is missing is installed."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(ENVIRONMENT)], "cannot make the environment of the peers")
    if _installed(python, package) != _pinned(package):
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        _run([*pip, "-c", str(PINS), package], f"cannot install {package}")
    return python


def _pinned(package: str) -> str:
    lines = PINS.read_text(encoding="utf-8").splitlines()
    [version] = [line.removeprefix(f"{package}==") for line in lines if line.startswith(f"{package}==")]
    return version


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
