"""What the pages say about names and promises is so."""

import ast
import importlib
import importlib.util
import re
import tomllib

import pytest

import omniq
from omniq.calls import OptionsDict
from omniq.storage import open_storage
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
    module = name
    attributes: list[str] = []
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
    assert promise[0].startswith("> If `enqueue` returned, the task reaches a final status")
    assert promise[-1].endswith("and what it reports is refused.")
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
    [tree] = [
        block for block in page("docs/errors.md").blocks if block.lines and block.lines[0] == "OmniqError"
    ]
    above: list[type] = []
    drawn: set[str] = set()
    for line in tree.lines:
        match = re.match(r"^(?P<stem>[│├└─ ]*)(?P<name>\w+)(?: \((?P<other>\w+)\))?", line)
        assert match is not None
        depth, name, other = len(match["stem"]) // 4, match["name"], match["other"]
        cls = getattr(omniq, name)
        parent = above[depth - 1] if depth else Exception
        assert [base.__name__ for base in cls.__bases__] == list(filter(None, (parent.__name__, other)))
        above[depth:] = [cls]
        drawn.add(name)
    exported = {name for name in omniq.__all__ if _is_error(getattr(omniq, name))}
    assert drawn == exported


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, omniq.OmniqError)


def test_the_tree_of_the_architecture_is_the_tree() -> None:
    [tree] = [b for b in page("docs/architecture.md").blocks if b.lines and b.lines[0] == "src/omniq/"]
    drawn: set[str] = set()
    folder = ""
    for line in tree.lines[1:]:
        names = line.strip().split("  ")[0].split()  # what stands behind is what it is for
        inner = line.startswith("    ")
        drawn |= {folder + name if inner else name for name in names}
        if not inner:
            folder = names[0] if names[0].endswith("/") else ""
    package = ROOT / "src" / "omniq"
    assert [name for name in sorted(drawn) if not (package / name).exists()] == []
    modules = {path.name for path in package.glob("*.py")}
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert (modules | folders) - drawn == set()


def test_the_quick_start_lists_every_option_of_a_task() -> None:
    lines = page("docs/quickstart.md").prose
    start = lines.index("| option | means | default |")
    table = lines[start + 2 : lines.index("", start)]
    listed = [name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(OptionsDict.__annotations__)


# --- tests that pages name -----------------------------------------------------------------------


def named_tests(here: Page) -> list[str]:
    return sorted({file + names for line in here.prose for file, names in NODE_ID.findall(line)})


def test_every_named_test_exists() -> None:
    named = sorted({node for here in PAGES for node in named_tests(here)})
    assert len(named) > 20, "guarantees.md names its tests"
    assert [node for node in named if not _is_a_test(node)] == []


def _is_a_test(node: str) -> bool:
    """`tests/file.py::test_name`, or `tests/file.py::TestClass::test_name`, which may be inherited."""
    file, *classes, name = node.split("::")
    if not (ROOT / file).is_file() or not name.startswith("test_"):
        return False
    if not classes:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        return any(
            isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name == name
            for part in tree.body
        )
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    [class_name] = classes
    return callable(getattr(getattr(module, class_name, None), name, None))


def test_a_test_that_is_not_there_is_found() -> None:
    conformance = "tests/conformance/test_stores.py::TestSQLite"
    assert _is_a_test(f"{conformance}::test_two_claimers_never_share_a_task")
    assert not _is_a_test(f"{conformance}::test_two_claimers_share_everything")
    assert _is_a_test("tests/docs/test_names.py::test_a_test_that_is_not_there_is_found")
    assert not _is_a_test("tests/docs/test_names.py::test_nothing_at_all")
    assert not _is_a_test("tests/nowhere.py::test_nothing_at_all")


def test_every_rule_of_the_guarantees_names_a_test() -> None:
    """Each row of a table of rules has one in its last cell."""
    rows = [
        line
        for line in page("docs/guarantees.md").prose
        if line.startswith("| ") and not line.startswith(("| the promise", "| rule"))
    ]
    assert len(rows) > 15
    assert [row for row in rows if not NODE_ID.search(row.rstrip("| ").rpartition("|")[2])] == []
