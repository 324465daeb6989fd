"""The scripts of this store: one file for each verb, each with what all of them begin with in front.

A script is known by its content, so two versions of a program beside each other each run their own.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from msgspec import Struct

_FOLDER: Final = files("omniq.storage.redis") / "lua"
_CLOCK: Final = "clock"
# What a verb needs in front of it. Each function there is made anew at every call, so what is called for
# single tasks has no more of them than it uses.
_ALL: Final = ("tasks", "waiting", "moves")
_NEEDS: Final = {
    "enqueue": ("tasks", "waiting", "arriving"),
    "enqueue_one": (),
    "exchange": (*_ALL, "quick", "settling"),
    "write_schedule": ("tasks", "waiting", "arriving"),
}


class Script(Struct, frozen=True):
    name: str
    text: str
    sha: str


class Scripts:
    """Every script by its name. `clock` is the text that sets `now`; tests bring another."""

    def __init__(self, clock: str | None = None) -> None:
        self._clock = _text(_CLOCK) if clock is None else clock
        self._known: dict[str, Script] = {}

    def __getitem__(self, name: str) -> Script:
        script = self._known.get(name)
        if script is None:
            script = self._known[name] = self._composed(name)
        return script

    def _composed(self, name: str) -> Script:
        first, _, verb = _text(name).partition("\n")
        assert first.startswith("#!lua"), f"{name}.lua must begin with #!lua and its flags"
        parts = (first, self._clock, *map(_text, _NEEDS.get(name, _ALL)), verb)
        text = "\n".join(parts)
        # Redis knows scripts by this digest; nothing is kept secret with it.
        return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@cache
def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
