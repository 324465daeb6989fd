"""Every relative link of every page leads somewhere, and pages find each other."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Page, anchor, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    assert [target for target in page.links if not _leads_somewhere(page, target)] == []


def _leads_somewhere(page: Page, target: str) -> bool:
    if target.startswith(("https://", "http://", "mailto:")):
        return True
    path, _, fragment = target.partition("#")
    goal = page.path if not path else (page.path.parent / path).resolve()
    if not goal.exists() or not goal.is_relative_to(ROOT):
        return False
    return not fragment or (goal.suffix == ".md" and fragment in Page(goal).anchors)


def test_a_dead_link_is_found() -> None:
    readme = page("README.md")
    assert _leads_somewhere(readme, "docs/index.md")
    assert not _leads_somewhere(readme, "docs/nowhere.md")
    assert not _leads_somewhere(readme, "docs/index.md#nowhere")
    assert not _leads_somewhere(readme, "../elsewhere.md")


@pytest.mark.parametrize(
    ("heading", "link"),
    [
        ("The command line", "the-command-line"),
        ("What is `it`, now?", "what-is-it-now"),
        ("0001: A b", "0001-a-b"),
    ],
)
def test_anchors_are_made_as_github_makes_them(heading: str, link: str) -> None:
    assert anchor(heading) == link


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        path = ahead.pop()
        if path.is_dir():  # a link to a folder shows what is in it
            ahead += path.glob("*.md")
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        here = Page(path)
        targets = [target.partition("#")[0] for target in here.links if "://" not in target]
        ahead += [(path.parent / target).resolve() for target in targets if target]
    pages = {page.path for page in PAGES if "spikes" not in page.path.parts}
    assert sorted(path.relative_to(ROOT).as_posix() for path in pages - reached) == []
