"""From what the server or the network says to what OmniQ raises, once. Never with a password in it."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from hiredis import ReplyError

from omniq.errors import CorruptRecord, OmniqError, StoreError, StoreUnavailable

# What passes by itself, or when somebody has repaired the server: repeat the call as it is.
_AWAY: Final = {
    "OOM": "its memory is full (maxmemory, noeviction): new tasks are refused until there is more, or "
    "what has ended is pruned (result_ttl)",
    "MISCONF": "it cannot write to its disk and refuses to change anything",
    "READONLY": "it is a replica; after a failover the address leads to the new primary",
    "LOADING": "it is still loading its data",
    "BUSY": "a script of somebody else keeps it busy",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "CLUSTERDOWN": "the cluster is down",
    "MOVED": "the cluster is moving these keys",
    "TRYAGAIN": "the cluster is moving these keys",
    # Not to be followed: there a script would find only those of its keys that have arrived.
    "ASK": "the cluster is moving these keys",
    "NOREPLICAS": "too few replicas are there for it to accept writes",
    "UNBLOCKED": "it became a replica while it was asked",
    "NOAUTH": "it wants a password; write redis://:password@host or redis://user:password@host",
    "WRONGPASS": "it refused the user or the password",
    "ERR max": "it has no connection left (maxclients)",
    "ERR WAITAOF": "it writes no append-only file any more that could be waited for; set appendonly yes",
}


def explained(exc: BaseException, where: str) -> OmniqError:
    """`where` is the address as people may see it."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return StoreUnavailable(
            f"{where}: its certificate is not to be trusted ({exc.verify_message}); SSL_CERT_FILE may name a "
            "file with the certificate of who signed it"
        )
    if isinstance(exc, ssl.SSLError):
        return StoreUnavailable(
            f"{where}: it does not speak TLS as we do ({exc.reason or 'no reason given'}); without TLS write "
            "redis:// instead of rediss://"
        )
    if isinstance(exc, socket.gaierror):
        return StoreUnavailable(f"{where}: there is no such host ({exc.strerror})")
    if not isinstance(exc, ReplyError):
        said = str(exc).strip().splitlines()
        if isinstance(exc, ConnectionRefusedError) or "Connect call failed" in str(exc):
            said = ["nobody listens there (connection refused)"]
        return StoreUnavailable(f"{where}: {said[0] if said else type(exc).__name__}")
    text = str(exc)
    for code, why in _AWAY.items():
        if text.startswith(code):
            return StoreUnavailable(f"{where}: {why} ({text.splitlines()[0][:120]})")
    if "Script killed by user" in text:  # only possible while it has written nothing
        return StoreUnavailable(f"{where}: somebody killed the script before it wrote anything")
    if text.startswith("NOPERM"):
        return StoreError(
            f"{where}: {text[:200]}; the user needs ~{{namespace}}:* &{{namespace}}:* +@all -@dangerous +info"
        )
    if "DB index" in text or "SELECT is not allowed" in text:  # the second is what clusters of old say
        return StoreError(f"{where}: it has no such database; write /0, and another ?namespace=")
    if text.startswith("WRONGTYPE"):
        return CorruptRecord(f"{where}: a key of this namespace belongs to something else: {text[:200]}")
    return StoreError(f"{where}: {text[:300]}")
