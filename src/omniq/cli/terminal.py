"""The screen of `omniq top`: two tables that follow the store, and keys that change something in it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import ClassVar, Final, cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from omniq.cli.glance import Glance, glance
from omniq.cli.text import safe
from omniq.errors import OmniqError
from omniq.storage.base import BaseStorage
from omniq.task import TaskStatus

LOOK_EVERY_S: Final = 1.0
QUEUE_HEADS: Final = ("QUEUE", "STATE", *TaskStatus, "OLDEST DUE")
TASK_HEADS: Final = ("STATE", "TASK", "QUEUE", "FOR", "WORKER, ERROR OR WHY")
FIGURES: Final = {*TaskStatus, "OLDEST DUE", "FOR"}  # these line up at the right


class Top(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: auto; max-height: 8; padding: 0 1; }
    #summary.bad { color: $error; }
    #queues { height: auto; max-height: 40%; }
    #tasks { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause or resume the queue"),
        Binding("r", "retry", "Retry the task"),
        Binding("c", "cancel", "Cancel the task"),
        Binding("tab", "app.focus_next", "Other table"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, storage: BaseStorage) -> None:
        super().__init__()
        self._storage = storage
        self._seen: Glance | None = None
        self._looking = False
        self._to_cancel: str | None = None  # asked once; the same key again does it

    def compose(self) -> ComposeResult:
        yield Static(id="summary", markup=False)
        yield DataTable[Text](id="queues", cursor_type="row", zebra_stripes=True)
        yield DataTable[Text](id="tasks", cursor_type="row", zebra_stripes=True)
        yield Footer()

    async def on_mount(self) -> None:
        for name, heads in (("queues", QUEUE_HEADS), ("tasks", TASK_HEADS)):
            for head in heads:
                self._table(name).add_column(_cell(head, head), key=head)
        self._table("tasks").focus()
        self.set_interval(LOOK_EVERY_S, self._look)
        await self._look()

    # --- looking ---------------------------------------------------------------------------------

    async def _look(self) -> None:
        if self._looking:
            return
        self._looking = True
        summary = self.query_one("#summary", Static)
        try:
            seen = self._seen = await glance(self._storage)
        except OmniqError as exc:
            summary.update(safe(exc))
            summary.add_class("bad")
            return
        finally:
            self._looking = False
        summary.update("\n".join(seen.lines))
        summary.set_class(not seen.is_well, "bad")
        self._fill("queues", [(row.name, row.cells) for row in seen.queues])
        self._fill("tasks", [(row.id, row.cells) for row in seen.tasks])

    def _table(self, name: str) -> DataTable[Text]:
        return cast("DataTable[Text]", self.query_one(f"#{name}", DataTable))

    def _fill(self, name: str, rows: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """Show these rows; the cursor stays with what it was on, wherever that is now."""
        table, chosen = self._table(name), self._chosen(name)
        unique = dict(reversed(rows))  # a task that moved while we looked may be in two places
        table.clear()
        for key, cells in rows:
            if unique.get(key) is cells:
                # As it is: names are other people's, and must not be read as markup.
                heads = QUEUE_HEADS if name == "queues" else TASK_HEADS
                table.add_row(*map(_cell, heads, cells), key=key)
        if chosen is not None and chosen in unique:
            table.move_cursor(row=table.get_row_index(chosen))

    def _chosen(self, name: str) -> str | None:
        table = self._table(name)
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    # --- steering --------------------------------------------------------------------------------

    async def action_pause(self) -> None:
        name = self._chosen("queues")
        row = next((one for one in self._seen.queues if one.name == name), None) if self._seen else None
        if row is None:
            self.notify("no queue is chosen", markup=False)
        elif row.paused:
            await self._do(self._storage.resume(row.name), f"{row.name}: resumed")
        else:
            await self._do(self._storage.pause(row.name), f"{row.name}: paused")

    async def action_retry(self) -> None:
        if (task_id := self._chosen("tasks")) is not None:
            await self._do(self._storage.retry(task_id), f"{task_id}: will run again")

    async def action_cancel(self) -> None:
        task_id = self._chosen("tasks")
        if task_id is None:
            return
        if self._to_cancel != task_id:
            self._to_cancel = task_id
            self.notify(f"c again cancels {safe(task_id)}", markup=False)
            return
        self._to_cancel = None
        await self._do(self._storage.cancel(task_id), f"{task_id}: cancelled")

    async def _do(self, deed: Awaitable[object], done: str) -> None:
        try:
            await deed
        except OmniqError as exc:
            self.notify(safe(exc), severity="error", markup=False)
        else:
            self.notify(safe(done), markup=False)
        await self._look()


def _cell(head: str, text: str) -> Text:
    return Text(text, no_wrap=True, justify="right" if head in FIGURES else "left")
