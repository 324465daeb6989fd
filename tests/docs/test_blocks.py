"""Every Python block of README and docs runs, and prints what the page says; so does what a reader types.

The blocks of a page are one program, in order. A block that begins with `# tasks.py` is that file. Workers
that the page tells its reader to start are started; the other commands are given when the program is done.
"""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Page

# CONTRIBUTING speaks to those who work on this repository: its block shows how a test looks.
TO_READERS = [page for page in PAGES if page.name != "CONTRIBUTING.md"]
WITH_CODE = [page for page in TO_READERS if page.python]
BOUND_S = 50.0
TASK_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Commands that a test of their own runs, because they take long, need an id or do not end
TESTED_ELSEWHERE = ("omniq demo", "omniq result", "omniq dashboard", "omniq top", "python examples/")


def called(page: Page) -> str:
    return page.name


@pytest.mark.bound(150)  # several programs, one after the other
@pytest.mark.parametrize("page", WITH_CODE, ids=called)
def test_the_code_of_a_page_runs(page: Page, tmp_path: Path) -> None:
    program = _write(page, tmp_path)
    with ExitStack() as workers:
        for command in page.commands:
            if command.startswith("omniq worker "):
                workers.enter_context(_running(command, tmp_path))
        said = _run([sys.executable, "-W", "error", program.name], tmp_path)
        _assert_in_order([text for block in page.python if block.runs for text in block.printed], said)
        for command in _to_run(page):
            said += _run(_argv(_with_id(command, said)), tmp_path)


def _with_id(command: str, said: str) -> str:
    """Where a reader is told to type ID, the first one that was shown so far."""
    if not re.search(r"\bID\b", command):
        return command
    shown = TASK_ID.search(said)
    assert shown is not None, f"{command}: nothing on the page has shown an id before"
    return re.sub(r"\bID\b", shown[0], command)


def _write(page: Page, folder: Path) -> Path:
    """The files that a page names, and its other blocks as one program."""
    rest = []
    for block in page.python:
        if not block.runs:
            continue
        if block.file_name is None:
            rest.append(block)
        else:
            (folder / block.file_name).write_text(page.script([block]), encoding="utf-8")
    program = folder / f"page_{page.path.stem}.py".replace("-", "_")
    program.write_text(page.script(rest), encoding="utf-8")
    return program


def _to_run(page: Page) -> list[str]:
    return [
        command
        for command in page.commands
        if command.startswith(("omniq ", "python "))
        and not command.startswith(("omniq worker ", *TESTED_ELSEWHERE))
    ]


def _argv(command: str) -> list[str]:
    name, *rest = shlex.split(command, comments=True)
    return [sys.executable, *(["-m", "omniq"] if name == "omniq" else []), *rest]


def _run(argv: list[str], folder: Path) -> str:
    ended = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert ended.returncode == 0, f"{argv}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@contextmanager
def _running(command: str, folder: Path) -> Iterator[None]:
    """A worker as its reader starts it, stopped as its reader stops it."""
    log = folder / "worker.log"
    with log.open("w") as stderr:
        worker = subprocess.Popen(_argv(command), cwd=folder, stderr=stderr)
    try:
        yield
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=BOUND_S) == 0, log.read_text()
    except BaseException:
        sys.stderr.write(log.read_text())
        raise
    finally:
        worker.kill()
        worker.wait()


def _assert_in_order(expected: list[str], said: str) -> None:
    """Each line of `expected` is among what was said, in this order; other lines may be between."""
    lines = iter(said.splitlines())
    for text in expected:
        assert text in lines, f"{text!r} is missing, or out of order, in:\n{said}"


# --- what the pages may not do -------------------------------------------------------------------


@pytest.mark.parametrize("page", TO_READERS, ids=called)
def test_a_fence_names_a_language_and_nothing_else(page: Page) -> None:
    """The site takes ```python no-run for text, and all that follows for code."""
    odd = [f"{page.name}:{b.line}: {b.language}" for b in page.blocks if not re.fullmatch(r"\w*", b.language)]
    assert odd == [], "a block that does not run has <!-- no-run: why --> above it"


def test_there_is_code_to_run() -> None:
    """A test that found no blocks would pass by looking away."""
    names = {page.name for page in WITH_CODE}
    assert {"README.md", "docs/quickstart.md", "docs/retries.md", "docs/storage.md"} <= names
    assert sum(len(block.printed) for page in WITH_CODE for block in page.python) > 20


def test_a_missing_line_is_found() -> None:
    _assert_in_order(["a", "c"], "a\nb\nc\n")
    with pytest.raises(AssertionError, match="'b' is missing"):
        _assert_in_order(["c", "b"], "a\nb\nc\n")


@pytest.mark.parametrize("page", TO_READERS, ids=called)
def test_commands_of_make_exist(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    text = "\n".join(page.lines)
    named = set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, flags=re.MULTILINE))
    assert named <= targets
