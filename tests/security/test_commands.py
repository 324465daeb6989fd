"""S16: what comes from a command line or the environment is a name to look up, never a line for a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.processes import ROOT

HOSTILE = [
    "x; touch {canary}",
    "x:$(touch {canary})",
    "x:`touch {canary}`",
    "x|touch {canary}",
    "x:q && touch {canary}",
    "os:system('touch {canary}')",
    "__import__('os').system('touch {canary}')",
    "x:q\ntouch {canary}",
    "../../etc/passwd:q",
    "--url=sqlite:///x.db;touch {canary}",
]


def omniq(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(reversed(paths)), **variables}
    return subprocess.run(
        [sys.executable, "-m", "omniq", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=env,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_s16_a_hostile_argument_runs_nothing(tmp_path: Path, canary: Path, text: str) -> None:
    ended = omniq(tmp_path, "worker", text.format(canary=canary))
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    assert not canary.exists()


@pytest.mark.parametrize("text", HOSTILE[:4])
def test_s16_a_hostile_environment_runs_nothing(tmp_path: Path, canary: Path, text: str) -> None:
    ended = omniq(tmp_path, "tasks", OMNIQ_URL=text.format(canary=canary))
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    assert not canary.exists()
