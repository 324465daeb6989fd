"""What a measure is: which cases a system has, and how one sample of a case is taken.

One sample is a fresh folder, fresh processes, numbers. Nothing here knows a particular system.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.harness.bench import Bench
from benchmarks.plan import Plan
from benchmarks.systems.base import Group, System

START_LIMIT_S = 20.0  # from the start of a worker process to its first task
ANSWER_LIMIT_S = 60.0  # beyond the bound of the load itself

Values = dict[str, float]


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    digits: int = 0
    compared: bool = False  # it is set against the others


class Measure(ABC):
    group: ClassVar[Group] = "tasks"
    name: ClassVar[str]
    title: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    buys: ClassVar[bool] = False  # told beside the figures: what becomes of a task, and of its result

    @abstractmethod
    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        """The cases of `system`, in the order in which they are measured; none where it has no answer."""

    @abstractmethod
    def rounds(self, plan: Plan) -> int: ...

    def expected_s(self, plan: Plan) -> float:
        """What one sample takes, roughly: for the estimate at the beginning."""
        return 1.2 + plan.peer_s

    @abstractmethod
    def take(self, bench: Bench, system: System, variant: str) -> Values:
        """One sample."""
