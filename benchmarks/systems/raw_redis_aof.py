"""The raw limit of the Redis store where the server syncs its file before it answers."""

from __future__ import annotations

from benchmarks.systems.raw_redis import RawRedis


class RawRedisAof(RawRedis):
    name = "raw-redis-aof"
    store = "redis-aof"
    server = "redis-aof"
    promise = "the store's scripts alone, every write synced to the disk"
