"""What the server does with what it was told, and whether that is enough: decided from its own words.

`decide` is a function of facts, so that a table can test it; `ask` gets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

from hiredis import ReplyError
from msgspec import Struct

from omniq.errors import Unsupported
from omniq.storage.redis.wire import Wire

Durability = Literal["fsync", "relaxed"]
OLDEST: Final = (7, 0)
WAITAOF_SINCE: Final = (7, 2)


class Facts(Struct, frozen=True):
    version: tuple[int, int]
    policy: str  # maxmemory-policy
    aof: bool
    appendfsync: str | None  # None: the server does not say
    life: str = ""  # another one after each start


class Verdict(Struct, frozen=True):
    waits: bool  # after each write, for WAITAOF
    warning: str | None = None


def decide(facts: Facts, durability: Durability, where: str) -> Verdict:
    """Whether this server may keep tasks, and what has to be done for it. Raises `Unsupported`."""
    if facts.version < OLDEST:
        found = ".".join(map(str, facts.version))
        raise Unsupported(f"{where} is version {found}; 7.0 or newer is needed (Valkey, or Redis)")
    if facts.policy != "noeviction":
        raise Unsupported(
            f"{where} removes keys when its memory is full (maxmemory-policy {facts.policy}), and "
            "tasks with them; set maxmemory-policy noeviction"
        )
    if durability == "relaxed":
        return Verdict(False, _what_may_be_lost(facts, where))
    if not facts.aof:
        raise Unsupported(
            f"{where} keeps tasks in memory and writes no append-only file; set appendonly yes and "
            "appendfsync always, or write durability='relaxed' if tasks may be lost"
        )
    if facts.appendfsync == "always":
        return Verdict(False)
    if facts.appendfsync == "no" or facts.version < WAITAOF_SINCE:
        raise Unsupported(
            f"{where} has appendfsync {facts.appendfsync or 'unknown'}, and nobody can wait for its disk; "
            "set appendfsync always, or write durability='relaxed' if the last moments may be lost"
        )
    return Verdict(
        True,
        f"{where} syncs its file once a second, so each write waits for up to a second; set appendfsync "
        "always, or write durability='relaxed' if the last second may be lost",
    )


def _what_may_be_lost(facts: Facts, where: str) -> str | None:
    if not facts.aof:
        return (
            f"{where} writes no append-only file: what it holds since its last snapshot is lost when it ends"
        )
    if facts.appendfsync != "always":
        return f"{where} syncs its file now and then: the last second or more is lost when its machine ends"
    return None


# INFO, which everybody may ask, and CONFIG, which managed servers do not allow.
QUESTIONS: Final = (
    ("INFO", "server"),
    ("INFO", "persistence"),
    ("INFO", "memory"),
    ("CONFIG", "GET", "appendfsync"),
)


async def ask(wire: Wire) -> Facts:
    return facts_of(await asyncio.gather(*(wire.call(*question) for question in QUESTIONS)))


def facts_of(replies: Sequence[Any]) -> Facts:
    """From the answers to the questions."""
    *told, config = replies
    for reply in told:
        if isinstance(reply, ReplyError):
            raise reply
    info = {name: value for text in told for name, value in _lines(text).items()}
    return Facts(
        _version(info),
        info.get("maxmemory_policy", "unknown"),
        info.get("aof_enabled") == "1",
        _fsync(config),
        info.get("run_id", ""),
    )


async def life_of(wire: Wire) -> str:
    """Which start of which server this is."""
    told = await wire.call("INFO", "server")
    if isinstance(told, ReplyError):
        raise told
    return _lines(told).get("run_id", "")


def _lines(text: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line)


def _version(info: dict[str, str]) -> tuple[int, int]:
    # Valkey says in redis_version which Redis it began from, 7.2.4, whatever its own number is.
    major, minor, *_ = (info.get("redis_version", "0") + ".0").split(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _fsync(config: Any) -> str | None:
    return None if isinstance(config, ReplyError) or not config else str(config[1].decode())
