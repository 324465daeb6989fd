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
# The same inside a text: `password=hunter2`, `token: abc`, `'api_key': 'x'`.
_SECRET_IN_TEXT: Final = re.compile(
    r"(?i)((?:pass(?:word|wd|phrase)?|pwd|secret|token|api.?key|authorization)['\"]?\s{0,3}[=:]\s{0,3}['\"]?"
    r"(?:bearer\s)?)[^\s'\",;&]{1,200}"
)
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@'\"]{0,200}:)[^\s'\"]{0,300}@")


def text(said: str, limit: int = MAX_CHARS) -> str:
    """A text without the secrets that can be told by their names."""
    short = said if len(said) <= limit else said[:limit] + f"… ({len(said):,} characters)"
    return _SECRET_IN_TEXT.sub(rf"\1{HIDDEN}", _URL_PASSWORD.sub(rf"\1{HIDDEN}@", short))


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
