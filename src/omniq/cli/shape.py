"""A task as people and programs read it. Arguments and headers are shown only where that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from omniq.cli.output import ago
from omniq.cli.text import masked
from omniq.task import Run, Task, TaskError, TaskStatus, shown

_PLAIN = (
    "id", "func_path", "status", "queue", "priority", "eta", "expires_at", "interval", "timeout", "attempts",
    "max_retries", "losses", "max_losses", "epoch", "owner", "cancel_requested", "unique_key", "progress",
    "enqueued_at", "started_at", "finished_at",
)  # fmt: skip


def state_of(task: Task) -> str:
    """The status, and the word for it that is never stored."""
    match task.status:
        case TaskStatus.PENDING if task.attempts or task.losses or task.suspicions:
            return "PENDING (retrying)"
        case TaskStatus.PENDING if task.eta is not None and task.eta > datetime.now(UTC):
            return "PENDING (scheduled)"
        case TaskStatus.RUNNING if task.cancel_requested:
            return "RUNNING (cancelling)"
        case _:
            return str(task.status)


# --- for programs --------------------------------------------------------------------------------


def as_dict(task: Task, *, with_args: bool = False) -> dict[str, Any]:
    shape: dict[str, Any] = {name: builtins(getattr(task, name)) for name in _PLAIN}
    shape["error"] = error_as_dict(task.error)
    if with_args:
        shape |= {"args": builtins(task.args), "kwargs": builtins(task.kwargs), "headers": task.headers}
    return shape


def run_as_dict(run: Run) -> dict[str, Any]:
    fields = ("epoch", "owner", "started_at", "finished_at", "outcome")
    return {name: builtins(getattr(run, name)) for name in fields} | {"error": error_as_dict(run.error)}


def error_as_dict(error: TaskError | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {
        "type": error.type,
        "message": masked(error.message),
        "kind": error.kind,
        "traceback": masked(error.traceback),
    }


def builtins(value: Any) -> Any:
    """What JSON can say, as it is; everything else as Python would write it."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=repr)
    except (TypeError, ValueError, RecursionError):
        return shown(value, 500)


# --- for people ----------------------------------------------------------------------------------


def as_pairs(task: Task, *, with_args: bool = False) -> Iterator[tuple[str, str]]:
    yield "task", task.id
    yield "function", task.func_path
    yield "status", state_of(task)
    yield "queue", f"{task.queue}, priority {task.priority}"
    for name, moment in (
        ("enqueued", task.enqueued_at),
        ("due", None if task.status.final else task.eta),
        ("expires", task.expires_at),
        ("started", task.started_at),
        ("finished", task.finished_at),
    ):
        if moment is not None:
            yield name, _moment(moment)
    yield (
        "runs",
        (
            f"{task.epoch}; {task.attempts} failed of {task.max_retries} retries and one, "
            f"{task.losses} lost of {task.max_losses}"
        ),
    )
    yield from _sometimes(task)
    yield from _call(task, with_args)


def _sometimes(task: Task) -> Iterator[tuple[str, str]]:
    if task.interval is not None:
        yield "interval", f"every {task.interval:g} s"
    if task.timeout is not None:
        yield "timeout", f"{task.timeout:g} s"
    if task.owner is not None:
        yield "worker", task.owner
    if task.unique_key is not None:
        yield "unique key", task.unique_key
    if task.progress is not None:
        done, total = task.progress
        yield "progress", f"{done:g}" if total is None else f"{done:g} of {total:g}"
    if task.error is not None:
        yield "error", f"{task.error} ({task.error.kind})"


def _call(task: Task, with_args: bool) -> Iterator[tuple[str, str]]:
    if not with_args:
        yield "arguments", "hidden; add --args to see them"
        return
    named = [f"{name}={value!r}" for name, value in task.kwargs.items()]
    yield "arguments", ", ".join([repr(value) for value in task.args] + named) or "none"
    if task.headers:
        yield "headers", repr(task.headers)


def run_as_pairs(run: Run) -> Iterator[tuple[str, str]]:
    why = "" if run.error is None else f": {run.error}"
    took = ""
    if run.started_at is not None and run.finished_at is not None:
        took = f" after {(run.finished_at - run.started_at).total_seconds():.3f} s"
    yield f"run {run.epoch}", f"{run.outcome}{took} on {run.owner or 'an unknown worker'}{why}"


def _moment(moment: datetime) -> str:
    return f"{moment.isoformat(sep=' ', timespec='milliseconds')} ({ago(moment)})"
