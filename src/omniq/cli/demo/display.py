"""How the demo looks: a live picture on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from omniq.cli.demo.scene import KINDS, Crew, Scene

PLAIN_EVERY_S: Final = 2.0
MOST_WORDS: Final = 8
OTHER_LINES: Final = 20  # everything in the picture but the words
BAR: Final = 16
DOTS: Final = 40
SPARKS: Final = " ▁▂▃▄▅▆▇█"
COLOURS: Final = {
    "PENDING": "yellow",
    "RUNNING": "cyan",
    "SUCCESS": "green",
    "FAILED": "red",
    "CANCELLED": "magenta",
}
NAMES: Final = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "SUCCESS": "succeeded",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
}


class Screen(Protocol):
    console: Console

    def show(self, scene: Scene) -> None: ...

    def say(self, text: str) -> None:
        """Something has just happened."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


def screen() -> Screen:
    console = Console(highlight=False)
    return LiveScreen(console) if console.is_terminal and not console.is_dumb_terminal else PlainScreen()


class PlainScreen:
    """A line when something happens, and one every couple of seconds."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, width=110, file=sys.stdout)
        self._started_at = time.monotonic()
        self._next_at = 0.0

    def show(self, scene: Scene) -> None:
        if scene.at_s >= self._next_at:
            self._next_at = scene.at_s + PLAIN_EVERY_S
            counts = "  ".join(f"{NAMES[name]} {count}" for name, count in scene.statuses.items())
            self.say(counts)

    def say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._started_at:6.1f} s  {text}\n")
        sys.stdout.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        return


class LiveScreen:
    """Redrawn in place; the last picture makes room for the closing table."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started_at = time.monotonic()
        self._places = max(3, min(MOST_WORDS, console.height - OTHER_LINES))
        self._words: deque[tuple[float, str]] = deque(maxlen=self._places)
        self._live = Live(console=console, refresh_per_second=10, transient=True)

    def show(self, scene: Scene) -> None:
        self._live.update(self.picture(scene))

    def say(self, text: str) -> None:
        self._words.append((time.monotonic() - self._started_at, text))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._live.stop()

    def picture(self, scene: Scene) -> RenderableType:
        parts = [
            _statuses(scene.statuses),
            Text(),
            _kinds(scene),
            Text(),
            _pace(scene.rates),
            *(_crew(one) for one in scene.crew),
            Text(),
            *(self._word(at_s, text) for at_s, text in self._words),
            *(Text() for _ in range(self._places - len(self._words))),
        ]
        return Panel(
            Group(*parts),
            title="[bold]OmniQ demo[/bold]",
            subtitle=f"{scene.at_s:.1f} s",
            border_style="blue",
            padding=(0, 2),
            width=min(84, self.console.width),
        )

    @staticmethod
    def _word(at_s: float, text: str) -> Text:
        return Text.assemble((f"{at_s:5.1f} s  ", "dim"), text, no_wrap=True, overflow="ellipsis")


def _statuses(statuses: dict[str, int]) -> RenderableType:
    grid = Table.grid(expand=True)
    for _ in statuses:
        grid.add_column(justify="center", ratio=1)
    grid.add_row(*(Text(f"{count:,}", style=f"bold {COLOURS[name]}") for name, count in statuses.items()))
    grid.add_row(*(Text(NAMES[name], style="dim") for name in statuses))
    return grid


def _kinds(scene: Scene) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    for kind, what in KINDS.items():
        enqueued, done = scene.enqueued.get(kind, 0), scene.done.get(kind, 0)
        amount = f"{done:,} runs" if kind == "pulse" else f"{done:,} / {enqueued:,}"
        grid.add_row(Text(kind, style="bold"), what, _bar(done, enqueued), amount if enqueued else "")
    return grid


def _bar(done: int, of: int) -> Text:
    full = min(BAR, BAR * done // of) if of else 0
    return Text.assemble(("━" * full, "green"), ("━" * (BAR - full), "bright_black"))


def _pace(rates: list[float]) -> Text:
    # The square root: the quiet part of the evening stays visible beside the burst.
    top = max(rates, default=0.0) ** 0.5 or 1.0
    sparks = "".join(SPARKS[round((len(SPARKS) - 1) * (rate**0.5 / top))] for rate in rates)
    now = rates[-1] if rates else 0.0
    return Text.assemble(("runs per second  ", "dim"), (f"{now:6,.0f}  ", "bold"), (sparks, "green"))


def _crew(one: Crew) -> Text:
    name = (f"worker {one.pid:<9} ", "dim")
    if one.killed:
        return Text.assemble(name, ("killed with SIGKILL", "bold red"))
    return Text.assemble(
        name, (f"{one.running:6} in flight  ", "bold"), ("•" * min(one.running, DOTS), "cyan")
    )
