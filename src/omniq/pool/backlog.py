"""Messages that wait for a worker, first come first served."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from omniq.pool.message import Message

# One death may be anybody's fault.
DEATHS_TO_THE_BACK: Final = 2


class Backlog:
    """A queue out of which anything can be taken at once."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Message] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, message: Message) -> bool:
        return message.id in self._waiting

    def first(self) -> Message | None:
        return next(iter(self._waiting.values()), None)

    def append(self, message: Message) -> None:
        self._waiting[message.id] = message

    def put_back(self, message: Message) -> None:
        """It was here before, so it comes first; what keeps killing its worker lets the others pass."""
        self._waiting[message.id] = message
        self._waiting.move_to_end(message.id, last=message.deaths >= DEATHS_TO_THE_BACK)

    def take(self, message: Message) -> bool:
        """Remove it; says whether it was here."""
        return self._waiting.pop(message.id, None) is not None

    def all(self) -> list[Message]:
        return list(self._waiting.values())
