"""Pictures on the pages are made by scripts, and the scripts still make them."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.pages import ROOT
from tests.web.conftest import chromium_path

SVG = "{http://www.w3.org/2000/svg}"


def words(file: Path) -> list[str]:
    return [text.text or "" for text in ElementTree.parse(file).iter(f"{SVG}text")]


def test_the_burst_is_drawn_from_what_a_pool_decided(tmp_path: Path) -> None:
    drawn = tmp_path / "burst.svg"
    script = ROOT / "docs" / "draw_burst.py"
    subprocess.run([sys.executable, script, drawn], check=True, timeout=50, capture_output=True)
    for file in (drawn, ROOT / "docs" / "burst.svg"):
        notes = [text for text in words(file) if "wanted:" in text]
        assert "0 wanted: 0 waiting, 0 busy" in notes[0]
        assert any("50 waiting, 0 busy, at most 4" in note for note in notes)
        assert "not needed for 1 s" in notes[-1]


def test_loading_is_drawn_from_what_a_pool_did(tmp_path: Path) -> None:
    drawn = tmp_path / "loading.svg"
    script = ROOT / "docs" / "draw_loading.py"
    subprocess.run([sys.executable, script, drawn], check=True, timeout=50, capture_output=True)
    for file in (drawn, ROOT / "docs" / "loading.svg"):
        labels = words(file)
        assert "17 ✗" in labels, "the worker that was killed"
        assert labels.count("17") == 2, "made again, and read"
        read = [int(label) for label in labels[labels.index("8 MiB") :] if label.isdigit()]
        assert read[1:] == list(range(24)), "in order, behind the zero of the axis"


@pytest.mark.bound(240)
def test_the_dashboard_is_taken_as_it_is(tmp_path: Path) -> None:
    """A real dashboard in the system's own browser, and every picture that a page shows is one of these."""
    chromium_path()
    script = ROOT / "docs" / "draw_dashboard.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=200, capture_output=True)
    taken = {file.name for file in tmp_path.glob("*.png")}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in taken)
    kept = {file.name for file in (ROOT / "docs" / "dashboard").glob("*.png")}
    assert kept == taken
    shown = (ROOT / "docs" / "dashboard.md").read_text() + (ROOT / "README.md").read_text()
    assert set(re.findall(r"dashboard/([a-z-]+\.png)", shown)) <= taken
