"""mypy and basedpyright, both strict, accept right calls and refuse each wrong one, on its line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "cases"
RIGHT, WRONG = CASES / "right.py", CASES / "wrong.py"

Errors = dict[Path, dict[int, list[str]]]  # file -> line -> messages


def mypy() -> Errors:
    run = check("mypy", "--strict", "--no-error-summary", "--show-absolute-path", "--no-pretty")
    found: Errors = defaultdict(lambda: defaultdict(list))
    for line in run.stdout.splitlines():
        if match := re.match(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<message>.*)", line):
            found[Path(match["file"])][int(match["line"])].append(match["message"])
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return found


def basedpyright() -> Errors:
    run = check("basedpyright", "--outputjson", "--level", "error")
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found: Errors = defaultdict(lambda: defaultdict(list))
    for one in json.loads(run.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            found[Path(one["file"])][one["range"]["start"]["line"] + 1].append(one["message"])
    return found


def check(tool: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", tool, *options, str(RIGHT), str(WRONG)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)


def refused_lines() -> dict[int, str]:
    lines = enumerate(WRONG.read_text(encoding="utf-8").splitlines(), 1)
    return {number: line.strip() for number, line in lines if line.endswith("# refused")}


# One test for each checker: each of them takes seconds to start.
@pytest.mark.parametrize("checker", [mypy, basedpyright])
def test_right_is_accepted_and_wrong_is_refused(checker: Callable[[], Errors]) -> None:
    found = checker()
    assert dict(found[RIGHT]) == {}, "right calls were refused"
    accepted = [line for number, line in refused_lines().items() if number not in found[WRONG]]
    assert accepted == [], "wrong calls were accepted"
    # An error on another line would mean that wrong calls are refused for the wrong reason.
    assert set(found[WRONG]) <= set(refused_lines())


def test_there_are_wrong_calls_for_every_face() -> None:
    text = "\n".join(refused_lines().values())
    for face in ("enqueue(", "aenqueue(", "options(", "call(", "result(", "aresult("):
        assert face in text
