"""What the pages say about names and promises is so."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib

import omniq
import pytest
from tests.docs.pages import PAGES, README, ROOT, Page, page

NODE_ID = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")


def mentioned(here: Page) -> set[str]:
    """Dotted names such as `omniq.AsyncWorkerPool` in the text, without file names and calls."""
    return set(re.findall(r"`(omniq(?:\.\w+)+)", "\n".join(here.prose)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_lead_somewhere(page: Page) -> None:
    assert [name for name in sorted(mentioned(page)) if not _leads_somewhere(name)] == []


def _leads_somewhere(name: str) -> bool:
    """A module, or an attribute of one."""
    module, attributes = name, []
    while module:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            attributes.insert(0, last)
            continue
        for attribute in attributes:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def test_a_name_that_is_not_there_is_found() -> None:
    assert _leads_somewhere("omniq.storage.BaseStorage")
    assert not _leads_somewhere("omniq.storage.BaseShop")
    assert not _leads_somewhere("omniq.shop")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_in_blocks_are_of_public_names(page: Page) -> None:
    """A block shows what readers will copy: from `omniq` only what `omniq` exports."""
    for block in page.python:
        for node in ast.walk(ast.parse("\n".join(block.lines))):
            if isinstance(node, ast.ImportFrom) and node.module == "omniq":
                assert {alias.name for alias in node.names} <= set(omniq.__all__)


def test_the_promise_is_the_same_on_both_pages() -> None:
    promise = [line for line in README.lines if line.startswith("> ")]
    guarantees = "\n".join(page("docs/guarantees.md").lines)
    assert len(promise) >= 4
    assert "\n".join(promise) in guarantees


def test_the_readme_opens_with_the_two_commands() -> None:
    commands = [line.split("#")[0].strip() for line in README.lines if line.startswith("    make ")]
    assert commands == ["make demo", "make test"]
    assert README.lines.index("## Quick start") > README.lines.index(
        next(line for line in README.lines if line.startswith("    make test"))
    )


def test_the_distribution_has_the_name_that_the_readme_gives() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"`{project['name']}`" in "\n".join(README.lines)


def test_errors_page_draws_the_tree_as_it_is() -> None:
    """Each class stands under its base, in the order and with the other bases that it has."""
    [tree] = [block for block in page("docs/errors.md").blocks if block.lines and block.lines[0] == "OmniqError"]
    above: list[type] = []
    drawn: set[str] = set()
    for line in tree.lines:
        match = re.match(r"^(?P<stem>[│├└─ ]*)(?P<name>\w+)(?: \((?P<other>\w+)\))?", line)
        assert match is not None
        depth, name, other = len(match["stem"]) // 4, match["name"], match["other"]
        cls = getattr(omniq, name)
        bases = [base.__name__ for base in cls.__bases__]
        assert bases == [base for base in (above[depth - 1].__name__ if depth else "Exception", other) if base]
        above[depth:] = [cls]
        drawn.add(name)
    exported = {name for name in omniq.__all__ if _is_error(getattr(omniq, name))}
    assert drawn == exported


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, omniq.OmniqError)


# --- tests that pages name -----------------------------------------------------------------------


def named_tests(here: Page) -> list[str]:
    return sorted({file + names for line in here.prose for file, names in NODE_ID.findall(line)})


def test_every_named_test_exists() -> None:
    named = sorted({node for here in PAGES for node in named_tests(here)})
    assert len(named) > 20, "guarantees.md names its tests"
    asked = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *named],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    missing = [line for line in asked.stdout.splitlines() + asked.stderr.splitlines() if "ERROR" in line]
    assert (asked.returncode, missing) == (0, [])


def test_every_rule_of_the_guarantees_names_a_test() -> None:
    """Each row of a table of rules has one in its last cell."""
    rows = [
        line
        for line in page("docs/guarantees.md").prose
        if line.startswith("| ") and not line.startswith(("| the promise", "| rule"))
    ]
    assert len(rows) > 15
    assert [row for row in rows if not NODE_ID.search(row.rstrip("| ").rpartition("|")[2])] == []
