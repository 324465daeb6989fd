# ruff: noqa: E501 - the text of a source line is quoted as it is
"""Bugs to plant in the scripts and the connection of the Redis store."""

from tests.mutants.mutants import Mutant

LUA = "storage/redis/lua/"
SUITE = ("tests/conformance/test_redis.py",)
FAULTS = ("tests/redis/test_faults.py",)

REDIS = [
    Mutant(
        "a Redis settle does not look at the epoch",
        LUA + "settling.lua",
        "if t and t.status == RUNNING and t.epoch == epoch then",
        "if t and t.status == RUNNING then",
        FAULTS,
        "zombie",
    ),
    Mutant(
        "a Redis settle forgets the cancel request",
        LUA + "settling.lua",
        "  if t.cancel == 1 then return end_cancelled",
        "  if false then return end_cancelled",
        SUITE,
        "TestRedis and cancel",
    ),
    Mutant(
        "a Redis claim is not known again",
        LUA + "exchange.lua",
        "if redis.call('EXISTS', marker) == 1 then",
        "if false then",
        FAULTS,
        "repeated",
    ),
    Mutant(
        "a Redis claim hands out without a lease",
        LUA + "exchange.lua",
        "      put_pair('ZADD', 'running', until_, t.id)\n",
        "",
        SUITE,
        "TestRedis and lapse",
    ),
    Mutant(
        "a Redis claim takes from paused queues",
        LUA + "exchange.lua",
        "  if not paused[name] and not seen[name] then",
        "  if not seen[name] then",
        SUITE,
        "TestRedis and pause",
    ),
    Mutant(
        "what came due on Redis never moves over",
        LUA + "exchange.lua",
        "      put_pair('ZADD', 'ready:' .. queue, 0, where)\n",
        "",
        SUITE,
        "TestRedis and eta",
    ),
    Mutant(
        "a unique key on Redis is not freed",
        LUA + "moves.lua",
        "  if t.key ~= '' then put('HDEL', 'unique', t.key) end\n",
        "",
        SUITE,
        "TestRedis and key",
    ),
    Mutant(
        "a poisonous task on Redis runs for ever",
        LUA + "moves.lua",
        "  local last = t.losses + 1 >= t.max_losses",
        "  local last = false",
        SUITE,
        "TestRedis and (poison or lapse or t9)",
    ),
    Mutant(
        "an evicting server is taken",
        "storage/redis/durability.py",
        '    if facts.policy != "noeviction":',
        "    if False:",
        ("tests/redis/test_durability.py",),
    ),
    Mutant(
        "a server without a file is taken for durable",
        "storage/redis/durability.py",
        "    if not facts.aof:\n        raise Unsupported(",
        "    if False:\n        raise Unsupported(",
        ("tests/redis/test_durability.py",),
    ),
    Mutant(
        "nobody waits for the disk",
        "storage/redis/connections.py",
        "        if self._disk is not None:\n            await self._disk.has_it()",
        "        if False:\n            await self._disk.has_it()",
        ("tests/redis/test_durability.py",),
        "once_a_second",
    ),
    Mutant(
        "a script that was flushed is gone",
        "storage/redis/connections.py",
        'str(reply).startswith("NOSCRIPT"):',
        "False:",
        FAULTS,
        "flush",
    ),
    Mutant(
        "a cancelled call leaves its answer to the next",
        "storage/redis/wire.py",
        "        answer, _ = self._owed.popleft()\n",
        "        answer, _ = self._owed.popleft()\n        while answer.done() and self._owed:\n            answer, _ = self._owed.popleft()\n",
        FAULTS,
        "gives_up",
    ),
]
