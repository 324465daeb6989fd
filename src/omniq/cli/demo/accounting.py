"""Every task of the demo, held against the ledger: what was enqueued, and what became of it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from omniq.cli.demo.ledger import Entry, Word
from omniq.cli.demo.scene import KINDS
from omniq.task import Task, TaskStatus

EXPECTED: Final = dict.fromkeys(KINDS, TaskStatus.SUCCESS) | {
    "hopeless": TaskStatus.FAILED,
    "pulse": TaskStatus.CANCELLED,
    "marathon": TaskStatus.CANCELLED,
}
# Their latency says how fast an idle worker is woken; a burst's only how long its queue was.
PROMPT: Final = ("fetch", "resize", "flaky")
MOST_COMPLAINTS: Final = 10


class Row(Struct):
    """The tasks of one kind."""

    enqueued: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    run_again: int = 0
    lost: int = 0
    runs: int = 0


class Account(Struct):
    rows: dict[str, Row]
    complaints: list[str] = field(default_factory=list[str])
    latencies_ms: list[float] = field(default_factory=list[float])
    facts: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def is_complete(self) -> bool:
        return not self.complaints and not any(row.lost for row in self.rows.values())

    @property
    def total(self) -> Row:
        names = Row.__struct_fields__
        return Row(*(sum(getattr(row, name) for row in self.rows.values()) for name in names))


def account(entries: Sequence[Entry], tasks: Sequence[Task], facts: Mapping[str, float]) -> Account:
    """Hold the store (`tasks`) against the ledger (`entries`)."""
    result = Account({kind: Row() for kind in KINDS}, facts=dict(facts))
    stored = {task.id: task for task in tasks}
    by_task: dict[str, list[Entry]] = {}
    for entry in entries:
        by_task.setdefault(entry.task_id, []).append(entry)
    for task_id, story in by_task.items():
        _account_one(result, task_id, story, stored.get(task_id))
    for task_id in stored.keys() - by_task.keys():
        result.complaints.append(f"{task_id} is in the store, and nobody enqueued it")
    if facts.get("exit_code"):
        result.complaints.append(f"`omniq worker` ended with exit code {facts['exit_code']:.0f}")
    return result


def _account_one(result: Account, task_id: str, story: list[Entry], task: Task | None) -> None:
    kind, words = story[0].kind, Counter(entry.word for entry in story)
    row = result.rows[kind]
    row.enqueued += words[Word.ENQUEUED]
    row.runs += words[Word.BEGUN]
    if words[Word.ENQUEUED] != 1:
        result.complaints.append(f"{task_id} ran, and nobody enqueued it")
        return
    if task is None or not task.status.final or _ended_by_nobody(task, words):
        row.lost += 1
        return
    if task.status is not EXPECTED[kind]:
        result.complaints.append(f"{task_id} ({kind}) is {task.status}: {task.error}")
    row.succeeded += task.status is TaskStatus.SUCCESS
    row.failed += task.status is TaskStatus.FAILED
    row.cancelled += task.status is TaskStatus.CANCELLED
    row.retried += kind == "flaky" and words[Word.FAILED] > 0
    if task.losses or task.suspicions:
        row.run_again += 1
        if story[-1].pid == result.facts.get("killed_pid"):
            result.complaints.append(f"{task_id} ({kind}) died with its process, and nobody ran it again")
    if kind in PROMPT:
        result.latencies_ms.append(_latency_ms(story))


def _ended_by_nobody(task: Task, words: Counter[Word]) -> bool:
    """A success that no body knows of."""
    return task.status is TaskStatus.SUCCESS and not words[Word.ENDED]


def _latency_ms(story: list[Entry]) -> float:
    enqueued = next(entry.at_s for entry in story if entry.word is Word.ENQUEUED)
    begun = min(entry.at_s for entry in story if entry.word is Word.BEGUN)
    return (begun - enqueued) * 1000


# --- the closing table ---------------------------------------------------------------------------


def print_account(result: Account, console: Console) -> None:
    table = Table(
        title="What became of every task",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("kind", no_wrap=True)
    for name in ("enqueued", "succeeded", "failed", "cancelled", "retried", "run again", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for kind, row in result.rows.items():
        table.add_row(kind, *_cells(row))
    table.add_section()
    table.add_row("all", *_cells(result.total), style="bold")
    console.print()
    console.print(table)
    console.print(_figures(result))
    for complaint in result.complaints[:MOST_COMPLAINTS]:
        console.print(f"[red]unaccounted:[/red] {escape(complaint)}")
    console.print(
        "[bold green]Every task is accounted for."
        if result.is_complete
        else f"[bold red]{result.total.lost} tasks lost, {len(result.complaints)} unaccounted for."
    )


def _cells(row: Row) -> list[str]:
    counts = (row.enqueued, row.succeeded, row.failed, row.cancelled, row.retried, row.run_again)
    cells = [f"{count:,}" if count else "·" for count in counts]
    return [*cells, f"[bold red]{row.lost:,}" if row.lost else "[green]0"]


def _figures(result: Account) -> Table:
    facts, total = result.facts, result.total
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_row("in all", f"{total.enqueued:,} tasks, {total.runs:,} runs, {facts['seconds']:.1f} s")
    grid.add_row(
        "burst",
        f"{facts['burst_per_s']:,.0f} tasks a second run, {facts['enqueue_per_s']:,.0f} a second enqueued",
    )
    if len(result.latencies_ms) > 1:
        cuts = statistics.quantiles(result.latencies_ms, n=1000, method="inclusive")
        shown = ", ".join(f"p{part} {cuts[part * 10 - 1]:.1f} ms" for part in (50, 95, 99))
        grid.add_row("latency", f"{shown}, from enqueue to start")
    grid.add_row(
        "killed",
        f"{total.run_again} tasks ran again within {facts['taken_over_s'] * 1000:.0f} ms; "
        f"the process was replaced after {facts['replaced_s']:.1f} s",
    )
    return grid
