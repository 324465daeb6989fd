"""Every requirement of the seeds has a test that can be found by its number."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REQUIRED = [
    *(f"S000-{n}" for n in range(1, 25)),
    *(f"S001-{n}" for n in range(1, 37)),
    *(f"S002-{n}" for n in range(1, 20)),
    *(f"S003-{n}" for n in range(1, 38)),
    *(f"S004-{n}" for n in range(1, 28)),
]
DECIDED = [f"C{n}" for n in range(1, 28)]

Marked = tuple[str, str, str]  # number in the mark, name of the test, docstring


@functools.cache
def marked_tests() -> list[Marked]:
    """Every test here with a `requirement` mark, read from the sources."""
    found: list[Marked] = []
    for file in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                doc = ast.get_docstring(node) or ""
                found += [(number, node.name, doc) for number in marks_of(node)]
    return found


def marks_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    calls = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
    return [
        ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func).endswith(".requirement")
    ]


@pytest.mark.parametrize("number", REQUIRED + DECIDED)
def test_has_a_test(number: str) -> None:
    docs = [doc for marked, _, doc in marked_tests() if marked == number]
    assert docs, f"no test is marked with {number}"
    assert all(re.match(rf"{number}\b", doc) for doc in docs), "its docstring must begin with the number"


def test_no_test_holds_a_requirement_that_does_not_exist() -> None:
    known = {*REQUIRED, *DECIDED}
    assert {number for number, _, _ in marked_tests()} <= known


def test_names_say_the_number_too() -> None:
    for number, name, _ in marked_tests():
        assert name.startswith(f"test_{number.lower().replace('-', '_')}_"), f"{name} holds {number}"
