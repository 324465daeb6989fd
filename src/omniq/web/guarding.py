"""Who may ask, and what is said along with every answer. Everything passes here, so no route can forget it.

Host is one of ours -> token, if there is one -> for whatever changes something: allowed at all, asked by
our own page (Origin, a word only that page knows)
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omniq.errors import InvalidOption

COOKIE: Final = "omniq_session"
CSRF_HEADER: Final = "x-omniq-csrf"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
MIN_TOKEN: Final = 16
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
# What anybody may ask: how to get in, and whether work gets done (a yes or no, without names).
OPEN_PATHS: Final = frozenset({"/login", "/healthz", "/static/style.css", "/static/login.js"})

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(token: str | None) -> None:
    """What can be guessed is refused; an empty one would let everybody in."""
    if token is not None and len(token) < MIN_TOKEN:
        raise InvalidOption(
            f"a token has at least {MIN_TOKEN} characters; try `openssl rand -hex {MIN_TOKEN}`"
        )


class Guard:
    """Around the whole application."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Iterable[str], allow_actions: bool) -> None:
        self._app = app
        self._token = token
        check_token(token)
        self._hosts = frozenset({*LOOPBACK, *map(named, hosts)})
        self._allow_actions = allow_actions
        self.csrf = secrets.token_urlsafe(24)
        key = secrets.token_bytes(32)
        self._session = hmac.new(key, b"omniq session", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        path, method = path_of(scope), scope["method"]
        if path == "/healthz" and method in SAFE_METHODS:
            return None  # asked by whatever address a machine has
        if not self.serves(headers):
            return refused(
                403,
                "this host name is not served here; name it: --allow-host NAME, or asgi_app(hosts=[NAME])",
            )
        if path not in OPEN_PATHS and not self.knows(headers):
            if method in SAFE_METHODS and not path.startswith("/api/") and path != "/metrics":
                return RedirectResponse(scope.get("root_path", "") + "/login", status_code=303)
            return refused(401, "a token is needed: Authorization: Bearer ..., or sign in at /login")
        if (method not in SAFE_METHODS or path.startswith("/api/")) and not self._same_origin(headers):
            return refused(403, "this was asked by another site")
        if method in SAFE_METHODS or path == "/login":
            return None
        if not self._allow_actions:
            return refused(403, "read-only; start the dashboard with --allow-actions")
        if not hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), self.csrf.encode()):
            return refused(403, f"the header {CSRF_HEADER} is missing or old; load the page again")
        return None

    def serves(self, headers: Headers) -> bool:
        """Whether it was asked for by one of our names, and not one that somebody bent to this address."""
        return host_of(headers) in self._hosts

    def knows(self, headers: Headers) -> bool:
        """Whether this request may see anything."""
        if self._token is None:
            return True
        said = headers.get("authorization", "")
        if said.startswith("Bearer ") and self.is_token(said.removeprefix("Bearer ")):
            return True
        return any(
            hmac.compare_digest(value.encode(), self._session.encode()) for value in sessions_in(headers)
        )

    def is_token(self, said: str) -> bool:
        return self._token is None or hmac.compare_digest(said.encode(), self._token.encode())

    def sign_in(self, request: Request, response: Response) -> None:
        """Ports of one host share their cookies: with ours in its name no other dashboard takes its place."""
        port = request.headers.get("host", "").rpartition(":")[2]
        response.set_cookie(
            f"{COOKIE}_{port}" if port.isascii() and port.isdecimal() else COOKIE,
            self._session,
            path=request.scope.get("root_path") or "/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def _same_origin(self, headers: Headers) -> bool:
        """A browser says where a request comes from; what is no browser has no cookie to steal."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        try:
            return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        except ValueError:  # no address at all, such as `http://[`
            return False


def named(host: str) -> str:
    """A name as `Host` has it: an address of IPv6 stands in brackets there, in its short form."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower()
    return f"[{address}]" if address.version == 6 else str(address)


def host_of(headers: Headers) -> str:
    """The name in `Host`, without its port."""
    host = headers.get("host", "").lower()
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.split(":")[0]


def sessions_in(headers: Headers) -> list[str]:
    """What cookies of ours hold. Others of this host may look like anything, and must not hide ours."""
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return [value for name, _, value in pairs if name.startswith(COOKIE)]


def path_of(scope: Scope) -> str:
    """The path below where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path


def refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=status)
