"""Values as people may see them: bounded, and without secrets, hidden here before they leave."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from omniq.storage.url import safe_url

HIDDEN: Final = "•••"
MAX_CHARS: Final = 2_000
MAX_ITEMS: Final = 50
MAX_DEPTH: Final = 4
MAX_TRACE_CHARS: Final = 20_000
EXACT_IN_BROWSERS: Final = 2**53
MAX_BITS: Final = 1_024

# Names of what nobody should read: `password`, `api_key`, `Authorization`, `client-secret` ...
SECRET_NAME: Final = re.compile(
    r"pass(word|wd|phrase)?$|pwd|secret|token|api.?key|auth|cookie|credential|private|session|signature|dsn",
    re.IGNORECASE,
)
# The same inside a text: `password=hunter2`, `token: abc`, `'api_key': 'x y'`, `AWS_SECRET_ACCESS_KEY=x`.
# What stands in quotes is hidden up to the other one. However long a secret is, no end of it may stay.
_QUOTED: Final = r"[bruf]{0,2}(?P<quote>['\"])(?:\\.|(?!(?P=quote))[^\\\r\n]){1,}"
_SECRET_IN_TEXT: Final = re.compile(
    r"(?i)((?:pass(?:word|wd|phrase)?|pwd|secret|token|api.?key|private.?key|authorization|credentials?"
    r"|signature|session.?id)(?:[_-]\w{1,40})?\\?['\"]?\s{0,3}(?:=>|[=:])\s{0,3}\\{0,2})"
    rf"(?:{_QUOTED}|(?:(?:bearer|basic|digest|token)\s{{1,3}})?[^\s'\",;&]{{1,}})"
)
_COOKIES: Final = re.compile(r"(?i)(cookie['\"]?\s{0,3}[=:]\s{0,3}['\"]?)[^\r\n'\"]{1,}")
_BEARER: Final = re.compile(r"(?i)\b(bearer\s{1,3})[\w.~+/=-]{8,}")
# Up to the end of what may be an address; the last `@` in it ends the password.
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@'\"]{0,200}:)([^\s'\"]*)")
# So far behind the cut it is looked for what ends a secret that begins before it.
_BEYOND_CUT: Final = 4_000


def text(said: str, limit: int = MAX_CHARS) -> str:
    """A text without the secrets that can be told by their names."""
    shown = _URL_PASSWORD.sub(_without_password, said[: limit + _BEYOND_CUT])
    shown = _COOKIES.sub(rf"\1{HIDDEN}", _SECRET_IN_TEXT.sub(_without_secret, shown))
    shown = _BEARER.sub(rf"\1{HIDDEN}", shown)
    return shown if len(said) <= limit else shown[:limit] + f"… ({len(said):,} characters)"


def _without_password(found: re.Match[str]) -> str:
    _, at, rest = found[2].rpartition("@")
    return f"{found[1]}{HIDDEN}{at}{rest}" if at else found[0]


def _without_secret(found: re.Match[str]) -> str:
    return f"{found[1]}{found['quote'] or ''}{HIDDEN}"


def address(url: str | None) -> str:
    return "" if url is None else text(safe_url(url))


def value(said: Any, depth: int = 0) -> Any:
    """An argument as JSON can hold it."""
    if said is None or isinstance(said, bool):
        return said
    if isinstance(said, int | float):
        return number(said)
    if isinstance(said, str):
        return text(said)
    if depth >= MAX_DEPTH:
        return f"… {type(said).__name__}"
    if isinstance(said, Mapping):
        return mapping(said, depth)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(said, list | tuple | set | frozenset):
        items = list(cast("Collection[Any]", said))
        shown = [value(one, depth + 1) for one in items[:MAX_ITEMS]]
        return [*shown, f"… {len(items) - MAX_ITEMS} more"] if len(items) > MAX_ITEMS else shown
    return text(repr(said), 200)


def number(said: float) -> float | str:
    """As text where JSON has no such number, or a browser would round it to another one."""
    if isinstance(said, float):
        return said if math.isfinite(said) else str(said)
    if abs(said) <= EXACT_IN_BROWSERS:
        return said
    return str(said) if said.bit_length() <= MAX_BITS else f"… a number of {said.bit_length():,} bits"


def mapping(said: Mapping[Any, Any], depth: int = 0) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, one in list(said.items())[:MAX_ITEMS]:
        name = text(key if isinstance(key, str) else str(value(key, MAX_DEPTH)), 200)
        shown[name] = HIDDEN if SECRET_NAME.search(name) else value(one, depth + 1)
    if len(said) > MAX_ITEMS:
        shown["…"] = f"{len(said) - MAX_ITEMS} more"
    return shown
