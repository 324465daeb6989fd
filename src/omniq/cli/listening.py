"""Sockets that commands listen on: bound before all else, so that a taken port is told at once."""

from __future__ import annotations

import socket
from typing import Final

from loguru import logger

from omniq.cli.errors import CommandFailed
from omniq.cli.wire import Plan

# Who takes nothing of what waits for it for so long is cut off: else its descriptor is held for ever.
CUT_OFF_MS: Final = 60_000


def listen(host: str, port: int, instead: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; what is accepted inherits it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, CUT_OFF_MS)
    try:
        listening.bind((host.strip("[]"), port))
        listening.listen(128)
    except (OSError, OverflowError) as exc:
        listening.close()
        why = exc.strerror if isinstance(exc, OSError) else "no port is above 65535"
        raise CommandFailed(f"cannot listen on {host}:{port}: {why}; try {instead}") from None
    return listening


def metrics_sockets(plan: Plan) -> list[socket.socket]:
    """One for each worker process, on ports in a row; who replaces another takes over its socket."""
    first, sockets = plan.metrics_port, list[socket.socket]()
    if first is None:
        return sockets
    try:
        for place in range(plan.processes):
            sockets.append(listen(plan.metrics_host, first + place if first else 0, "--metrics-port 0"))
            host, port = sockets[-1].getsockname()[:2]
            logger.info("metrics on http://{host}:{port}/metrics", host=host, port=port)
    except CommandFailed:
        for one in sockets:
            one.close()
        raise
    return sockets
