"""Where the server is, and which namespace of it is ours.

    redis://user:password@host:6379/0     rediss:// with TLS     unix:///run/valkey.sock?db=0     valkey://

`?namespace=jobs` names the namespace in the URL.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from hiredis import ReplyError

from omniq.errors import InvalidOption, StoreUnavailable
from omniq.storage.redis.errors import explained
from omniq.storage.redis.wire import Message, Wire
from omniq.storage.url import safe_url
from omniq.task import shown

DEFAULT_NAMESPACE: Final = "omniq"
DEFAULT_PORT: Final = 6379
CONNECT_TIMEOUT_S: Final = 3.0
SCHEMES: Final = ("redis", "rediss", "unix", "valkey", "valkeys")
# No braces: what stands between them is what a Cluster chooses the slot by.
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
# Everything that a connection may end with.
BORDER: Final = (OSError, EOFError, ReplyError)


class Address:
    def __init__(self, url: str, namespace: str | None) -> None:
        if not isinstance(url, str) or urlsplit(url).scheme not in SCHEMES:
            raise _no_address(url, "write redis://host:6379/0 or unix:///run/redis.sock")
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        named = dict(options)
        if strange := [name for name in named if name not in ("namespace", "db")]:
            raise _no_address(url, f"it has no option {shown(strange[0])}, only namespace and db")
        self.namespace = _checked(
            namespace if namespace is not None else named.get("namespace", DEFAULT_NAMESPACE)
        )
        rest = urlencode([(name, value) for name, value in options if name != "namespace"], quote_via=quote)
        self.base = _joined(parts, rest)
        self.shown = shown(safe_url(self.base), limit=200).strip("'")
        self.user = unquote(parts.username or "")
        self.password = unquote(parts.password or "")
        self.path = unquote(parts.path) if parts.scheme == "unix" else None
        self.tls = parts.scheme in ("rediss", "valkeys")
        try:
            number = named.get("db") or ("0" if self.path is not None else parts.path.strip("/") or "0")
            self.db, self.port = int(number), parts.port or DEFAULT_PORT
        except ValueError:
            raise _no_address(url, "port and database are numbers") from None
        self.host = parts.hostname or "localhost"

    @property
    def prefix(self) -> bytes:
        """In front of every key: a hash tag, so that all of them are in one slot of a Cluster."""
        return b"{%s}:" % self.namespace.encode()

    @property
    def url(self) -> str:
        """With the password and the namespace: for another process, not for people."""
        if self.namespace == DEFAULT_NAMESPACE:
            return self.base
        parts = urlsplit(self.base)
        query = "&".join(filter(None, (parts.query, f"namespace={quote(self.namespace, safe='')}")))
        return _joined(parts, query)

    def move_to(self, host: str, port: int) -> None:
        """Another node of the same Cluster has our slot now."""
        self.host, self.port, self.path = host or self.host, port, None

    async def connect(self, what_for: str, heard: Message | None = None) -> Wire:
        """A connection that is signed in. What goes wrong is told in one line."""
        wire: Wire | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                wire = await self._dial(heard)
                await self._sign_in(wire, what_for)
        except BaseException as exc:
            if wire is not None:
                wire.close()
            if isinstance(exc, TimeoutError):
                raise StoreUnavailable(f"{self.shown}: no answer within {CONNECT_TIMEOUT_S:g} s") from None
            if isinstance(exc, BORDER):
                raise explained(exc, self.shown) from None
            raise
        return wire

    async def _dial(self, heard: Message | None) -> Wire:
        loop = asyncio.get_running_loop()
        if self.path is not None:
            _, wire = await loop.create_unix_connection(lambda: Wire(heard), self.path)
        else:
            context = ssl.create_default_context() if self.tls else None
            _, wire = await loop.create_connection(lambda: Wire(heard), self.host, self.port, ssl=context)
        return wire

    async def _sign_in(self, wire: Wire, what_for: str) -> None:
        asked: list[asyncio.Future[Any]] = []
        if self.password:
            asked.append(wire.call("AUTH", *filter(None, (self.user, self.password))))
        if self.db:
            asked.append(wire.call("SELECT", self.db))
        asked.append(wire.call("CLIENT", "SETNAME", f"omniq-{what_for}"))
        asked.append(wire.call("PING"))
        replies = await asyncio.gather(*asked)
        for reply in (
            *replies[:-2],
            replies[-1],
        ):  # a name is for people: whoever may not set it goes without
            if isinstance(reply, ReplyError):
                raise reply


def _joined(parts: SplitResult, query: str) -> str:
    """With both slashes, also where no host follows."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{f'?{query}' if query else ''}"


def _checked(namespace: str) -> str:
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise InvalidOption(f"namespace {shown(namespace)} must be 1 to 64 characters of A-Z a-z 0-9 _ . : -")
    return namespace


def _no_address(url: object, instead: str) -> InvalidOption:
    return InvalidOption(f"{shown(safe_url(str(url)))} is no Redis address; {instead}")
