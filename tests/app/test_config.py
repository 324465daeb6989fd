"""Where tasks are kept: arguments over OMNIQ_URL over pyproject.toml over a file beside that."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from omniq import InvalidOption, OmniQ
from omniq.config import project_root
from omniq.storage import SQLiteStorage
from tests.app.tasks import Made
from tests.worker.scene import Logs, omniq_threads, until_blocking


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a folder deep inside, which is where we are."""
    root = tmp_path / "project"
    deep = root / "src" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.delenv("OMNIQ_URL", raising=False)
    monkeypatch.chdir(deep)
    return root


def test_beside_the_nearest_pyproject(project: Path, logs: Logs) -> None:
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    app = Made(None)
    assert not (project / ".omniq").exists(), "made before it was needed"
    app.add.enqueue(1)
    app.q.close()
    assert (project / ".omniq" / "omniq.db").is_file()
    told = [line for line in logs.lines("INFO") if str(project / ".omniq" / "omniq.db") in line]
    assert len(told) == 1, "told at first use, once"


def test_beside_the_nearest_git(project: Path) -> None:
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    app = Made(None)
    app.add.enqueue(1)
    app.q.close()
    assert (project / ".omniq" / "omniq.db").is_file()


def test_in_the_working_directory_otherwise(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path_factory.mktemp("alone")
    monkeypatch.delenv("OMNIQ_URL", raising=False)
    monkeypatch.chdir(alone)
    if project_root() != alone:
        pytest.skip("the temporary folder itself lies inside a project")
    app = Made(None)
    app.add.enqueue(1)
    app.q.close()
    assert (alone / ".omniq" / "omniq.db").is_file()


@pytest.mark.parametrize("name", ["100%25 done", "what?", "a#b", "käse", "a;b&c=d"])
def test_a_project_in_a_folder_with_a_strange_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The path is a path, not a URL."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OMNIQ_URL", raising=False)
    app = Made(None)
    app.add.enqueue(1)
    app.q.close()
    assert (folder / ".omniq" / "omniq.db").is_file()


def test_who_wins(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments over the variable over pyproject.toml over the default."""
    (project / "pyproject.toml").write_text("[tool.omniq]\nurl = 'sqlite:///from_pyproject.db'\n")
    assert "from_pyproject" in OmniQ().url
    monkeypatch.setenv("OMNIQ_URL", "sqlite:///from_variable.db")
    assert "from_variable" in OmniQ().url
    assert "from_argument" in OmniQ("sqlite:///from_argument.db").url
    app = Made(None)
    app.add.enqueue(1)
    app.q.close()
    assert Path("from_variable.db").is_file()
    monkeypatch.setenv("OMNIQ_URL", "")
    assert "from_pyproject" in OmniQ().url
    assert not (project / ".omniq").exists()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///data/jobs.db", "{project}/data/jobs.db"),
        ("SQLite:///jobs.db", "{project}/jobs.db"),
        ("sqlite:////var/jobs.db", "/var/jobs.db"),
        ("sqlite:///~/jobs.db", "{home}/jobs.db"),
    ],
)
def test_a_file_in_a_pyproject_counts_from_there(project: Path, url: str, path: str) -> None:
    """Wherever in the project one stands: one project, one file."""
    (project / "pyproject.toml").write_text(f"[tool.omniq]\nurl = '{url}'\n")
    storage = OmniQ().storage()
    assert isinstance(storage, SQLiteStorage)
    assert str(storage.path) == path.format(project=project, home=Path.home())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.omniq]\nurl = 7\n", "url"),
        ("[tool.omniq]\nulr = 'memory://'\n", "ulr"),
        ("[tool]\nomniq = 'memory://'\n", "table"),
        ("[tool.omniq\n", "pyproject.toml"),
        ("[tool.omniq]\nurl = 'nonsense'\n", "sqlite:///"),
    ],
)
def test_a_bad_pyproject(project: Path, text: str, says: str) -> None:
    (project / "pyproject.toml").write_text(text)
    before = omniq_threads()
    app = Made(None)
    for _ in range(2):
        with pytest.raises(InvalidOption, match=says):
            app.add.enqueue(1)
    app.q.close()
    until_blocking(lambda: omniq_threads() <= before)


@pytest.mark.parametrize("where", [7, Path("jobs.db"), object()])
def test_something_that_is_no_url(where: object) -> None:
    with pytest.raises(InvalidOption, match="URL or a storage"):
        OmniQ(where)  # type: ignore[arg-type]


def test_an_empty_address_is_not_the_usual_store(project: Path) -> None:
    """Such as that of a variable which is not set: whoever wrote it meant another store."""
    with pytest.raises(InvalidOption, match="'' is no storage URL"):
        OmniQ("").storage()
    assert not (project / ".omniq").exists()


@pytest.mark.parametrize(
    "options", [{"result_ttl": "day"}, {"failed_ttl": None}, {"max_payload": 0}, {"max_payload": "1 MiB"}]
)
def test_bad_options(options: dict[str, object]) -> None:
    [name] = options
    with pytest.raises(InvalidOption, match=name):
        OmniQ("memory://", **options)  # type: ignore[arg-type]


def test_a_password_is_not_shown() -> None:
    """S12: neither by `url` nor by `repr`."""
    q = OmniQ("postgresql://ann:hunter2@db.example.org/app")
    assert "hunter2" not in q.url
    assert "hunter2" not in repr(q)
    assert "ann" in q.url


def test_how_long_results_are_kept(tmp_path: Path) -> None:
    """`result_ttl` of the application reaches its stores and its workers' stores."""
    q = OmniQ(f"sqlite:////{tmp_path}/jobs.db".replace("////", "///", 1), result_ttl=5, failed_ttl=7)
    storage = q.storage()
    for one in (storage, storage.clone(), q.async_worker().storage):
        assert (one.result_ttl_s, one.failed_ttl_s) == (5, 7)  # type: ignore[attr-defined]
