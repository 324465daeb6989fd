"""Where the server is, and which namespace of it is ours.

    redis://user:password@host:6379/0     rediss:// with TLS     unix:///run/valkey.sock?db=0     valkey://

`?namespace=jobs` names the namespace in the URL.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from hiredis import ReplyError

from omniq.errors import InvalidOption, StoreUnavailable
from omniq.storage.redis.errors import explained
from omniq.storage.redis.wire import Argument, Message, Wire
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
        if parts.username and parts.password is None:
            # Not shown: it is a password whose colon was forgotten, as likely as not.
            raise InvalidOption(
                "a Redis address with a user and no password; write redis://user:password@host, "
                "redis://:password@host, or redis://user:@host for a user who needs none"
            )
        if parts.scheme == "unix" and not parts.path:
            raise _no_address(url, "it has no path; write unix:///run/redis.sock")
        options = parse_qsl(parts.query, keep_blank_values=True)
        named = dict(options)
        if strange := [name for name in named if name not in ("namespace", "db")]:
            raise _no_address(url, f"it has no option {shown(strange[0])}, only namespace and db")
        self.namespace = _checked(
            namespace if namespace is not None else named.get("namespace", DEFAULT_NAMESPACE)
        )
        # In front of every key: a hash tag, so that all of them are in one slot of a Cluster.
        self.prefix = b"{%s}:" % self.namespace.encode()
        rest = urlencode([(name, value) for name, value in options if name != "namespace"], quote_via=quote)
        self.base = _joined(parts, rest)
        self.shown = shown(safe_url(self.base), limit=200).strip("'")
        self.user = unquote(parts.username or "")
        self.password = unquote(parts.password or "")
        path = unquote(parts.path) if parts.scheme == "unix" else None
        self.tls = parts.scheme in ("rediss", "valkeys")
        try:
            number = named.get("db") or ("0" if path is not None else parts.path.strip("/") or "0")
            self.db: int = int(number)
            port: int = parts.port or DEFAULT_PORT
        except ValueError:
            raise _no_address(url, "port and database are numbers") from None
        self._given: tuple[str, int, str | None] = (parts.hostname or "localhost", port, path)
        self._node = self._given  # replaced whole: threads that block dial too

    @property
    def host(self) -> str:
        return self._node[0]

    @property
    def port(self) -> int:
        return self._node[1]

    @property
    def path(self) -> str | None:
        """Of a socket in the file system, instead of host and port."""
        return self._node[2]

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
        self._node = (host or self._node[0], port, None)

    def begin_again(self) -> None:
        """The node that we were sent to is away: the one we were given knows who has the slot now."""
        self._node = self._given

    async def connect(
        self, what_for: str, heard: Message | None = None, doubted: Callable[[Wire], None] | None = None
    ) -> Wire:
        """A connection that is signed in. What goes wrong is told in one line."""
        wire: Wire | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                wire = await self._dial(lambda: Wire(heard, doubted))
                await self._sign_in(wire, what_for)
        except BaseException as exc:
            if wire is not None:
                wire.close()
            self.begin_again()
            raise self.told(exc, wire is not None, wire is not None and wire.has_heard) from None
        return wire

    def told(self, exc: BaseException, is_dialled: bool, has_heard: bool) -> BaseException:
        """Why there is no connection, in one line; what is no fault of the server stays as it is."""
        if isinstance(exc, TimeoutError):
            # A server without TLS waits for more, and says nothing.
            hint = "; without TLS write redis:// instead of rediss://" if self.tls and not is_dialled else ""
            return StoreUnavailable(f"{self.shown}: no answer within {CONNECT_TIMEOUT_S:g} s{hint}")
        if isinstance(exc, ConnectionError) and is_dialled and not has_heard:
            hint = "" if self.tls else "; with TLS write rediss:// instead of redis://"
            return StoreUnavailable(
                f"{self.shown}: it hung up at our first word: no connection left (maxclients), or no "
                f"Redis{hint}"
            )
        return explained(exc, self.shown) if isinstance(exc, BORDER) else exc

    async def _dial(self, make: Callable[[], Wire]) -> Wire:
        loop = asyncio.get_running_loop()
        host, port, path = self._node
        if path is not None:
            _, wire = await loop.create_unix_connection(make, path)
        else:
            context = ssl.create_default_context() if self.tls else None
            _, wire = await loop.create_connection(make, host, port, ssl=context)
        return wire

    def dial(self, timeout_s: float) -> socket.socket:
        """For a caller that blocks."""
        host, port, path = self._node
        if path is not None:
            line = socket.socket(socket.AF_UNIX)
            try:
                line.settimeout(timeout_s)
                line.connect(path)
            except BaseException:
                line.close()
                raise
            return line
        line = socket.create_connection((host, port), timeout_s)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.tls:
            return line
        return ssl.create_default_context().wrap_socket(line, server_hostname=host)

    def words(self, what_for: str) -> list[tuple[Argument, ...]]:
        """What a connection begins with; the name, for people, is the last but one."""
        said: list[tuple[Argument, ...]] = []
        if self.user:
            said.append(("AUTH", self.user, self.password))
        elif self.password:
            said.append(("AUTH", self.password))
        if self.db:
            said.append(("SELECT", self.db))
        return [*said, ("CLIENT", "SETNAME", f"omniq-{what_for}"), ("PING",)]

    async def _sign_in(self, wire: Wire, what_for: str) -> None:
        asked = [wire.call(*command) for command in self.words(what_for)]
        *needed, name, pong = await asyncio.gather(*asked, return_exceptions=True)
        if isinstance(pong, OSError):
            needed.append(name)  # the last word before it hung up says why
        # Otherwise a name is for people: whoever may not set it goes without.
        for reply in (*needed, pong):
            if isinstance(reply, BaseException):
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
