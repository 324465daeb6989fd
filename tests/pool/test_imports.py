"""What a worker process imports before its first call: every start, of every pool, waits for all of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each of these takes several milliseconds, and none is of use before a call asks for it.
SLOW = {
    "asyncio",
    "cloudpickle",
    "loguru",
    "msgspec",
    "random",
    "subprocess",
    "tempfile",
    "typing_extensions",
}


@pytest.mark.parametrize(
    ("modules", "needed"),
    [
        ("omniq.pool.template", set()),
        ("omniq.pool.child", set()),
        ("omniq.data.inside, omniq.data.sharing", set()),
        ("omniq.data.source", {"random"}),  # which is seeded before each sample
    ],
)
def test_what_a_worker_needs_is_quick_to_import(modules: str, needed: set[str]) -> None:
    code = f"import sys, {modules}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert (SLOW - needed) & set(found.stdout.split()) == set()
