"""Draws docs/burst.svg: a pool that gets no calls, then fifty at once, then none.

    python docs/draw_burst.py [FILE]

Workers and reasons are the pool's own scaling trace; calls are what its status said meanwhile.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from loguru import logger

from omniq.pool import WorkerPool

CALLS, CALL_S = 50, 0.05
BEFORE_S, SCALEDOWN_S, EVERY_S = 0.4, 1.0, 0.01
MAX_WORKERS: Final = 4

WIDTH, LEFT, RIGHT = 760, 60, 20
CALLS_TOP, CALLS_HEIGHT = 50, 130
WORKERS_TOP, WORKERS_HEIGHT = 230, 100
NOTES_TOP, NOTE_HEIGHT = 385, 20
INK, FAINT, WAITING, RUNNING, WORKERS = "#1f2933", "#9aa5b1", "#d9822b", "#2b6cb0", "#2f855a"


class Sample(NamedTuple):
    at: float
    waiting: int
    running: int


class Step(NamedTuple):
    """From here on there should be this many workers, and why."""

    at: float
    workers: int
    reason: str


async def burst() -> tuple[list[Sample], list[Step]]:
    samples: list[Sample] = []
    async with WorkerPool(0, MAX_WORKERS, scaledown_wait=SCALEDOWN_S) as pool:
        begin = time.monotonic()

        async def sample() -> None:
            while True:
                status = pool.status()
                samples.append(Sample(time.monotonic() - begin, status.waiting, status.running))
                await asyncio.sleep(EVERY_S)

        sampling = asyncio.ensure_future(sample())
        await asyncio.sleep(BEFORE_S)
        await asyncio.gather(*(pool.submit(time.sleep, CALL_S) for _ in range(CALLS)))
        while pool.status().workers:  # noqa: ASYNC110 - a pool does not say when the last one has gone
            await asyncio.sleep(EVERY_S)
        await asyncio.sleep(BEFORE_S)
        sampling.cancel()
        # A decision holds until the next one; what was seen before it is what led to it.
        trace = pool.scaling_trace()
        steps = [Step(one.at - begin, one.wanted.workers, one.wanted.reason) for one in trace]
    return samples, [Step(max(0.0, step.at), step.workers, step.reason) for step in steps]


class Scale(NamedTuple):
    """From seconds and counts to places on the page."""

    seconds: float
    top: float
    height: float
    most: int

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.seconds

    def y(self, count: float) -> float:
        return self.top + self.height * (1 - count / self.most)

    def line(self, points: list[tuple[float, int]], color: str) -> str:
        """A staircase: a count holds until it changes."""
        path, last = [f"M{self.x(points[0][0]):.1f},{self.y(points[0][1]):.1f}"], points[0][1]
        for at, count in points[1:]:
            if count != last:
                path.append(f"H{self.x(at):.1f}V{self.y(count):.1f}")
                last = count
        path.append(f"H{self.x(self.seconds):.1f}")
        return f'<path d="{"".join(path)}" fill="none" stroke="{color}" stroke-width="2"/>'

    def axes(self, title: str) -> list[str]:
        right, bottom = WIDTH - RIGHT, self.top + self.height
        lines = [text(LEFT, self.top - 12, title, weight="bold")]
        for count in (0, self.most):
            lines.append(
                f'<path d="M{LEFT},{self.y(count):.1f}H{right}" stroke="{FAINT}" stroke-width="0.5"/>'
            )
            lines.append(text(LEFT - 8, self.y(count) + 4, str(count), anchor="end"))
        for second in range(int(self.seconds) + 1):
            lines.append(text(self.x(second), bottom + 16, f"{second} s", anchor="middle", color=FAINT))
        return lines


def text(x: float, y: float, words: str, *, anchor: str = "start", color: str = INK, weight: str = "") -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"{bold}>{escape(words)}</text>'


def picture(samples: list[Sample], steps: list[Step]) -> str:
    seconds = samples[-1].at
    calls = Scale(seconds, CALLS_TOP, CALLS_HEIGHT, CALLS)
    workers = Scale(seconds, WORKERS_TOP, WORKERS_HEIGHT, MAX_WORKERS)
    kept = [step for n, step in enumerate(steps) if n == 0 or step.workers != steps[n - 1].workers]
    body = [
        *calls.axes("calls"),
        calls.line([(sample.at, sample.waiting) for sample in samples], WAITING),
        calls.line([(sample.at, sample.running) for sample in samples], RUNNING),
        text(WIDTH - RIGHT - 110, CALLS_TOP - 12, "waiting", color=WAITING),
        text(WIDTH - RIGHT - 50, CALLS_TOP - 12, "running", color=RUNNING),
        *workers.axes("workers, as the autoscaler wants them"),
        workers.line([(0.0, 0), *((step.at, step.workers) for step in kept)], WORKERS),
    ]
    for number, step in enumerate(kept):
        words = f"{step.at:5.2f} s   {step.workers} wanted: {step.reason}"
        body.append(text(LEFT, NOTES_TOP + number * NOTE_HEIGHT, words))
    height = NOTES_TOP + len(kept) * NOTE_HEIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="13">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *body, "</svg>", ""])


def main(arguments: list[str]) -> None:
    logger.remove()
    file = Path(arguments[0]) if arguments else Path(__file__).with_name("burst.svg")
    samples, steps = asyncio.run(burst())
    file.write_text(picture(samples, steps), encoding="utf-8")
    print(os.fspath(file))


if __name__ == "__main__":
    main(sys.argv[1:])
