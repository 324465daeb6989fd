"""OmniQ on its embedded default."""

from __future__ import annotations

from pathlib import Path

from benchmarks.systems.shared.omniq_app import OmniqSystem
from omniq.storage import BaseStorage, SQLiteStorage


class OmniqSQLite(OmniqSystem):
    name = "omniq-sqlite"
    store = "sqlite"
    promise = "at least once: ended after the run, result stored, every commit synced to the disk"
    imports = ("import omniq", "from omniq import OmniQ")
    deep = True

    def storage(self, folder: Path) -> BaseStorage:
        return SQLiteStorage(folder / "omniq.db", durability="fsync")
