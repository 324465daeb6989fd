"""Keeping the leases of workers that do not do it themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from loguru import logger

from omniq.errors import OmniqError, StoreUnavailable
from omniq.storage.base import BaseStorage

RENEWALS_PER_LEASE: Final = 3
RETRY_S: Final = 1.0

Workers = Callable[[], Iterable[tuple[BaseStorage, str]]]


async def keep_renewing(workers: Workers, lease_s: float) -> None:
    """Renew for everybody whom `workers` names, until cancelled."""
    every_s = lease_s / RENEWALS_PER_LEASE
    away = False
    while True:
        try:
            for storage, identity in list(workers()):
                await _renew(storage, identity, lease_s)
            away = False
        except StoreUnavailable as exc:
            if not away:
                logger.warning("cannot renew leases, will go on trying: {}", exc)
            away = True
        except OmniqError as exc:
            logger.error("cannot renew leases: {}", exc)
        await asyncio.sleep(min(every_s, RETRY_S) if away else every_s)


async def _renew(storage: BaseStorage, identity: str, lease_s: float) -> None:
    # A look first: an idle worker has nothing to write.
    if await storage.held(identity):
        await storage.renew(identity, lease_s)
