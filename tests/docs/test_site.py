"""The site is built from the pages, and every link in what was built leads somewhere."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {name for name in (found.get("id"), found.get("name")) if name}
        for name in ("href", "src"):
            if target := found.get(name):
                self.targets.append(target)


def dead(site: Path) -> list[str]:
    pages = {
        path: Links(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }
    found: list[str] = []
    for path, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            known = pages.get(goal)
            fragment = unquote(parts.fragment)
            if not goal.exists() or (fragment and known and fragment not in known.anchors | {"__top"}):
                found.append(f"{path.relative_to(site)}: {target}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.bound(120)
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    assert dead(site) == []
    assert len(list(site.rglob("*.html"))) > 20
    assert (site / "llms.txt").is_file()


@pytest.mark.parametrize(
    ("contents", "shape"), [("docs/index.md", "({})"), ("docs/llms.txt", "({})"), ("mkdocs.yml", ": {}\n")]
)
def test_no_page_is_missing_in_a_table_of_contents(contents: str, shape: str) -> None:
    text = (ROOT / contents).read_text(encoding="utf-8")
    pages = {one.name for one in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert sorted(one for one in pages if shape.format(one) not in text) == []


@pytest.mark.bound(120)
def test_no_page_of_the_site_shows_its_own_markup(site: Path) -> None:
    """A block, a heading or a table that the site does not take for one stands there as it was typed."""
    raw = [
        f"{path.name}: {line}"
        for path in site.rglob("*.html")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("```", "<p>```", "## ", "|---", "<p>- "))
    ]
    assert raw == []


@pytest.mark.bound(120)
def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    text = (site / "quickstart.html").read_text(encoding="utf-8")
    loaded = [word for word in ("fonts.googleapis.com", "cdn.", "unpkg.com") if word in text]
    assert loaded == []


def test_a_dead_link_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="x">a</h1><a href="b.html#y"></a><a href="gone.html"></a>')
    (tmp_path / "b.html").write_text('<a href="a.html#x"></a>')
    assert dead(tmp_path) == ["a.html: b.html#y", "a.html: gone.html"]
