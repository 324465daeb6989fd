"""Which claims a storage has handed out lately, for verbs that name no epoch.

A worker always names one, so what it hears costs two short lists; they are put together when somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from omniq.storage.base import Claimed

# Far more than anybody holds at once.
MAX_REMEMBERED: Final = 10_000
_ID: Final = attrgetter("id")
_EPOCH: Final = attrgetter("epoch")


class RecentClaims:
    """The epoch of the newest claim of each task."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._heard: deque[tuple[list[str], list[int]]] = deque()  # and not yet among them
        self._many_heard = 0

    def note(self, claims: Sequence[Claimed]) -> None:
        if not claims:
            return
        self._heard.append((list(map(_ID, claims)), list(map(_EPOCH, claims))))
        self._many_heard += len(claims)
        while self._many_heard > MAX_REMEMBERED and len(self._heard) > 1:
            self._many_heard -= len(self._heard.popleft()[0])

    def epoch_of(self, task_id: str) -> int | None:
        while self._heard:
            ids, epochs = self._heard.popleft()
            for task in ids:
                self._epochs.pop(task, None)  # so that the newest stand last
            self._epochs.update(zip(ids, epochs, strict=True))
        self._many_heard = 0
        for task in list(islice(self._epochs, max(0, len(self._epochs) - MAX_REMEMBERED))):
            del self._epochs[task]
        return self._epochs.get(task_id)

    def forget(self, task_id: str) -> None:
        self._epochs.pop(task_id, None)
