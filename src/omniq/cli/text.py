"""Text from elsewhere, made fit to print: one line, nothing that steers a terminal, no password."""

from __future__ import annotations

import re
from typing import Final

# Greedy up to the last @ of the word: rather too much is hidden than a part of a password shown.
_PASSWORD: Final = re.compile(r"(://[^/\s:@'\"]*:)[^\s'\"]*@")


def masked(text: str) -> str:
    """`text` without the passwords of the URLs in it."""
    return _PASSWORD.sub(r"\1***@", text) if "://" in text else text


def one_line(text: str) -> str:
    """`text` with line breaks, control and direction characters spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def safe(text: object) -> str:
    return one_line(masked(str(text)))
