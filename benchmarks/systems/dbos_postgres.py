"""dbos on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from benchmarks.systems.base import address_in
from benchmarks.systems.shared.dbos_app import DbosSystem


class DbosPostgres(DbosSystem):
    name = "dbos-postgres"
    store = "postgres"
    server = "postgres"
    promise = "at least once: ended after the run, result stored, every commit synced to the disk"
    processes = (1, 2)

    def url(self, folder: Path) -> str:
        return address_in(folder).replace("postgresql://", "postgresql+psycopg://", 1)
