"""How far a run is, and how long it still takes."""

from __future__ import annotations

from collections.abc import Sequence


class Progress:
    """Begins with what each sample should take; corrected by what those that are over have taken."""

    def __init__(self, expected_s: Sequence[float]) -> None:
        self._expected_s = expected_s
        self._done = 0
        self._took_s = 0.0

    @property
    def total(self) -> int:
        return len(self._expected_s)

    def took(self, seconds: float) -> None:
        self._done += 1
        self._took_s += seconds

    @property
    def left_s(self) -> float:
        done, left = sum(self._expected_s[: self._done]), sum(self._expected_s[self._done :])
        return left * (self._took_s / done if done else 1.0)


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
