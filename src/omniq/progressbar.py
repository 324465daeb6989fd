"""A progress bar for people who wait: `handle.wait(show=True)`. On stderr, so that pipes stay clean."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from omniq.task import Task, TaskStatus


class ProgressBar:
    """One line: what runs, how far it is, for how long. It stands still where there is no terminal."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._line = self._progress.add_task("waiting", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, task: Task) -> None:
        done, total = task.progress or (0.0, None)
        if task.status is TaskStatus.SUCCESS:
            # What the body said last may not have reached the store before its end did.
            done = total = total if total is not None else max(done, 1.0)
        name = Text(task.func_path.rpartition(".")[2]).plain
        self._progress.update(
            self._line, description=f"{name} {task.status.lower()}", completed=done, total=total
        )
