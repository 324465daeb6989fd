"""The shape of src/omniq, read from its syntax trees: layers, purity of logic/, and what S1 and S16 forbid.

Each rule takes one module and yields its complaints. Every rule is shown a bad snippet at the end of this
file, so that none of them can pass by looking away.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "omniq"

# From the bottom up. A module imports from its own layer and from those below it.
LAYERS = (
    {"task", "checks", "ids", "reports", "schedule", "parcel", "errors"},
    {"logic"},
    {"clock", "config", "names", "serializer", "storage", "registry", "loopthread"},
    {"pool"},
    {
        "executors",
        "coroutines",
        "running",
        "hooks",
        "inchild",
        "processes",
        "processview",
        "crew",
        "upkeep",
        "worker",
    }
    | {"exchanges", "lanes", "workeroptions"}
    | {"data", "metrics", "moving", "stalls", "tracing", "web"},
    {"app", "calls", "connections", "handles", "progressbar", "schedules", "taskfunction"},
    {"omniq"},  # the package itself: the public names
    {"testing"},
    {"cli", "contrib", "__main__"},
)
EXPORTED_FUNCTIONS = ("context",)  # everything else that the package exports begins with a capital
HEIGHT = {unit: height for height, layer in enumerate(LAYERS) for unit in layer}

STORES = ("memory", "sqlite", "postgres", "redis")
CONTRACT = ("omniq.storage.base", "omniq.storage.backend")

PURE_OWN = ("omniq.task", "omniq.schedule", "omniq.parcel", "omniq.errors", "omniq.logic")
PURE_STANDARD = {
    "__future__", "collections", "dataclasses", "datetime", "enum", "fnmatch", "functools", "itertools",
    "math", "typing",
    "msgspec",  # not of the standard library, but it only makes frozen values
    "cronsim", "zoneinfo",  # when a cron line fires, and where: facts that do not change while we run
}  # fmt: skip
IMPURE_BUILTINS = {"open", "print", "input", "breakpoint", "__import__"}
CLOCK_READINGS = {"now", "utcnow", "today"}

UNSAFE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "jsonpickle", "marshal", "shelve", "yaml"}
UNSAFE_BUILTINS = {"eval", "exec", "builtins.eval", "builtins.exec"}
MAY_BE_UNSAFE = ("omniq.serializer.pickled", "omniq.pool.pickles")

SHELLS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "asyncio.subprocess.create_subprocess_shell",
}  # fmt: skip
COMMANDS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")}

TYPES_ONLY = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
LONGEST_FUNCTION = 70


@dataclass(frozen=True)
class Import:
    target: str
    line: int


@dataclass(frozen=True)
class Module:
    """One source file: `name` is dotted, as in omniq.storage.sqlite; a package goes by its own name."""

    name: str
    is_package: bool
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node that runs: what stands under `if TYPE_CHECKING:` does not."""
        return list(running_nodes(self.tree))

    @cached_property
    def imports(self) -> list[Import]:
        return [Import(target, node.lineno) for node in self.nodes for target in self._imported(node)]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported name stands for: `sp` for subprocess, `Popen` for subprocess.Popen."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names.update({alias.asname: alias.name for alias in node.names if alias.asname})
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                names.update({alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names})
        return names

    @property
    def unit(self) -> str:
        """The part of the package that has a place in LAYERS."""
        return unit_of(self.name)

    def dotted(self, node: ast.expr) -> str:
        """The full name that an expression such as `sp.run` spells, or "" if it spells none."""
        match node:
            case ast.Name(name):
                return self.aliases.get(name, name)
            case ast.Attribute(value, name):
                base = self.dotted(value)
                return f"{base}.{name}" if base else ""
            case _:
                return ""

    def _imported(self, node: ast.AST) -> list[str]:
        match node:
            case ast.Import(names):
                return [alias.name for alias in names]
            case ast.ImportFrom(names=names):
                base = self._absolute(node)
                # In `from omniq import errors` the module is omniq.errors; in other cases the base says it.
                return [f"{base}.{alias.name}" for alias in names]
            case ast.Call(function, [ast.Constant(str(path)), *_]):
                if self.dotted(function) in {"importlib.import_module", "__import__"}:
                    return [path if not path.startswith(".") else f"{self._package(1)}.{path.lstrip('.')}"]
        return []

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        return ".".join(filter(None, [self._package(node.level), node.module]))

    def _package(self, level: int) -> str:
        parts = self.name.split(".")
        keep = len(parts) - level + (1 if self.is_package else 0)
        return ".".join(parts[:keep])


