"""Medians, spreads, percentiles, and ratios of what was measured in the same round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        known = list(values)
        return cls(statistics.median(known), min(known), max(known), len(known))


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def paired_ratio(over: Mapping[int, float], under: Mapping[int, float]) -> Spread | None:
    """How many times `under` is `over`, round by round: what slowed a whole round cancels out."""
    ratios = [over[n] / under[n] for n in over if under.get(n)]
    return Spread.of(ratios) if ratios else None
