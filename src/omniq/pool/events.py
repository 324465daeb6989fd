"""What a child says, on its way to the pool: which worker it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omniq.pool.calls import Outcome
from omniq.pool.dispatcher import Dispatcher
from omniq.pool.worker import PoolWorker

if TYPE_CHECKING:
    from omniq.pool.process import Child, Exit


class WorkerEvents:
    """The events of one worker's child."""

    def __init__(self, dispatcher: Dispatcher, worker: PoolWorker) -> None:
        self._dispatcher = dispatcher
        self._worker = worker

    def ready(self, child: Child) -> None:
        self._dispatcher.ready(self._worker, child)

    def outcomes(self, child: Child, first_id: int, outcomes: Sequence[Outcome]) -> None:
        self._dispatcher.outcomes(self._worker, first_id, outcomes)

    def note(self, child: Child, call_id: int, note: Any) -> None:
        self._dispatcher.note(self._worker, call_id, note)

    def done(
        self, child: Child, message_id: int, first_id: int = 0, outcomes: Sequence[Outcome] = ()
    ) -> None:
        self._dispatcher.done(self._worker, message_id, first_id, outcomes)

    def shutdown(self, child: Child) -> None:
        self._dispatcher.shutdown(self._worker)

    def exited(self, child: Child, exit: Exit) -> None:
        self._dispatcher.exited(self._worker, exit, child.running)
