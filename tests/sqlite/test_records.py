"""Records that lie behind each other are read together: each keeps what is its own."""

from pathlib import Path
from typing import Any

from omniq import Task
from omniq.storage import SQLiteStorage
from omniq.task import StoredTask

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("a.b", {}),
    ("a.b", {}),
    ("a.c", {}),
    ("a.c", {"timeout": 3.0}),
    ("a.c", {"timeout": 3.0}),
    ("a.c", {"headers": {"by": "ann"}}),
    ("a.c", {"headers": {"by": "bob"}}),  # as calls are where traces are on: the headers alone differ
    ("a.c", {"headers": {"by": "bob"}}),
    ("a.c", {}),
    ("a.c", {"headers": {"by": "ann"}}),
    ("a.c", {"unique_key": "one"}),
    ("a.c", {"max_retries": 0}),
    ("a.c", {"result_ttl": 5.0}),
]


async def test_what_is_claimed_together_is_what_was_enqueued(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        tasks = [Task(path, (n,), **options) for n, (path, options) in enumerate(OPTIONS)]
        for task in tasks:  # one by one: no two at the same moment
            await storage.enqueue(task)
        told = [await storage.get_task(task.id) for task in tasks]
        claims = await storage.claim("ann", None, len(tasks))
        assert [claim.id for claim in claims] == [task.id for task in tasks]
        for task, claim, known in zip(tasks, claims, told, strict=True):
            assert isinstance(claim, StoredTask)
            assert known is not None
            assert (claim.func_path, claim.epoch, claim.owner) == (task.func_path, 1, "ann")
            assert storage.serializer.decode_call(claim.payload)[1] == list(task.args)
            for name in ("timeout", "headers", "unique_key", "max_retries", "result_ttl"):
                assert getattr(claim, name) == getattr(task, name)
            assert (claim.seq, claim.enqueued_at) == (claims.index(claim) + 1, known.enqueued_at)