Rule = Callable[[Module], Iterator[str]]


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        for child in reversed(list(ast.iter_child_nodes(found))):
            if isinstance(child, ast.If) and ast.unparse(child.test) in TYPES_ONLY:
                waiting.extend(reversed(child.orelse))
            else:
                waiting.append(child)


def unit_of(name: str) -> str:
    """omniq.storage.sqlite is part of `storage`; a name that the package exports, of `omniq` itself."""
    _, _, inner = name.partition(".")
    first = inner.partition(".")[0]
    exported = first in EXPORTED_FUNCTIONS
    is_module = first in HEIGHT or (first.islower() and not first.startswith("__") and not exported)
    return first if is_module else "omniq"


def store_of(name: str) -> str | None:
    """Which store a module or an exported class belongs to: sqlite_writer, sqlite.rows and SQLiteStorage."""
    if not name.startswith("omniq.storage."):
        return None
    part = name.split(".")[2].lower()
    return next((store for store in STORES if part.startswith(store)), None)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# The rules.


def layers(module: Module) -> Iterator[str]:
    if module.unit not in HEIGHT:
        yield f"1: {module.unit!r} has no layer; give it a place in LAYERS"
        return
    for found in own_imports(module):
        above = unit_of(found.target)
        if above not in HEIGHT:
            yield f"{found.line}: imports {found.target}, which has no layer; give it a place in LAYERS"
        elif HEIGHT[above] > HEIGHT[module.unit]:
            yield f"{found.line}: {module.unit} imports {found.target}, which lies above it"


def stores_stand_alone(module: Module) -> Iterator[str]:
    """Stores never import each other, and the contract knows none of them."""
    mine = store_of(module.name)
    if mine is None and module.name not in CONTRACT:
        return
    for found in own_imports(module):
        other = store_of(found.target)
        if other not in {None, mine}:
            yield f"{found.line}: imports the {other} store; share through omniq.storage.base or omniq.logic"


def logic_is_pure(module: Module) -> Iterator[str]:
    if module.unit != "logic":
        return
    for found in module.imports:
        own = within(found.target, PURE_OWN)
        if not own and found.target.partition(".")[0] not in PURE_STANDARD:
            yield f"{found.line}: logic imports {found.target}, which is not in PURE_OWN or PURE_STANDARD"
    for node in module.nodes:
        if isinstance(node, ast.Call):
            called = module.dotted(node.func)
            if called in IMPURE_BUILTINS or called.rpartition(".")[2] in CLOCK_READINGS:
                yield f"{node.lineno}: logic calls {called}; let the fact come in as an argument"
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global):
            yield f"{node.lineno}: logic neither waits nor keeps state"


def data_is_never_code(module: Module) -> Iterator[str]:
    """FAILURES S1: what can turn bytes into running code lives in two modules."""
    if module.name in MAY_BE_UNSAFE:
        return
    for found in module.imports:
        if found.target.partition(".")[0] in UNSAFE_MODULES:
            yield f"{found.line}: imports {found.target}; only {' and '.join(MAY_BE_UNSAFE)} may"
    for node in module.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and module.dotted(node) in UNSAFE_BUILTINS:
            yield f"{node.lineno}: uses {module.dotted(node)}; only {' and '.join(MAY_BE_UNSAFE)} may"


def commands_are_lists(module: Module) -> Iterator[str]:
    """FAILURES S16: no shell ever reads what the project starts."""
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = module.dotted(node.func)
        if called in SHELLS or called.endswith(".subprocess_shell"):
            yield f"{node.lineno}: {called} starts a shell; use subprocess with a list"
        for keyword in node.keywords:
            if keyword.arg == "shell" and ast.unparse(keyword.value) != "False":
                yield f"{node.lineno}: shell={ast.unparse(keyword.value)}; use subprocess with a list"
        if called in COMMANDS and is_text(command_of(node)):
            yield f"{node.lineno}: {called} with a string; use a list of arguments"


def functions_fit_a_screen(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"{node.lineno}: {node.name} has {lines} lines; {LONGEST_FUNCTION} is the wall"


def own_imports(module: Module) -> list[Import]:
    return [found for found in module.imports if within(found.target, ("omniq",))]


def command_of(call: ast.Call) -> ast.expr | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "args"]
    return next(iter([*call.args, *named]), None)


