"""What one worker is given at once: a call, or a range of calls of one function, and what became of each.

Calls of a range run in order, so those that have not been reported are always the last ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct

from omniq.clock import Bell
from omniq.errors import CallCancelled, CallTimeout, InvalidOption, WorkerDied
from omniq.pool import calls
from omniq.pool.calls import EncodedCall, Interrupted, Outcome, Outcomes, Raised
from omniq.pool.process import ChildGone

if TYPE_CHECKING:
    from omniq.pool.process import Child
    from omniq.pool.worker import PoolWorker

# Processes may be killed by anything at any time. This many in a row before a call begins are no coincidence,
# unless it may be retried more often than that.
MAX_FALSE_STARTS: Final = 5

Ending: TypeAlias = Literal["timeout", "cancel"]


class CallOptions(Struct, frozen=True):
    """How to treat calls: see `WorkerPool.options`."""

    retries: int = 0
    timeout_s: float | None = None
    on_note: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise InvalidOption(f"retries must be 0 or more, not {self.retries!r}")
        if self.on_note is not None and not callable(self.on_note):
            raise InvalidOption(f"on_note must be a function of one argument, not {self.on_note!r}")


class Message:
    """Calls on their way, and the future of whoever waits for them."""

    __slots__ = (
        "bell",
        "deaths",
        "doomed",
        "encoded",
        "endings",
        "false_starts",
        "future",
        "options",
        "outcomes",
        "since",
        "was_sent",
        "watched",
        "watched_at",
        "withdrawn",
        "worker",
    )

    def __init__(
        self,
        encoded: EncodedCall,
        options: CallOptions,
        now: float,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.encoded = encoded
        self.options = options
        self.since = now  # when it began to wait, or to run
        self.outcomes = Outcomes()
        self.deaths = 0  # of workers that ran the first call that is not reported
        self.false_starts = 0  # of workers that died before that call began
        self.endings: dict[int, Ending] = {}  # calls that are to end early, and why
        self.worker: PoolWorker | None = None  # the one that runs it
        self.was_sent = False
        self.withdrawn = False
        self.bell: Bell | None = None
        self.doomed = 0  # the call whose process is killed when the bell rings, 0 for none
        self.watched = 0  # the call whose time is measured, and since when
        self.watched_at = now
        self.future: asyncio.Future[Any] = (loop or asyncio.get_running_loop()).create_future()

    def __repr__(self) -> str:
        return f"<{self.title}, id {self.id}>"

    async def result(self) -> Any:
        """The value of a call, or its exception; of a range, the outcomes of its calls."""
        return await asyncio.shield(self.future)

    @property
    def id(self) -> int:
        return self.encoded.id

    @property
    def name(self) -> str:
        return self.encoded.name

    @property
    def title(self) -> str:
        return self.name if self.encoded.count == 1 else f"{self.name} x {self.encoded.count}"

    @property
    def head(self) -> int:
        """The id of the first call that has not been reported."""
        return self.encoded.id + len(self.outcomes.values)

    @property
    def left(self) -> int:
        return self.encoded.count - len(self.outcomes.values)

    @property
    def unreported(self) -> range:
        return range(self.head, self.encoded.id + self.encoded.count)

    # --- on its way ---

    def send_to(self, child: Child) -> None:
        """Send what has not been reported. A child that has gone says so by itself, soon."""
        self.was_sent = False
        if self.withdrawn:
            return
        rest = self.encoded.after(len(self.outcomes)) if self.outcomes else self.encoded
        try:
            child.send(calls.Message(self.id, (rest,)))
        except ChildGone:
            return
        self.was_sent = True

    def report(self, first_id: int, outcomes: Sequence[Outcome]) -> None:
        if first_id != self.head:
            return  # of an earlier run
        if not self.endings and not _has_interrupts(outcomes):
            self.outcomes.extend(outcomes)
            self.deaths = self.false_starts = 0
            return
        for outcome in outcomes:
            self._add(self._meant(outcome))

    def lost(self, running: int, cause: str) -> None:
        """Its worker died while the call `running` ran, if any. The later ones have never begun."""
        if self.left and self.was_sent and running < self.head:
            self._lost_on_the_way(cause)
        while self.left and self.was_sent and self.head <= running:
            if self.head in self.endings:
                self._add(self._meant(Interrupted()))
                continue
            self.deaths += 1
            if self.deaths <= self.options.retries:
                break
            self._add(Raised(WorkerDied(self._lost_text(cause), cause)))
        self.worker, self.was_sent = None, False
        while self.left and self.head in self.endings:
            self._add(self._meant(Interrupted()))

    def _lost_on_the_way(self, cause: str) -> None:
        """Not the call's fault, most likely; but what kills every process that reads it must not go on."""
        self.false_starts += 1
        if self.false_starts >= max(MAX_FALSE_STARTS, self.options.retries + 1):
            text = (
                f"{self.false_starts} processes in a row died before {self.name} began, the last one: {cause}"
            )
            self.fail(lambda _: WorkerDied(text, cause))

    def fail(self, why: Callable[[str], Exception]) -> None:
        """Let every call that has not been reported end like this."""
        while self.left:
            self._add(Raised(why(self.name)))

    def conclude(self) -> None:
        """Tell whoever waits."""
        if self.bell is not None:
            self.bell.cancel()
        if self.future.done():
            return
        if self.encoded.is_range:
            self.future.set_result(self.outcomes)
            return
        match self.outcomes.others.get(0):
            case None:
                self.future.set_result(self.outcomes.values[0])
            case Raised(exception):
                self.future.set_exception(exception)
            case _:
                raise AssertionError("interrupts have been given a meaning")

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.deaths = self.false_starts = 0

    def _meant(self, outcome: Outcome) -> Outcome:
        """What a call's end means. One that should have ended early did, whatever it said."""
        ending = self.endings.get(self.head) if self.endings else None
        if ending == "timeout":
            limit_s = self.options.timeout_s
            return Raised(CallTimeout(f"{self.name} ran longer than its timeout of {limit_s:g} s"))
        if ending == "cancel" or type(outcome) is Interrupted:
            return Raised(CallCancelled(f"{self.name} was cancelled while it ran"))
        return outcome

    def _lost_text(self, cause: str) -> str:
        again = f", {self.deaths} times" if self.deaths > 1 else ""
        return (
            f"the process that ran {self.name} died{again} ({cause}); what the call had done by then is not "
            "known. pool.options(retries=...) runs such a call again"
        )


def _has_interrupts(outcomes: Sequence[Outcome]) -> bool:
    if type(outcomes) is Outcomes:
        return bool(outcomes.others) and Interrupted in map(type, outcomes.others.values())
    return Interrupted in map(type, outcomes)
