"""The wheel as a stranger gets it: built, installed into an empty folder, used from there.

The programs below start with -I -S: no environment, no site-packages, no .pth file, hence no way back to this
checkout. Their path is that folder, then the site-packages with the dependencies.
"""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
SHIPPED = {".py", ".typed", ".sql", ".lua", ".css", ".html", ".js", ".svg"}

# What an application pays for only when it uses it.
NOT_AT_IMPORT = [
    "asyncpg", "psycopg", "redis", "valkey", "glide",
    "click", "rich", "starlette", "uvicorn", "numpy", "prometheus_client", "opentelemetry",
]  # fmt: skip


@dataclass(frozen=True)
class Installed:
    wheel: Path
    folder: Path

    def python(self, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        path = [str(self.folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        start = f"import sys; sys.path[:0] = {path!r}\n{program}"
        return run([sys.executable, "-I", "-S", "-c", start, *args])


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environment)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    dist = tmp_path_factory.mktemp("dist")
    folder = tmp_path_factory.mktemp("installed")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)])
    [wheel] = dist.glob("*.whl")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(folder)]
    run([sys.executable, "-m", "pip", *install, str(wheel)])
    return Installed(wheel, folder)


def test_it_holds_the_package_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = [PurePosixPath(name) for name in wheel.namelist()]
    info = "omniq_tasks-0.1.0.dist-info"
    assert {name.parts[0] for name in names} == {"omniq", info}
    assert {name.suffix for name in names if name.parts[0] == "omniq"} <= SHIPPED
    assert PurePosixPath(f"{info}/licenses/LICENSE") in names


def test_it_holds_every_file_of_the_package(installed: Installed) -> None:
    wanted = {
        path.relative_to(SOURCES).as_posix()
        for path in (SOURCES / "omniq").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        assert wanted <= set(wheel.namelist())
    assert "omniq/py.typed" in wanted


def test_importing_it_loads_no_driver_and_no_face(installed: Installed) -> None:
    ended = installed.python("import json, omniq; print(json.dumps([omniq.__file__, *sys.modules]))")
    file, *modules = json.loads(ended.stdout)
    assert Path(file).is_relative_to(installed.folder)
    assert "omniq" in modules
    assert [name for name in NOT_AT_IMPORT if name in modules] == []


def test_the_command_is_there(installed: Installed) -> None:
    ended = installed.python(
        "from importlib.metadata import distribution\n"
        "[script] = distribution('omniq-tasks').entry_points.select(group='console_scripts')\n"
        "assert callable(script.load()), script\n"
        "print(script.name, script.value, sys.modules['omniq.cli'].__file__)"
    )
    name, value, file = ended.stdout.split()
    assert (name, value) == ("omniq", "omniq.cli:main")
    assert Path(file).is_relative_to(installed.folder)


def test_the_command_starts_as_a_module(installed: Installed) -> None:
    ended = installed.python("import runpy; runpy.run_module('omniq', run_name='__main__')", "--help")
    assert "worker" in ended.stdout


def test_a_task_runs_on_the_embedded_store(installed: Installed, tmp_path: Path) -> None:
    (installed.folder / "doubling.py").write_text(
        "from omniq import OmniQ\n"
        f"q = OmniQ({f'sqlite:///{tmp_path}/jobs.db'!r})\n"
        "@q.task\n"
        "def double(n: int) -> int:\n"
        "    return 2 * n\n",
        encoding="utf-8",
    )
    ended = installed.python(
        "import doubling\n"
        "handle = doubling.double.enqueue(21)\n"
        "with doubling.q.worker():\n"
        "    print(handle.result(timeout=30))"
    )
    assert ended.stdout.split() == ["42"]
