"""The file of a run: a line of JSON about it, then one for every sample and every failure, as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from benchmarks.harness.machine import Noise
from benchmarks.harness.samples import Case, Failure, Record, Sample


@dataclass
class Results:
    """What a run has found so far; with a file, also written there."""

    about: dict[str, str]
    record: Record = field(default_factory=Record)
    noises: list[Noise] = field(default_factory=list)
    file: TextIO | None = None

    def begin(self, plan: Mapping[str, Any]) -> None:
        self._write(about=self.about, plan=plan)

    def add(self, sample: Sample, noise: Noise) -> None:
        self.record.samples.append(sample)
        self.noises.append(noise)
        self._write(**sample.case._asdict(), round=sample.round, values=sample.values, noise=noise._asdict())

    def fail(self, failure: Failure) -> None:
        self.record.failures.append(failure)
        self._write(failed=failure.case._asdict(), reason=failure.reason)

    def cut(self, reason: str) -> None:
        self.about["cut short"] = reason
        self._write(cut=reason)

    def _write(self, **line: Any) -> None:
        if self.file is not None:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def read(file: Path) -> Results:
    """What an earlier run has written."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    results = Results(lines[0]["about"])
    for line in lines[1:]:
        if "failed" in line:
            results.fail(Failure(Case(**line["failed"]), line["reason"]))
        elif "cut" in line:
            results.cut(line["cut"])
        else:
            case = Case(line["measure"], line["system"], line["variant"])
            results.add(Sample(case, line["round"], line["values"]), Noise(**line["noise"]))
    return results
