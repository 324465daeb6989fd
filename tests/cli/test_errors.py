"""What goes wrong is one clear line on stderr and an exit code; a traceback comes only with --debug."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from omniq.cli import main
from omniq.cli.application import load
from omniq.cli.errors import CommandFailed
from omniq.cli.group import OmniqGroup
from tests.cli.site import Site

MODULES = {
    "bad_line": "import os\n1 / 0\n",
    "bad_import": "import nothing_of_that_name\n",
    "bad_syntax": "def x(:\n",
    "two_of_a_name": (
        "from omniq import OmniQ\nq = OmniQ('sqlite:///jobs.db')\n"
        "@q.task(name='x')\ndef one(): ...\n\n@q.task(name='x')\ndef two(): ...\n"
    ),
    "never": (
        "from omniq import OmniQ\nq = OmniQ('sqlite:///jobs.db')\n"
        "@q.task\ndef report(): ...\nq.schedule('never', report.call(), cron='0 0 31 4,6,9,11 *')\n"
    ),
    "leaves": "raise SystemExit(0)\n",
    "noisy": "raise ValueError('one\\ntwo \\x1b[31m \\u2028 three')\n",
    "empty": "",
    "elsewhere": "from omniq import OmniQ\napp = OmniQ('sqlite:///jobs.db')\nq = 7\n",
    "queue": "from omniq import OmniQ\nq = OmniQ('sqlite:///jobs.db')\n",
}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["worker"], 2, ["MODULE:APP", "See `omniq worker --help`"]),
        (["worker", "jobs"], 2, ["'jobs' is no module and name", "such as jobs:q"]),
        (["worker", "jobs.py"], 2, ["such as jobs:q"]),
        (["worker", "jobs.py:app"], 2, ["such as jobs:app"]),
        (["worker", "./my/jobs.py:app"], 2, ["such as my.jobs:app"]),
        (["enqueue", "jobs", "add"], 2, ["such as jobs:q"]),
        (["enqueue", "jobs:q", "add", "1", "2"], 2, ["(1 2)", "See `omniq enqueue --help`"]),
        (["worker", "jobs:q", "--nonsense"], 2, ["--nonsense", "See `omniq worker --help`"]),
        (["worker", "jobs:q", "-c", "3"], 2, ["'-c'", "See `omniq worker --help`"]),
        (["worker", "jobs:q", "--concurrency", "0"], 2, ["--concurrency"]),
        (["worker", "jobs:q", "--concurrency", "ten"], 2, ["'ten' is not a valid whole number"]),
        (["worker", "jobs:q", "--lease", "0"], 2, ["--lease"]),
        (["worker", "jobs:q", "--grace", "nan"], 2, ["--grace"]),
        (["worker", "jobs:q", "--lease", "inf"], 2, ["--lease"]),
        (["worker", "jobs:q", "--poll-interval", "-1"], 2, ["--poll-interval"]),
        (["worker", "jobs:q", "--queues", "a;b"], 2, ["queue name"]),
        (["tasks", "--limit", "0"], 2, ["--limit"]),
        (["tasks", "--url", "sqlite:///none.db"], 1, ["there is no store", "none.db", "--url"]),
        (["tasks"], 1, ["there is no store", "OMNIQ_URL"]),
        (["doctor", "--url", "memory://"], 1, ["inside its application"]),
        (["show", "x", "--url", "nonsense"], 2, ["no storage URL"]),
        (["tasks", "--url", "mongodb://h/db"], 2, ["no storage speaks 'mongodb'", "redis://host"]),
        (["purge", "--url", ""], 2, ["'' is no storage URL"]),
        (["move", "", "sqlite:///new.db"], 2, ["'' is no storage URL"]),
        (["queues", "--url", "redis://[::1"], 2, ["no URL", "Invalid IPv6"]),
        (["queues", "--url", "redis://h/zero"], 2, ["no Redis address"]),
        (["queues", "--url", "postgresql://h:port/db"], 2, ["a port is a number"]),
        (["queues", "--url", "sqlite://jobs.db"], 2, ["names no file"]),
        (["health", "--json", "--url", "mongodb://h"], 2, ["no storage speaks"]),
        (["move", "sqlite:///jobs.db", "mongodb://h"], 1, ["there is no store"]),
        (["move", "mongodb://h", "sqlite:///jobs.db"], 2, ["no storage speaks"]),
        (["tasks", "--url", "sqlite:////"], 1, ["is a folder"]),
        (["tasks", "--queue", "two words"], 2, ["--queue", "queue name 'two words'"]),
        (["purge", "--queue", "two words"], 2, ["--queue", "queue name 'two words'"]),
        (["pause", "mail", "two words"], 2, ["queue name 'two words'"]),
        (["resume", ""], 2, ["queue name ''"]),
        (["schedules", "add", "a", "b.c", "--every", "5", "--queue", "x y"], 2, ["--queue", "queue name"]),
        (["schedules", "add", "a", "b.c", "--every", "nan"], 2, ["--every"]),
        (["schedules", "add", "a", "b.c", "--every", "5", "--url", "sqlite:////"], 1, ["is a folder"]),
        (["schedules", "add", "a", "b.c"], 2, ["either --every 60 or --cron"]),
        (["health", "--lease", "soon"], 2, ["'soon' is not a valid number of seconds"]),
        (["migrate", "--sql", "--json"], 2, ["--sql prints SQL"]),
        (["retry"], 2, ["ID..."]),
        (["demo", "--seconds", "0"], 2, ["--seconds"]),
        (["nonsense"], 2, ["nonsense", "See `omniq --help`"]),
        (["schedules", "nonsense"], 2, ["nonsense", "See `omniq schedules --help`"]),
        (["purge", "--older-than", ""], 2, ["'' is no age", "7d"]),
        (["worker", "x; touch canary"], 2, ["no module and name", "myapp.tasks:q"]),
        (["worker", "x:$(touch canary)"], 2, ["no module and name"]),
        (["worker", "os:system('touch canary')"], 2, ["no module and name"]),
        (["worker", "`touch canary`:q"], 2, ["no module and name"]),
    ],
)
def test_what_is_refused_before_anything_starts(
    site: Site,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: list[str],
) -> None:
    """S16 among them: a hostile module path is only a bad name, and the canary never sings."""
    monkeypatch.chdir(site.folder)
    with pytest.raises(SystemExit) as ended:
        main(arguments, prog_name="omniq")
    assert ended.value.code == code
    check_complaint(capsys.readouterr(), words)
    assert not list(site.folder.glob("*canary*"))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing:q", ["No module named 'missing'", "looked in {folder}", "the folder that has missing"]),
        ("missing.deeper:q", ["No module named 'missing'", "looked in"]),
        ("bad_line:q", ["ZeroDivisionError", "bad_line.py, line 2"]),
        ("bad_import:q", ["nothing_of_that_name", "bad_import.py, line 1"]),
        ("bad_syntax:q", ["SyntaxError", "bad_syntax.py", "line 1"]),
        ("two_of_a_name:q", ["two tasks are called 'x'", "two_of_a_name.py, line 6"]),
        ("never:q", ["never fires", "never.py, line 5"]),
        ("leaves:q", ["SystemExit"]),
        ("noisy:q", ["ValueError"]),
        ("empty:q", ["empty.py has no q"]),
        ("elsewhere:q", ["elsewhere:q is 7", "elsewhere:app"]),
        ("elsewhere:q.deeper", ["has no q.deeper"]),
        ("queue:q", ["queue.py has no q", "{folder}/queue.py", "another name"]),
    ],
)
def test_why_an_application_cannot_be_loaded(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str, words: list[str]
) -> None:
    for name, source in MODULES.items():
        (site.folder / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(site.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in MODULES.keys() - {"queue"}:  # what the test before this one has imported
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(CommandFailed) as failed:
        load(path)
    assert failed.value.exit_code == 2
    for word in words:
        assert word.format(folder=site.folder) in str(failed.value)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["missing:q"], 2, ["No module named 'missing'", "looked in"]),
        (["noisy:q"], 2, ["ValueError"]),
        (["empty:q", "--processes", "3"], 2, ["empty.py has no q"]),
        (["jobs:q", "--url", "mongodb://h/db"], 2, ["no storage speaks 'mongodb'"]),
        (["jobs:q", "--url", "sqlite:///none/jobs.db"], 1, ["there is no folder"]),
        (["jobs:q", "--url", "sqlite:///jobs.py"], 1, ["not a SQLite database"]),
    ],
)
def test_an_application_or_store_that_cannot_be_used(
    site: Site, arguments: list[str], code: int, words: list[str]
) -> None:
    """One line, no restart loop."""
    for name, source in MODULES.items():
        (site.folder / f"{name}.py").write_text(source, encoding="utf-8")
    ended = site.run("worker", *arguments)
    assert ended.returncode == code, ended.stderr
    check_complaint((ended.stdout, ended.stderr), words)


BARE = """
from omniq import OmniQ
q = OmniQ()
@q.task
def nothing() -> None: ...
"""


@pytest.mark.parametrize("order", [["tasks"], ["worker", "bare:q"], ["enqueue", "bare:q", "nothing"]])
def test_an_address_of_the_environment_that_means_nothing(site: Site, order: list[str]) -> None:
    """Wherever it was written, it was written wrongly."""
    (site.folder / "bare.py").write_text(BARE, encoding="utf-8")
    ended = site.run(*order, OMNIQ_URL="mongodb://h/db")
    assert ended.returncode == 2
    check_complaint((ended.stdout, ended.stderr), ["no storage speaks 'mongodb'"])


def test_a_driver_that_is_not_installed_is_no_fault_of_the_command(site: Site) -> None:
    """The address is right; the machine lacks something. A stand-in hides the driver."""
    (site.folder / "hidden").mkdir()
    (site.folder / "hidden" / "asyncpg.py").write_text(
        "raise ModuleNotFoundError('No module named asyncpg', name='asyncpg')\n"
    )
    ended = site.run("tasks", "--url", "postgresql://h/db", PYTHONPATH=str(site.folder / "hidden"))
    assert ended.returncode == 1
    check_complaint((ended.stdout, ended.stderr), ["asyncpg", "omniq-tasks[postgres]"])


def check_complaint(outputs: tuple[str, str], words: list[str]) -> None:
    out, err = outputs
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("omniq: ")
    assert err.strip().isprintable()
    for word in words:
        assert word in err


def test_nothing_is_made_where_nothing_was(site: Site) -> None:
    site.run("doctor", "--url", "sqlite:///none.db")
    assert not list(site.folder.glob("none*"))
    assert not (site.folder / ".omniq").exists()


@pytest.mark.parametrize("order", [["--debug", "worker", "bad:q"], ["worker", "bad:q", "--debug"]])
def test_debug_shows_where_it_went_wrong(site: Site, order: list[str]) -> None:
    (site.folder / "bad.py").write_text("1 / 0\n", encoding="utf-8")
    ended = site.run(*order)
    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert 'bad.py", line 1' in ended.stderr
    assert "cannot import bad: ZeroDivisionError" in ended.stderr.splitlines()[-1]


def test_an_unexpected_error_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def broken() -> None:
        raise KeyError("a bug")

    group = OmniqGroup("omniq", commands={"broken": broken})
    with pytest.raises(SystemExit) as ended:
        group(["broken"])
    assert ended.value.code == 1
    check_complaint(capsys.readouterr(), ["unexpected KeyError", "--debug"])
    with pytest.raises(SystemExit):
        group(["--debug", "broken"])
    assert "Traceback" in capsys.readouterr().err


def test_help_is_quick_because_it_loads_nothing_else(tmp_path: Path) -> None:
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
    assert "..." not in ended.stdout.partition("Commands:")[2], "what a command is for is cut off"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(site: Site) -> None:
    closed = site.folder / "closed"
    closed.mkdir(mode=0o500)
    ended = site.run("worker", "jobs:q", "--url", f"sqlite:///{closed}/jobs.db")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
