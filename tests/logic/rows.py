"""Rows for the tables: a task at rest, waiting, running and ended."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings

from omniq.task import Held, Run, RunOutcome, StoredTask, TaskError, TaskStatus

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
BOOM = TaskError("ValueError", "boom", "Traceback ...")
RESULT = b"encoded result"
# This folder has two seconds in all; tests/model is where examples are many.
FEW = settings(max_examples=30)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def waiting(**fields: Any) -> StoredTask:
    return StoredTask(
        "jobs.resize",
        b"encoded call",
        **{"id": "t", "enqueued_at": after(-60), "seq": 7, **fields},
    )


def running(**fields: Any) -> StoredTask:
    held = {"status": TaskStatus.RUNNING, "epoch": 4, "owner": "ann", "started_at": after(-5)}
    return waiting(**{**held, **fields})


def ended(status: TaskStatus, **fields: Any) -> StoredTask:
    over = {"status": status, "epoch": 4, "finished_at": after(-1), "result_status": status}
    return waiting(**{**over, "result_at": after(-1), **fields})


def held(epoch: int = 4) -> Held:
    return Held("t", epoch)


def closed_run(epoch: int, outcome: RunOutcome) -> Run:
    return Run(epoch, "ann", after(-5), after(-1), outcome)
