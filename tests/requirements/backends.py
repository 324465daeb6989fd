"""A backend as somebody else would write it in the words of seed 002."""

from __future__ import annotations

import itertools
from typing import Any

from omniq.clock import REAL_CLOCK, Clock
from omniq.serializer import MsgpackSerializer, Serializer
from omniq.storage.backend import Backend, Reserved


class ListBackend(Backend):
    """Reserves from a list; everything it was asked is in `calls`."""

    def __init__(self, *, connected: bool = False, clock: Clock = REAL_CLOCK) -> None:
        self.connected = connected
        self.clock = clock
        self.calls: list[tuple[str, Any]] = []
        self.reserves: list[float] = []
        self.found: list[int] = []
        self.waiting: list[Reserved] = []
        self.successes: dict[str, bytes] = {}
        self.failures: dict[str, tuple[str, str]] = {}
        self.fails: dict[str, Exception] = {}
        self._ids = itertools.count(1)

    @property
    def is_connected(self) -> bool:
        return self.connected

    async def connect(self) -> None:
        self.calls.append(("connect", None))
        assert not self.connected, "connected twice"
        self.connected = True

    async def close(self) -> None:
        self.calls.append(("close", None))
        self.connected = False

    async def reserve(self, limit: int) -> list[Reserved]:
        assert self.connected
        self.calls.append(("reserve", limit))
        self.reserves.append(self.clock.monotonic())
        self._fail("reserve")
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        self.found.append(len(taken))
        return taken

    async def mark_success(self, task_id: str, result: bytes) -> None:
        self.calls.append(("mark_success", task_id))
        self._fail("mark_success")
        self.successes[task_id] = result

    async def mark_failure(self, task_id: str, error: str, traceback: str) -> None:
        self.calls.append(("mark_failure", task_id))
        self._fail("mark_failure")
        self.failures[task_id] = (error, traceback)

    def _fail(self, verb: str) -> None:
        if verb in self.fails:
            raise self.fails.pop(verb)

    # --- for tests -------------------------------------------------------------------------------

    def put(self, func: Any, *args: Any, serializer: Serializer | None = None, **kwargs: Any) -> str:
        """A call, encoded as a producer would; its id."""
        return self.put_bytes((serializer or MsgpackSerializer()).dump_call(func, args, kwargs))

    def put_bytes(self, payload: bytes) -> str:
        task_id = f"task-{next(self._ids)}"
        self.waiting.append(Reserved(task_id, payload))
        return task_id

    @property
    def ended(self) -> set[str]:
        return {*self.successes, *self.failures}

    def made(self, verb: str) -> list[Any]:
        return [detail for name, detail in self.calls if name == verb]