def is_text(node: ast.expr | None) -> bool:
    match node:
        case ast.Constant(str() | bytes()) | ast.JoinedStr():
            return True
        case ast.BinOp(left, ast.Add() | ast.Mod(), right):
            return is_text(left) or is_text(right)
        case ast.Call(ast.Attribute(value, "format" | "join")):
            return is_text(value)
        case _:
            return False


RULES: list[Rule] = [
    layers,
    stores_stand_alone,
    logic_is_pure,
    data_is_never_code,
    commands_are_lists,
    functions_fit_a_screen,
]


# The rules hold for the sources.


@cache
def sources() -> list[tuple[Path, Module]]:
    found: list[tuple[Path, Module]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["omniq", *path.relative_to(PACKAGE).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append((path, Module(name, is_package, path.read_text(encoding="utf-8"))))
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_sources_keep_the_rule(rule: Rule) -> None:
    complaints = [
        f"{path.relative_to(PACKAGE.parent)}:{complaint}"
        for path, module in sources()
        for complaint in rule(module)
    ]
    assert not complaints, "\n".join(complaints)


def test_the_sources_are_found() -> None:
    names = {module.name for _, module in sources()}
    assert {"omniq", "omniq.task", "omniq.logic.lifecycle"} <= names


# The rules see what they are for.

LONG = "def long():\n" + "    pass\n" * LONGEST_FUNCTION
SCREEN = "def screen():\n" + "    pass\n" * (LONGEST_FUNCTION - 1)

# fmt: off
BAD = [
    # upwards, in every way an import can be spelled
    (layers, "omniq.task",            "from omniq.logic import retry"),
    (layers, "omniq.task",            "import omniq.app"),
    (layers, "omniq.errors",          "from omniq import app"),
    (layers, "omniq.clock",           "from omniq import OmniQ"),
    (layers, "omniq.logic.retry",     "from .. import clock"),
    (layers, "omniq.logic.retry",     "from ..clock import Clock"),
    (layers, "omniq.storage.sqlite",  "def later():\n    from omniq.worker import WorkerPool"),
    (layers, "omniq.serializer",      "import importlib\nimportlib.import_module('omniq.worker')"),
    (layers, "omniq.serializer",      "import importlib as i\ni.import_module('.worker', 'omniq')"),
    (layers, "omniq.pool.child",      "from omniq.executors import run"),
    (layers, "omniq.worker",          "from omniq.app import OmniQ"),
    (layers, "omniq.app",             "from omniq.testing import drain"),
    (layers, "omniq",                 "from omniq.cli import main"),
    (layers, "omniq.testing.clock",   "from omniq.contrib import django"),
    (layers, "omniq.app",             "if TYPE_CHECKING:\n    pass\nelse:\n    from omniq.cli import main"),
    # without a place
    (layers, "omniq.utils",           "pass"),
    (layers, "omniq.app",             "from omniq.utils import anything"),
    # one store in another, and a store in the contract
    (stores_stand_alone, "omniq.storage.sqlite",        "from omniq.storage.memory import MemoryStorage"),
    (stores_stand_alone, "omniq.storage.sqlite_writer", "from . import memory"),
    (stores_stand_alone, "omniq.storage.memory",        "from omniq.storage import SQLiteStorage"),
    (stores_stand_alone, "omniq.storage.redis.scripts", "from ..postgres import connect"),
    (stores_stand_alone, "omniq.storage.base",          "from omniq.storage.sqlite import SQLiteStorage"),
    # logic that knows more than it was told
    (logic_is_pure, "omniq.logic.retry",     "import random"),
    (logic_is_pure, "omniq.logic.retry",     "from time import monotonic"),
    (logic_is_pure, "omniq.logic.retry",     "import logging"),
    (logic_is_pure, "omniq.logic.retry",     "import numpy"),
    (logic_is_pure, "omniq.logic.retry",     "from omniq.clock import Clock"),
    (logic_is_pure, "omniq.logic.lifecycle", "from omniq.storage import base"),
    (logic_is_pure, "omniq.logic.lifecycle", "from datetime import datetime\ndatetime.now()"),
    (logic_is_pure, "omniq.logic.lifecycle", "import datetime as d\nd.date.today()"),
    (logic_is_pure, "omniq.logic.lifecycle", "print('settled')"),
    (logic_is_pure, "omniq.logic.lifecycle", "open('log')"),
    (logic_is_pure, "omniq.logic",           "async def settle(): ..."),
    # bytes that become code
    (data_is_never_code, "omniq.storage.sqlite", "import pickle"),
    (data_is_never_code, "omniq.serializer",     "import pickle"),
    (data_is_never_code, "omniq.serializer.json", "import cloudpickle"),
    (data_is_never_code, "omniq.storage.sqlite", "from marshal import loads"),
    (data_is_never_code, "omniq.pool.wire",      "def send():\n    import cloudpickle"),
    (data_is_never_code, "omniq.cli",            "import yaml.loader"),
    (data_is_never_code, "omniq.cli",            "__import__('dill')"),
    (data_is_never_code, "omniq.registry",       "eval(path)"),
    (data_is_never_code, "omniq.registry",       "run = exec"),
    (data_is_never_code, "omniq.registry",       "import builtins as b\nb.eval(path)"),
    # a shell, or a string where a list belongs
    (commands_are_lists, "omniq.cli", "import subprocess\nsubprocess.run(['ls'], shell=True)"),
    (commands_are_lists, "omniq.cli", "start(command, shell=wanted)"),
    (commands_are_lists, "omniq.cli", "import os\nos.system(command)"),
    (commands_are_lists, "omniq.cli", "from asyncio import create_subprocess_shell as go\ngo(command)"),
    (commands_are_lists, "omniq.cli", "import subprocess as sp\nsp.run('ls')"),
    (commands_are_lists, "omniq.cli", "from subprocess import Popen\nPopen(args=f'ls {folder}')"),
    (commands_are_lists, "omniq.cli", "import subprocess\nsubprocess.call('ls ' + folder)"),
    (commands_are_lists, "omniq.cli", "import subprocess\nsubprocess.call(' '.join(words))"),
    (functions_fit_a_screen, "omniq.app", LONG),
    (functions_fit_a_screen, "omniq.app", "class App:\n    async " + LONG.replace("\n", "\n    ")),
]

GOOD = [
    (layers, "omniq.worker",          "from omniq.executors import run\nfrom omniq.logic import retry"),
    (layers, "omniq.storage.sqlite",  "from omniq.serializer import Serializer\nfrom . import base"),
    (layers, "omniq.storage",         "from .base import BaseStorage"),
    (layers, "omniq",                 "from omniq.app import OmniQ\nfrom .errors import NotFound"),
    (layers, "omniq.cli.worker",      "from omniq import OmniQ, __version__"),
    (layers, "omniq.task",            "if TYPE_CHECKING:\n    import omniq.app"),
    (stores_stand_alone, "omniq.storage",               "from omniq.storage.memory import MemoryStorage"),
    (stores_stand_alone, "omniq.storage.sqlite_writer", "from omniq.storage.sqlite import SQLiteStorage"),
    (logic_is_pure, "omniq.logic.retry",     "import math\nfrom collections.abc import Mapping"),
    (logic_is_pure, "omniq.logic.lifecycle", "from omniq.task import Task\nfrom .retry import RetryPolicy"),
    (logic_is_pure, "omniq.worker",          "import random\nprint('not logic')"),
    (data_is_never_code, "omniq.serializer.pickled", "import cloudpickle"),
    (data_is_never_code, "omniq.pool.pickles", "import pickle"),
    (data_is_never_code, "omniq.worker",     "connection.exec('select 1')\nmodel.eval()"),
    (commands_are_lists, "omniq.cli",        "import subprocess as sp\nsp.run(['ls', folder], shell=False)"),
    (functions_fit_a_screen, "omniq.app",    SCREEN),
]
# fmt: on

PACKAGES = {"omniq", "omniq.logic", "omniq.storage", "omniq.cli"}


def judged(rule: Rule, name: str, source: str) -> list[str]:
    return list(rule(Module(name, name in PACKAGES, source)))


@pytest.mark.parametrize(("rule", "name", "source"), BAD)
def test_a_rule_complains_about_what_breaks_it(rule: Rule, name: str, source: str) -> None:
    assert judged(rule, name, source)


@pytest.mark.parametrize(("rule", "name", "source"), GOOD)
def test_a_rule_leaves_the_rest_alone(rule: Rule, name: str, source: str) -> None:
    assert judged(rule, name, source) == []


def test_a_complaint_names_the_line_and_the_way_out() -> None:
    [complaint] = judged(logic_is_pure, "omniq.logic.retry", "import math\nprint(math.pi)")
    assert complaint == "2: logic calls print; let the fact come in as an argument"
