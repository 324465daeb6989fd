"""Says who waits for whom: the consumer for the loader, or the loader for the consumer. Pure."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

# Below this share of waiting, a faster loader could not make the whole noticeably faster.
NOTICED: Final = 0.1


class Statistics(Struct, frozen=True):
    """One epoch, so far. `waited_s` is what the consumer spent in waiting for batches."""

    epoch: int
    batches: int
    samples: int
    elapsed_s: float
    waited_s: float
    first_s: float  # of which for the first batch
    num_workers: int
    left_out: int = 0
    restarts: int = 0

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def waiting(self) -> float:
        """The share of time, after the first batch, in which the consumer waited."""
        elapsed_s = self.elapsed_s - self.first_s
        return (self.waited_s - self.first_s) / elapsed_s if elapsed_s > 0 and self.batches > 1 else 0.0

    @property
    def bottleneck(self) -> Literal["loader", "consumer"]:
        return "loader" if self.waiting > NOTICED else "consumer"

    def __str__(self) -> str:
        faults = f", {self.left_out} left out" if self.left_out else ""
        faults += f", {self.restarts} workers replaced" if self.restarts else ""
        return (
            f"epoch {self.epoch}: {self.samples:,} samples in {self.batches:,} batches, "
            f"{self.samples_per_s:,.0f}/s, the first after {self.first_s:.2f} s{faults}; "
            f"{self.waiting:.0%} of the time waiting for data: {_advice(self.bottleneck, self.num_workers)}"
        )


def _advice(bottleneck: str, num_workers: int) -> str:
    if bottleneck == "consumer":
        return "the consumer is the bottleneck"
    if num_workers == 0:
        return "the loader is the bottleneck, num_workers=2 would load meanwhile"
    return f"the loader is the bottleneck with {num_workers} worker{'s' if num_workers > 1 else ''}"
