"""OmniQ on Redis or Valkey that keeps everything in memory, as its peers there are mostly run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.systems.base import address_in
from benchmarks.systems.shared.omniq_app import OmniqSystem
from omniq.storage import BaseStorage, RedisStorage


class OmniqRedis(OmniqSystem):
    name = "omniq-redis"
    store = "redis"
    server = "redis"
    promise = "at least once: ended after the run, result stored, everything lost with the server"
    deep = True

    def storage(self, folder: Path) -> BaseStorage:
        return RedisStorage(address_in(folder), durability="relaxed")
