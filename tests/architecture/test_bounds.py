"""What tests/conftest.py promises: async tests really run, and a test that hangs fails."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAD = """
import asyncio, signal, threading, time
import pytest
from hypothesis import given
from hypothesis.strategies import integers
"""

SEVERAL = """
examples = []

@given(integers())
async def test_passes_every_example(n):
    await asyncio.sleep(0)
    examples.append(n)

async def test_passes_with_a_fixture(tmp_path):
    assert tmp_path.is_dir() and len(examples) > 10

def test_passes_although_whoever_started_it_ignores_ctrl_c():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

async def test_fails_by_assertion():
    assert 1 == 2

@given(integers())
async def test_fails_by_example(n):
    assert n < 1000

@pytest.mark.bound(0.2)
async def test_fails_by_hanging():
    await asyncio.sleep(600)

async def test_fails_by_a_timeout_of_its_own():
    raise TimeoutError("its own")

async def test_fails_by_forgetting_to_await():
    asyncio.sleep(0)

def test_fails_by_leaving_a_file_open():
    open(__file__)
"""

# Neither can be cancelled: the loop itself is blocked, or there is none.
BLOCKED = [
    "@pytest.mark.bound(0.2)\nasync def test_blocked():\n    time.sleep(600)",
    "@pytest.mark.bound(0.2)\ndef test_blocked():\n    threading.Event().wait()",
]


def run_pytest(folder: Path, source: str, grace_s: float) -> subprocess.CompletedProcess[str]:
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    assert conftest.count("CANCELLATION_GRACE_S = 15.0") == 1
    patient = conftest.replace("CANCELLATION_GRACE_S = 15.0", f"CANCELLATION_GRACE_S = {grace_s}")
    (folder / "conftest.py").write_text(patient, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "test_inner.py").write_text(HEAD + source, encoding="utf-8")
    deaf = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]  # as a shell starts what goes into the background
    command = [*deaf, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_inner.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, check=False)


def test_async_tests_run_and_every_way_to_fail_is_seen(tmp_path: Path) -> None:
    # All of them can be cancelled, so none waits for this; a busy machine may need it to write the report.
    ended = run_pytest(tmp_path, SEVERAL, grace_s=15.0)
    assert "6 failed, 3 passed" in ended.stdout
    assert "FAILED test_inner.py::test_passes" not in ended.stdout
    for words in (
        "assert 1 == 2",
        "assert 1000 < 1000",
        "still running after 0.2 s",
        "TimeoutError: its own",
    ):
        assert words in ended.stdout
    for words in ("was never awaited", "unclosed file"):
        assert words in ended.stdout


@pytest.mark.parametrize("source", BLOCKED, ids=["async", "sync"])
def test_what_cannot_be_cancelled_ends_the_process_and_shows_where_it_was(
    tmp_path: Path, source: str
) -> None:
    ended = run_pytest(tmp_path, source, grace_s=1.5)
    assert ended.returncode != 0
    assert "Timeout (0:00:01.700000)" in ended.stderr
    assert "in test_blocked" in ended.stderr
