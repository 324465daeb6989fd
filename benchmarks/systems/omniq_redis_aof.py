"""OmniQ on Redis or Valkey that syncs its file before it answers: what OmniQ asks for if nothing is said."""

from __future__ import annotations

from pathlib import Path

from benchmarks.systems.base import address_in
from benchmarks.systems.shared.omniq_app import OmniqSystem
from omniq.storage import BaseStorage, RedisStorage


class OmniqRedisAof(OmniqSystem):
    name = "omniq-redis-aof"
    store = "redis-aof"
    server = "redis-aof"
    promise = "at least once: ended after the run, result stored, every write synced to the disk"

    def storage(self, folder: Path) -> BaseStorage:
        return RedisStorage(address_in(folder), durability="fsync")
