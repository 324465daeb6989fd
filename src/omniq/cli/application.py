"""From MODULE:APP to the application, and from an application to an address that others can open."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from importlib import import_module
from itertools import dropwhile, takewhile
from types import ModuleType
from typing import Final

from omniq.app import OmniQ
from omniq.cli.errors import EXIT_USAGE, CommandFailed
from omniq.cli.wire import APP_PATH
from omniq.task import shown

# This package, and what imports modules.
_NOT_THEIRS: Final = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(importlib.__file__) + os.sep,
    "<frozen importlib",
)


def load(path: str) -> OmniQ:
    """Import the application; modules of the working directory are found, as people expect."""
    match = APP_PATH.fullmatch(path)
    assert match is not None, "the command has checked it"
    _look_here_too()
    module = _imported(match[1])
    found: object = module
    for name in match[2].split("."):
        found = getattr(found, name, None)
    if not isinstance(found, OmniQ):
        raise CommandFailed(_no_application(path, match[2], module, found), EXIT_USAGE)
    return found


def _look_here_too() -> None:
    """Before installed packages, but after the standard library: a queue.py must not stand in for its own."""
    if os.getcwd() not in sys.path:
        installed = (
            n for n, entry in enumerate(sys.path) if entry.endswith(("site-packages", "dist-packages"))
        )
        sys.path.insert(next(installed, len(sys.path)), os.getcwd())


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # also a SystemExit at the top of a script
        raise CommandFailed(
            f"cannot import {name}: {_last_line(exc)}; {_where(name, exc)}", EXIT_USAGE
        ) from exc


def _last_line(exc: BaseException) -> str:
    return traceback.format_exception_only(exc)[-1].strip()


def _where(name: str, exc: BaseException) -> str:
    """The line that failed, or, when the module itself is missing, where it was looked for."""
    if isinstance(exc, ModuleNotFoundError) and exc.name and f"{name}.".startswith(f"{exc.name}."):
        looked = f"looked in {os.getcwd()}, then where {sys.executable} looks"
        return looked if "." in exc.name else f"{looked}; start this in the folder that has {exc.name}"
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"in {exc.filename}, line {exc.lineno}"
    frame = _last_of_theirs(traceback.extract_tb(exc.__traceback__))
    return f"in {frame.filename}, line {frame.lineno}"


def _last_of_theirs(frames: list[traceback.FrameSummary]) -> traceback.FrameSummary:
    """Where the application failed; where a function of ours refused something, who called it."""
    theirs = list(takewhile(_is_theirs, dropwhile(lambda one: not _is_theirs(one), frames)))
    return theirs[-1] if theirs else frames[-1]


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(_NOT_THEIRS)


def _no_application(path: str, attribute: str, module: ModuleType, found: object) -> str:
    there = sorted(name for name, value in vars(module).items() if isinstance(value, OmniQ))
    hint = f"there is {module.__name__}:{there[0]}" if there else "write q = OmniQ() there"
    file = getattr(module, "__file__", None) or module.__name__
    hidden = os.path.join(os.getcwd(), f"{module.__name__}.py")
    if file != hidden and os.path.exists(hidden):
        hint = f"it hides {hidden}, which needs another name"
    if found is None:
        return f"{file} has no {attribute}; {hint}"
    return f"{path} is {shown(found)}, not an OmniQ; {hint}"
