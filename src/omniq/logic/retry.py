"""How long to wait before the next attempt. The only place with the backoff formula."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from omniq.task import Duration, Failed, TaskError, seconds

JITTER_SHARE = 0.1
# 2**64 seconds is beyond every cap; a larger exponent would only cost time.
MAX_EXPONENT = 64
LOSS_BASE_S = 1.0
MAX_LOSS_DELAY_S = 3600.0
UNSERVED_BASE_S = 5.0
MAX_UNSERVED_DELAY_S = 60.0


class RetryPolicy(Struct, frozen=True):
    """`base_s` doubled per attempt, up to a tenth more, never over `max_s`; or no `retries` at all."""

    base_s: float = 1.0
    max_s: float = 3600.0
    retries: bool = True

    def allows(self, attempts: int, max_retries: int) -> bool:
        """`attempts` counts the failures before this one, so k retries are k + 1 runs."""
        return self.retries and attempts < max_retries

    def delay_s(self, attempts: int, jitter: float) -> float:
        """Seconds until the next run; `jitter` is chance in [0, 1)."""
        assert 0 <= jitter < 1
        delay_s = doubled(self.base_s, attempts)
        return min(delay_s * (1 + JITTER_SHARE * jitter), self.max_s)


class RetryRules(Struct, frozen=True):
    """What a task says about its own retries. Exceptions go by the names of their classes."""

    retry_on: frozenset[str] | None = None  # only these are retried; None: whatever is raised
    give_up_on: frozenset[str] = frozenset()  # these never are
    delay: float | Callable[[int, TaskError], Duration] | None = None  # None: the backoff of the worker

    def judged(self, failed: Failed, attempt: int) -> Failed:
        """The failure of the run `attempt`, as these rules see it.

        What the body itself asked for, with `Retry` or `GiveUp`, counts before them.
        """
        if failed.final:
            return failed
        if self._gives_up(failed.kinds):
            return replace(failed, final=True)
        if failed.delay_s is not None or self.delay is None:
            return failed
        delay = self.delay(attempt, failed.error) if callable(self.delay) else self.delay
        return replace(failed, delay_s=max(0.0, seconds(delay, "retry_delay")))

    def _gives_up(self, kinds: tuple[str, ...]) -> bool:
        if not kinds:
            return False
        return not self.give_up_on.isdisjoint(kinds) or (
            self.retry_on is not None and self.retry_on.isdisjoint(kinds)
        )


NO_RULES = RetryRules()


def doubled(base_s: float, times: int) -> float:
    return base_s * 2.0 ** min(times, MAX_EXPONENT)


def unserved_delay_s(epoch: int) -> float:
    """How long a task that a worker may not run goes back: seconds at first, in the end a minute."""
    return min(doubled(UNSERVED_BASE_S, max(epoch - 1, 0)), MAX_UNSERVED_DELAY_S)


def loss_delay_s(losses: int) -> float:
    """The pause after a worker died: none the first time, then doubling from one second."""
    if losses == 0:
        return 0.0
    return min(doubled(LOSS_BASE_S, losses - 1), MAX_LOSS_DELAY_S)
