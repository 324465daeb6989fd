"""Draws docs/loading.svg: two workers, the arena and a consumer, from what a real pool did.

    python docs/draw_loading.py [FILE]

One result takes long, one worker is killed, and the consumer pauses. Bodies write down when they ran.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
from loguru import logger

from omniq.data import WorkerPool, empty

MIB: Final = 1 << 20
ITEMS, ITEM_S, SLOW, SLOW_S = 24, 0.04, 3, 0.15
KILLED, PAUSE_AT, PAUSE_S, READ_S, EVERY_S = 17, 9, 0.35, 0.025, 0.004
ARENA: Final = 8 * MIB

WIDTH, LEFT, RIGHT, TOP, LANE = 860, 80, 16, 46, 30
ARENA_HEIGHT: Final = 90
INK, FAINT, WORK, LOST, MEMORY, READ = "#1f2933", "#9aa5b1", "#2b6cb0", "#c53030", "#d9822b", "#2f855a"


class Span(NamedTuple):
    """Somebody was busy with one item; `end` is None for a worker that was killed at it."""

    lane: int
    item: int
    begin: float
    end: float | None


class Run(NamedTuple):
    work: list[Span]
    reads: list[Span]
    arena: list[tuple[float, int]]
    killed_at: float
    seconds: float


def load(item: int, notes: str) -> object:
    def note(what: str) -> None:
        with open(notes, "a") as file:
            file.write(f"{what} {item} {os.getpid()} {time.monotonic()}\n")

    is_victim = item == KILLED and f"begin {item} " not in Path(notes).read_text()
    note("begin")
    if is_victim:
        signal.pause()
    array = empty(MIB, np.uint8)
    array[:] = item
    time.sleep(SLOW_S if item == SLOW else ITEM_S)
    note("end")
    return array


def run(notes: Path) -> Run:
    reads: list[Span] = []
    samples: list[tuple[float, int]] = []
    killed_at = 0.0
    is_over = threading.Event()
    with WorkerPool(2, arena=ARENA, preload=["numpy"]) as pool:
        zero = time.monotonic()

        def watch() -> None:
            nonlocal killed_at
            while not is_over.wait(EVERY_S):
                samples.append((time.monotonic() - zero, pool.arena_bytes))
                begun = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
                victim = next((int(pid) for what, item, pid, _ in begun if item == str(KILLED)), None)
                if victim is not None and not killed_at:
                    os.kill(victim, signal.SIGKILL)
                    killed_at = time.monotonic() - zero

        watching = threading.Thread(target=watch)
        watching.start()
        pool.submit_batch([partial(load, item, str(notes)) for item in range(ITEMS)])
        for item, array in enumerate(pool.results()):
            begin = time.monotonic() - zero
            assert array[0] == item
            time.sleep(PAUSE_S if item == PAUSE_AT else READ_S)
            reads.append(Span(0, item, begin, time.monotonic() - zero))
            del array
        is_over.set()
        watching.join()
        seconds = time.monotonic() - zero
    return Run(spans(notes.read_text(), zero), reads, samples, killed_at, seconds)


def spans(notes: str, zero: float) -> list[Span]:
    """What the bodies wrote down. A worker that replaces another has its lane."""
    lanes: dict[str, int] = {}
    found: list[Span] = []
    for line in notes.splitlines():
        what, item, pid, at = line.split()
        moment = float(at) - zero
        if pid not in lanes:
            dead = [span.lane for span in found if span.end is None and span.item == KILLED]
            lanes[pid] = len(lanes) if len(lanes) < 2 else dead[0]
        lane = lanes[pid]
        if what == "begin":
            found.append(Span(lane, int(item), moment, None))
        else:
            index = max(n for n, span in enumerate(found) if span.item == int(item) and span.lane == lane)
            found[index] = found[index]._replace(end=moment)
    return found


def text(x: float, y: float, words: str, *, anchor: str = "start", color: str = INK, size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}">'
        f"{escape(words)}</text>"
    )


class Page:
    def __init__(self, seen: Run) -> None:
        self.seen = seen
        self.arena_top = TOP + 2 * LANE + 34
        self.reader_top = self.arena_top + ARENA_HEIGHT + 34
        self.bottom = self.reader_top + LANE

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.seen.seconds

    def box(self, span: Span, top: float, color: str) -> list[str]:
        end = self.seen.killed_at if span.end is None else span.end
        left, width = self.x(span.begin), max(2.0, self.x(end) - self.x(span.begin))
        fill = LOST if span.end is None else color
        label = f"{span.item} ✗" if span.end is None else str(span.item)
        return [
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{LANE - 8}" rx="3" fill="{fill}"/>',
            text(left + width / 2, top + 15, label, anchor="middle", color="#ffffff", size=10),
        ]

    def workers(self) -> list[str]:
        lines = [text(LEFT, TOP - 14, "workers: each box is one result being made, with its number")]
        for lane in range(2):
            lines.append(text(LEFT - 8, TOP + lane * LANE + 16, f"worker {lane + 1}", anchor="end"))
        for span in self.seen.work:
            lines += self.box(span, TOP + span.lane * LANE, WORK)
        return lines

    def arena(self) -> list[str]:
        top, bottom = self.arena_top, self.arena_top + ARENA_HEIGHT

        def y(used: float) -> float:
            return bottom - ARENA_HEIGHT * used / ARENA

        points = " ".join(f"{self.x(at):.1f},{y(used):.1f}" for at, used in self.seen.arena)
        words = "arena: bytes lent to workers, not read yet, or looked at by the consumer"
        return [
            text(LEFT, top - 10, words),
            f'<polyline points="{LEFT},{bottom} {points} {self.x(self.seen.seconds):.1f},{bottom}" '
            f'fill="{MEMORY}" fill-opacity="0.35" stroke="{MEMORY}"/>',
            f'<path d="M{LEFT},{top}H{WIDTH - RIGHT}" stroke="{FAINT}" stroke-dasharray="4 3"/>',
            text(LEFT - 8, top + 5, "8 MiB", anchor="end"),
            text(LEFT - 8, bottom + 4, "0", anchor="end"),
        ]

    def reader(self) -> list[str]:
        lines = [
            text(LEFT, self.reader_top - 10, "consumer: results in the order in which they were asked for")
        ]
        for span in self.seen.reads:
            lines += self.box(span, self.reader_top, READ)
        for tenth in range(0, int(self.seen.seconds * 10) + 1, 2):
            at = tenth / 10
            lines.append(text(self.x(at), self.bottom + 14, f"{at:.1f} s", anchor="middle", color=FAINT))
        return lines

    def notes(self) -> list[str]:
        said = [
            f"result {SLOW} takes long: the results after it wait for it",
            f"the consumer pauses at result {PAUSE_AT}: unread results fill their share, workers stop",
            f"a worker is killed at result {KILLED}: another one makes it again, the order stays",
        ]
        return [text(LEFT, self.bottom + 44 + 20 * n, words) for n, words in enumerate(said)]

    def svg(self) -> str:
        height = self.bottom + 100
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" font-family="system-ui, sans-serif">'
        )
        body = [*self.workers(), *self.arena(), *self.reader(), *self.notes()]
        return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *body, "</svg>", ""])


def main(arguments: list[str]) -> None:
    logger.remove()
    file = Path(arguments[0]) if arguments else Path(__file__).with_name("loading.svg")
    with tempfile.TemporaryDirectory() as folder:
        seen = run(Path(folder) / "notes")
    file.write_text(Page(seen).svg(), encoding="utf-8")
    print(os.fspath(file))


if __name__ == "__main__":
    main(sys.argv[1:])
