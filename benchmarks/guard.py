"""Says whether OmniQ has become slower: `python -m benchmarks.guard [--record] [STORE ...]`.

Rates differ from machine to machine, and on a shared one from hour to hour. How close OmniQ comes to what
its store allows, in the same round, differs far less. Those ratios are kept in guard.json; each may fall by
the loss that stands there before this fails. `--record` writes those of this run, for the stores measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.samples import Case, Record
from benchmarks.harness.stats import Spread, paired_ratio
from benchmarks.plan import QUICK
from benchmarks.reports import tables
from benchmarks.run import DISK, RESULTS, run
from benchmarks.systems import load_all
from benchmarks.tasks.measures import task_measures

KEPT = Path(__file__).with_name("guard.json")
STORES = ("sqlite", "postgres", "redis")
MEASURES = ("drain", "enqueue")
METRIC = "per_s"
PLAN = replace(QUICK, rounds=3)  # a median needs a third


class Pair(NamedTuple):
    """A case of ours, and the one of the limit that it is set against."""

    ours: Case
    limit: Case

    def __str__(self) -> str:
        return f"{self.ours} / {self.limit.system}"


def pairs(store: str) -> Iterator[Pair]:
    ours, limit = f"omniq-{store}", f"raw-{store}"
    for body in ("async", "sync"):
        yield Pair(Case("drain", ours, body), Case("drain", limit, "statements"))
    for face in ("in-flight", "bulk"):
        yield Pair(Case("enqueue", ours, face), Case("enqueue", limit, face))


@dataclass(frozen=True)
class Finding:
    pair: Pair
    kept: float | None  # None: nothing was recorded
    now: Spread | None  # None: this run could not measure it
    loss: float

    @property
    def least(self) -> float | None:
        return None if self.kept is None else self.kept * (1 - self.loss)

    @property
    def fails(self) -> bool:
        """What cannot be measured may have become slower as well."""
        return self.now is None or self.least is None or self.now.median < self.least

    @property
    def verdict(self) -> str:
        if self.now is None:
            return "NOT MEASURED"
        if self.least is None:
            return "NOT RECORDED"
        return "SLOWER" if self.fails else "holds"

    def row(self) -> list[str]:
        kept, least = ("" if value is None else tables.number(value, 2) for value in (self.kept, self.least))
        return [str(self.pair), kept, least, tables.shown(self.now, 2), self.verdict]


def findings(
    record: Record, stores: Sequence[str], kept: Mapping[str, float], loss: float
) -> Iterator[Finding]:
    for pair in (pair for store in stores for pair in pairs(store)):
        now = paired_ratio(record.by_round(pair.ours, METRIC), record.by_round(pair.limit, METRIC))
        yield Finding(pair, kept.get(str(pair)), now, loss)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.guard", description="Has OmniQ become slower?"
    )
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"only these of {', '.join(STORES)}")
    parser.add_argument("--record", action="store_true", help=f"write the ratios into {KEPT.name}")
    parser.add_argument("--scratch", type=Path, default=DISK, help="a folder on a real disk (%(default)s)")
    options = parser.parse_args(arguments)
    if unknown := [store for store in options.stores if store not in STORES]:
        parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(STORES)}")
    stores = options.stores or STORES
    names = [f"{kind}-{store}" for store in stores for kind in ("omniq", "raw")]
    results = run(
        PLAN, {name: load_all()[name] for name in names}, [task_measures()[name] for name in MEASURES],
        options.scratch, RESULTS, "python -m benchmarks.guard",
        {case for store in stores for pair in pairs(store) for case in pair},
    )  # fmt: skip
    said = json.loads(KEPT.read_text(encoding="utf-8"))
    found = list(findings(results.record, stores, said["ratios"], said["loss"]))
    print(tables.table(["ratio", "recorded", "at least", "this run", ""], [one.row() for one in found]))
    if options.record:
        write(KEPT, said, found)
    # What could not be measured was not recorded either: there the old ratio stands.
    wrong = [one for one in found if (one.now is None if options.record else one.fails)]
    return 1 if wrong else 0


def write(file: Path, said: Mapping[str, object], found: Sequence[Finding]) -> None:
    """What was measured now takes the place of what stood there; the rest stays."""
    ratios = dict(said["ratios"])  # type: ignore[call-overload]
    ratios |= {str(one.pair): round(one.now.median, 3) for one in found if one.now is not None}
    file.write_text(json.dumps({**said, "ratios": ratios}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
