"""dbos on SQLite, which is what it takes if nothing is said."""

from __future__ import annotations

from pathlib import Path

from benchmarks.systems.shared.dbos_app import DbosSystem


class DbosSQLite(DbosSystem):
    name = "dbos-sqlite"
    store = "sqlite"
    promise = "at least once: ended after the run, result stored, every commit synced to the disk"

    def url(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'dbos.db'}"
