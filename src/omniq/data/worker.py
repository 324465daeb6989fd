"""One worker of the pool: what it was given and has not finished, and what it says."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from loguru import logger

from omniq.data.items import Item, Sent
from omniq.errors import CallCancelled, CallTimeout
from omniq.pool.calls import Outcome, Raised, Returned

if TYPE_CHECKING:
    from omniq.data.crew import Crew, Hand
    from omniq.data.stream import Stream
    from omniq.pool.peer import Child, Exit


class Boss(Protocol):
    """What a worker tells. On the loop."""

    timeout_s: float | None

    def now(self) -> float: ...
    def prepared(self, worker: Worker) -> None: ...
    def not_prepared(self, worker: Worker, exc: Exception) -> None: ...
    def ended(self, item: Item, value: Any, size_bytes: int) -> None: ...
    def failed(self, item: Item, exc: Exception) -> None: ...
    def put_back(self, item: Item) -> None: ...
    def freed(self, worker: Worker, took_s: float | None) -> None: ...
    def gone(self, worker: Worker, exit: Exit) -> None: ...


class Worker:
    """Hears the events of one process or thread."""

    def __init__(self, boss: Boss, crew: Crew, number: int, prepare_id: int) -> None:
        self.number = number
        self.hand: Hand | None = None
        self.is_ready = False
        self.was_ready = False
        self.has_finished = False  # anything at all
        self.sent: deque[Sent] = deque()
        self.streams: WeakSet[Stream] = WeakSet()  # that go to this worker and no other
        self.watched = 0  # the call whose time is measured, and since when
        self.watched_at = 0.0
        self._boss = boss
        self._crew = crew
        self._prepare_id = prepare_id
        self._began_at = 0.0

    def __repr__(self) -> str:
        return f"<data worker {self.number}, {len(self.sent)} items>"

    def give(self, item: Item, base: int) -> None:
        assert self.hand is not None and self.is_ready
        if not self.sent:
            self._began_at = self._boss.now()
        self.sent.append(Sent(item, base))
        self._crew.give(self.hand, base, item.work, item.done)

    def ask_back(self, sent: Sent) -> bool:
        """Take back what it has not begun. False when it may have: then that stays here."""
        assert self.hand is not None
        sent.was_asked_back = True
        if not sent.ids or not self.hand.withdraw(sent.ids):
            return False
        sent.is_void = True
        return True

    # --- what it says ----------------------------------------------------------------------------

    def ready(self, child: Child) -> None:
        self.hand = child
        self._crew.prepare(child, self._prepare_id)

    def outcomes(self, child: Child, first_id: int, outcomes: Sequence[Outcome]) -> None:
        if first_id == self._prepare_id:
            self._prepared(outcomes[0])
            return
        size_bytes = child.received_bytes // len(outcomes)
        sent = next(one for one in self.sent if first_id in one.ids)
        for outcome in outcomes:
            self._outcome(sent, outcome, size_bytes)

    def _prepared(self, outcome: Outcome) -> None:
        if isinstance(outcome, Raised):
            self._boss.not_prepared(self, outcome.exception)
        else:
            self.is_ready = self.was_ready = True
            self._boss.prepared(self)

    def _outcome(self, sent: Sent, outcome: Outcome, size_bytes: int) -> None:
        call_id, item = sent.head_id, sent.item
        sent.reported += 1
        self.has_finished = True
        if sent.is_void:
            return
        match outcome:
            case Returned(value):
                self._boss.ended(item, value, size_bytes)
            case Raised(exc) if call_id != sent.late:
                self._boss.failed(item, exc)
            case _ if call_id == sent.late:
                self._boss.failed(item, self._too_late(item))
            case _ if sent.was_asked_back:  # it was not begun after all
                sent.is_void = True
                self._boss.put_back(item)
            case _:
                self._boss.failed(item, CallCancelled(f"{item.name} was interrupted"))

    def _too_late(self, item: Item) -> CallTimeout:
        return CallTimeout(f"{item.name} ran longer than its timeout of {self._boss.timeout_s:g} s")

    def note(self, child: Child, call_id: int, note: Any) -> None:
        logger.debug("a note of data worker {worker}: {note!r:.200}", worker=self.number, note=note)

    def done(
        self, child: Child, message_id: int, first_id: int = 0, outcomes: Sequence[Outcome] = ()
    ) -> None:
        if outcomes:
            self.outcomes(child, first_id, outcomes)
        if message_id == self._prepare_id:
            return
        sent = self.sent.popleft()
        assert sent.message_id == message_id, "messages end in the order in which they were sent"
        now = self._boss.now()
        took_s = None if sent.is_void else now - self._began_at
        self._began_at = now
        self._boss.freed(self, took_s)

    def shutdown(self, child: Child) -> None:
        self.is_ready = False

    def exited(self, child: Child, exit: Exit) -> None:
        self.is_ready = False
        self._boss.gone(self, exit)

    def lost(self, running: int) -> list[tuple[Item, bool]]:
        """What it had and has not finished, and of each whether it was running. After its end."""
        found: list[tuple[Item, bool]] = []
        while self.sent:
            sent = self.sent.popleft()
            if sent.is_void or not sent.item.left:
                continue
            if sent.late and sent.late == sent.head_id:
                self._boss.failed(sent.item, self._too_late(sent.item))
            if sent.item.left:
                found.append((sent.item, running in sent.ids and running != sent.late))
        return found
