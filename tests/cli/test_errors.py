"""What goes wrong is one clear line on stderr and an exit code; a traceback comes only with --debug."""

import os
from pathlib import Path

import pytest

from tests.cli.site import Site

MODULES = {
    "bad_line": "import os\n1 / 0\n",
    "bad_import": "import nothing_of_that_name\n",
    "bad_syntax": "def x(:\n",
    "leaves": "raise SystemExit(0)\n",
    "noisy": "raise ValueError('one\\ntwo \\x1b[31m \\u2028 three')\n",
    "empty": "",
    "elsewhere": "from omniq import OmniQ\napp = OmniQ('sqlite:///jobs.db')\nq = 7\n",
    "queue": "from omniq import OmniQ\nq = OmniQ('sqlite:///jobs.db')\n",
}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["worker"], 2, ["MODULE:APP"]),
        (["worker", "jobs"], 2, ["jobs", "myapp.tasks:q"]),
        (["worker", "jobs.py:q", "--nonsense"], 2, ["--nonsense"]),
        (["worker", "missing:q"], 2, ["No module named 'missing'", "looked in", "{folder}"]),
        (["worker", "missing.deeper:q"], 2, ["No module named 'missing'", "looked in"]),
        (["worker", "bad_line:q"], 2, ["ZeroDivisionError", "bad_line.py, line 2"]),
        (["worker", "bad_import:q"], 2, ["nothing_of_that_name", "bad_import.py, line 1"]),
        (["worker", "bad_syntax:q"], 2, ["SyntaxError", "bad_syntax.py", "line 1"]),
        (["worker", "leaves:q"], 2, ["SystemExit"]),
        (["worker", "noisy:q"], 2, ["ValueError"]),
        (["worker", "empty:q", "--processes", "3"], 2, ["empty.py has no q"]),
        (["worker", "elsewhere:q"], 2, ["elsewhere:q is 7", "elsewhere:app"]),
        (["worker", "queue:q"], 2, ["queue.py has no q", "{folder}/queue.py", "another name"]),
        (["worker", "jobs:q", "--concurrency", "0"], 2, ["--concurrency"]),
        (["worker", "jobs:q", "--lease", "0"], 2, ["--lease"]),
        (["worker", "jobs:q", "--poll-interval", "-1"], 2, ["--poll-interval"]),
        (["worker", "jobs:q", "--queues", "a;b"], 2, ["queue name"]),
        (["worker", "jobs:q", "--url", "sqlite:///none/jobs.db"], 1, ["there is no folder"]),
        (["worker", "jobs:q", "--url", "sqlite:///jobs.py"], 1, ["not a SQLite database"]),
        (["tasks", "--url", "sqlite:///none.db"], 1, ["there is no store", "none.db", "--url"]),
        (["tasks"], 1, ["there is no store", "OMNIQ_URL"]),
        (["tasks", "--url", "memory://"], 1, ["inside its application"]),
        (["tasks", "--url", "nonsense"], 1, ["no storage URL"]),
        (["tasks", "--limit", "0"], 2, ["--limit"]),
        (["show", "--url", "sqlite:///jobs.py", "x"], 1, ["not a SQLite database"]),
        (["retry"], 2, ["ID..."]),
        (["demo", "--seconds", "0"], 2, ["--seconds"]),
        (["nonsense"], 2, ["nonsense"]),
    ],
)  # fmt: skip
def test_one_line_and_an_exit_code(site: Site, arguments: list[str], code: int, words: list[str]) -> None:
    for name, source in MODULES.items():
        (site.folder / f"{name}.py").write_text(source, encoding="utf-8")
    ended = site.run(*arguments)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("omniq: ")
    assert ended.stderr.strip().isprintable()
    for word in words:
        assert word.format(folder=site.folder) in ended.stderr


def test_nothing_is_made_where_nothing_was(site: Site) -> None:
    site.run("tasks", "--url", "sqlite:///none.db")
    site.run("doctor", "--url", "sqlite:///none.db")
    assert not list(site.folder.glob("none*"))
    assert not (site.folder / ".omniq").exists()


@pytest.mark.parametrize(
    "path", ["x; touch canary", "x:$(touch canary)", "os:system('touch canary')", "`id`:q"]
)
def test_s16_a_hostile_module_path_is_only_a_bad_name(site: Site, path: str) -> None:
    """S16: no shell, no eval; the canary never sings."""
    ended = site.run("worker", path)
    assert ended.returncode == 2
    assert not (site.folder / "canary").exists()
    assert "no module and name" in ended.stderr


@pytest.mark.parametrize("order", [["--debug", "worker", "bad:q"], ["worker", "bad:q", "--debug"]])
def test_debug_shows_where_it_went_wrong(site: Site, order: list[str]) -> None:
    (site.folder / "bad.py").write_text("1 / 0\n", encoding="utf-8")
    ended = site.run(*order)
    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert 'bad.py", line 1' in ended.stderr
    assert "cannot import bad: ZeroDivisionError" in ended.stderr.splitlines()[-1]


def test_an_unexpected_error_is_one_line_too(site: Site) -> None:
    """A store of another make than this version knows: no class of ours, no traceback for the user."""
    folder = site.folder / "jobs.db"
    folder.mkdir()
    ended = site.run("tasks", "--url", "sqlite:///jobs.db")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert "is a folder" in ended.stderr


def test_help_is_quick_because_it_loads_nothing_else(site: Site, tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from omniq.cli import main\n"
        "try:\n    main(['--help'], prog_name='omniq')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'asyncio', 'rich', 'loguru', 'sqlite3', 'uvloop', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    for command in ("worker", "tasks", "show", "retry", "cancel", "doctor", "demo"):
        assert command in ended.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(site: Site) -> None:
    closed = site.folder / "closed"
    closed.mkdir(mode=0o500)
    ended = site.run("worker", "jobs:q", "--url", f"sqlite:///{closed}/jobs.db")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
