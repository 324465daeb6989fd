"""A dashboard as people start it, and the system's own browser in front of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def apart(work: Callable[[], T]) -> T:
    """Do it in a thread of its own: the browser's driver has an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def served(database: Path, *options: str) -> AbstractContextManager[str]:
    return served_url(f"sqlite:///{database}", *options)


@contextmanager
def served_url(url: str, *options: str) -> Iterator[str]:
    """The address of `omniq dashboard` on a port that the kernel chose."""
    command = [sys.executable, "-m", "omniq", "dashboard", "--port", "0", "--url", url]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("dashboard on http://"), line
        yield line.split()[2]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def chromium_path() -> str:
    """The system's own. Without one the test is skipped, or fails where OMNIQ_REQUIRE names a browser."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        missing = "no Chromium on this machine (apt-get install chromium)"
        if "browser" in os.environ.get("OMNIQ_REQUIRE", "").split(","):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For the tests of one file, each in a context of its own.

    Not for more: its driver keeps an event loop running in this thread, which nobody else may find.
    """
    path = chromium_path()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Tests may run as root, where Chromium's sandbox does not start.
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page whose errors are the test's."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("dialog", lambda dialog: (wrong.append("a script ran"), dialog.dismiss()))
    page.wrong = wrong
    yield page
    context.close()
