"""What waits for a worker: highest priority first, then in the order of submission."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from omniq.data.items import Item
from omniq.data.stream import Stream

Entry = tuple[int, int, Item]


def _any(_stream: Stream) -> bool:
    return True


class Waiting:
    """A queue per stream, because a stream may need one item before all others can go on."""

    def __init__(self) -> None:
        self._queues: dict[Stream, list[Entry]] = {}
        self._by_head: dict[Stream, dict[int, Item]] = {}

    def add(self, item: Item) -> None:
        """Also what was here before: it has its old place."""
        item.is_waiting = True
        heapq.heappush(self._queues.setdefault(item.stream, []), (-item.priority, item.number, item))
        self._by_head.setdefault(item.stream, {})[item.head] = item

    def first(self, may_run: Callable[[Stream], bool] = _any) -> Item | None:
        """The one that should run next, of the streams that may."""
        return min(self._firsts(may_run), key=lambda item: (-item.priority, item.number), default=None)

    def first_needed(self, may_run: Callable[[Stream], bool] = _any) -> Item | None:
        """The one without which somebody who reads could not go on."""
        for stream in filter(may_run, tuple(self._queues)):
            item = self._by_head[stream].get(stream.head) if stream.is_ordered else self._top(stream)
            if item is not None and stream.needs(item):
                return item
        return None

    def take(self, item: Item) -> None:
        item.is_waiting = False
        del self._by_head[item.stream][item.head]
        self._top(item.stream)

    def take_all(self, stream: Stream | None = None) -> list[Item]:
        """Remove what waits, of one stream or of all."""
        streams = tuple(self._queues) if stream is None else (stream,)
        found = [item for one in streams for item in self._by_head.get(one, {}).values()]
        for item in found:
            self.take(item)
        return sorted(found, key=lambda item: item.number)

    def streams(self) -> tuple[Stream, ...]:
        return tuple(self._queues)

    def _firsts(self, may_run: Callable[[Stream], bool]) -> Iterator[Item]:
        for stream in filter(may_run, tuple(self._queues)):
            item = self._top(stream)
            if item is not None:
                yield item

    def _top(self, stream: Stream) -> Item | None:
        """The first of a stream. What was taken from the middle is passed over here."""
        queue = self._queues.get(stream, [])
        while queue and not queue[0][2].is_waiting:
            heapq.heappop(queue)
        if queue:
            return queue[0][2]
        self._queues.pop(stream, None)
        self._by_head.pop(stream, None)
        return None
