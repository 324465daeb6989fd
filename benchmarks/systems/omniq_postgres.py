"""OmniQ on PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.systems.base import address_in
from benchmarks.systems.shared.omniq_app import OmniqSystem
from omniq.storage import BaseStorage, PostgresStorage


class OmniqPostgres(OmniqSystem):
    name = "omniq-postgres"
    store = "postgres"
    server = "postgres"
    promise = "at least once: ended after the run, result stored, every commit synced to the disk"
    deep = True

    def storage(self, folder: Path) -> BaseStorage:
        storage = PostgresStorage(address_in(folder))
        asyncio.run(storage.migrate())
        return storage
