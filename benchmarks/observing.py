"""What metrics and traces cost: the same drain with them on and off, alternated.

    python -m benchmarks.observing [--rounds N] [--tasks N] [--body async|sync] [--one-in N] [VARIANT ...]

Each sample is a process of its own with a SQLite file of its own: tasks that do nothing are put there, then
one worker with 100 slots ends them all. CPU is the process's, from the worker's start to its end, of all
threads. Variants take turns within a round; "of off" is the median of what each round says.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loguru import logger

from omniq import OmniQ
from omniq.storage import SQLiteStorage

SLOTS = 100
CHUNK = 10_000
LIMIT_S = 300.0
# What is on. "some traced": one in a hundred, or in --one-in. "no SDK": q.trace() without an exporter.
VARIANTS = ("off", "metrics", "traces, no SDK", "some traced", "every run traced", "metrics and traces")


async def amark() -> None:
    """Nothing: all that is measured is the work around it."""


def mark() -> None:
    """The same, in a thread."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="; ".join(VARIANTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--body", choices=("async", "sync"), default="async")
    parser.add_argument("--one-in", type=int, default=100)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if unknown := set(told.variants) - set(VARIANTS):
        parser.error(f"no variant is called {'; '.join(sorted(unknown))}; there are: {'; '.join(VARIANTS)}")
    if told.child is not None:
        print(json.dumps(sample(told.variants[0], told)))
        return
    variants = ["off", *(one for one in told.variants or VARIANTS if one != "off")]
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    for turn in range(told.rounds):
        first = turn % len(variants)  # nobody is always the last
        for variant in variants[first:] + variants[:first]:
            found[variant].append(_in_a_process(variant, told))
    _print(found, told)


def _in_a_process(variant: str, told: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="omniq-observing-") as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.observing",
            "--child",
            folder,
            "--tasks",
            str(told.tasks),
        ]
        command += ["--body", told.body, "--one-in", str(told.one_in), variant]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def _print(found: dict[str, list[dict[str, float]]], told: argparse.Namespace) -> None:
    samples = f"1 in {told.one_in} traced where some are, median of {len(found['off'])}"
    print(f"{told.tasks:,} tasks, {told.body} bodies, {SLOTS} slots, {samples}\n")
    print("| | tasks/s | of off | CPU µs/task | of off |")
    print("|---|---|---|---|---|")
    for variant, taken in found.items():
        cells = [f"{_median(taken, 'per_s'):,.0f}", f"{_against(found, variant, 'per_s'):.2f}"]
        cells += [f"{_median(taken, 'cpu_us'):.1f}", f"{_against(found, variant, 'cpu_us'):.2f}"]
        print(f"| {variant} | " + " | ".join(cells) + " |")


def _median(taken: list[dict[str, float]], figure: str) -> float:
    return statistics.median(sample[figure] for sample in taken)


def _against(found: dict[str, list[dict[str, float]]], variant: str, figure: str) -> float:
    """The median over the rounds: whatever else the machine does in a round meets both."""
    rounds = zip(found[variant], found["off"], strict=True)
    return statistics.median(ours[figure] / off[figure] for ours, off in rounds)


# --- one sample, in a process of its own ---------------------------------------------------------


def sample(variant: str, told: argparse.Namespace) -> dict[str, float]:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    return asyncio.run(_drained(variant, told))


async def _drained(variant: str, told: argparse.Namespace) -> dict[str, float]:
    function, tasks = amark if told.body == "async" else mark, told.tasks
    await _fill(variant, told, function)
    q = OmniQ(SQLiteStorage(told.child / "jobs.db"))
    q.task(name="mark")(function)
    if "trace" in variant:
        _trace(q, variant, told.one_in)
    worker = q.async_worker(concurrency=SLOTS).until_idle()
    if "metrics" in variant:
        worker.measured()
    gc.collect()  # what was loaded is looked through once, sooner or later; no variant is to pay for that
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    await worker.run()
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    counts = (await (await q.astorage()).counts())["default"]
    await q.aclose()
    assert {str(status): many for status, many in counts.items() if many} == {"SUCCESS": tasks}, counts
    return {"per_s": tasks / took_s, "cpu_us": 1e6 * cpu_s / tasks}


async def _fill(variant: str, told: argparse.Namespace, function: Callable[[], Any]) -> None:
    """Each task as if it was enqueued alone: with the header that the span of its enqueue leaves in it."""
    async with OmniQ(SQLiteStorage(told.child / "jobs.db")) as q:
        job = q.task(name="mark")(function)
        calls = [
            job.options(headers=_header(variant, n, told.one_in)).call() if "trace" in variant else job.call()
            for n in range(told.tasks)
        ]
        for first in range(0, told.tasks, CHUNK):
            await q.aenqueue_many(calls[first : first + CHUNK])


def _header(variant: str, n: int, one_in: int) -> dict[str, str]:
    recorded = variant == "every run traced" or n % one_in == 0
    if variant == "traces, no SDK":
        return {}
    return {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{recorded:02x}"}


def _trace(q: OmniQ, variant: str, one_in: int) -> None:
    """With the SDK as it is set up for production: spans are handed on in batches, in a thread."""
    if variant == "traces, no SDK":
        q.trace()
        return
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

    class Nowhere(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    sampler = ALWAYS_ON if variant == "every run traced" else ParentBased(TraceIdRatioBased(1 / one_in))
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    q.trace(provider)


if __name__ == "__main__":
    main()
