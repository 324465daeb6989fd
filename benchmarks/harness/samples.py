"""What was measured: samples, failures, and the question "what did this system do in each round?"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.harness.stats import Spread


class Case(NamedTuple):
    """One thing that is measured again in every round."""

    measure: str
    system: str
    variant: str

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


@dataclass(frozen=True)
class Sample:
    case: Case
    round: int
    values: dict[str, float]


@dataclass(frozen=True)
class Failure:
    """A case that could not be measured; it is left out of the following rounds."""

    case: Case
    reason: str


@dataclass
class Record:
    """Everything that one run has measured, in order."""

    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def cases(self, measure: str) -> Iterator[Case]:
        yield from dict.fromkeys(sample.case for sample in self.samples if sample.case.measure == measure)

    def by_round(self, case: Case, metric: str) -> dict[int, float]:
        return {s.round: s.values[metric] for s in self.samples if s.case == case and metric in s.values}

    def spread(self, case: Case, metric: str) -> Spread | None:
        values = self.by_round(case, metric).values()
        return Spread.of(values) if values else None
