"""Keeping the leases of workers that do not do it themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from loguru import logger

from omniq.storage.base import BaseStorage

RENEWALS_PER_LEASE: Final = 3
RETRY_S: Final = 1.0

Workers = Callable[[], Iterable[tuple[BaseStorage, str]]]


async def keep_renewing(workers: Workers, lease_s: float) -> None:
    """Renew for everybody whom `workers` names, until cancelled. Who fails does not keep the next from it."""
    every_s = lease_s / RENEWALS_PER_LEASE
    failing: set[str] = set()  # said once, until it works again
    while True:
        known = list(workers())
        for storage, identity in known:
            try:
                await _renew(storage, identity, lease_s)
                failing.discard(identity)
            except Exception as exc:
                if identity not in failing:
                    logger.error("cannot renew the leases of {}, will go on trying: {!r}", identity, exc)
                failing.add(identity)
        failing.intersection_update(identity for _, identity in known)
        await asyncio.sleep(min(every_s, RETRY_S) if failing else every_s)


async def _renew(storage: BaseStorage, identity: str, lease_s: float) -> None:
    # A look first: an idle worker has nothing to write.
    if await storage.held(identity):
        await storage.renew(identity, lease_s)
