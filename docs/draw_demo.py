"""Draws docs/demo.svg: `omniq demo` as it was, a picture every couple of seconds and its closing table.

    python docs/draw_demo.py [FILE]

The pictures are rendered by rich as a terminal would show them, and follow each other in one file, by a
style sheet alone: it plays wherever a picture may stand, and runs no script.
"""

import io
import re
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from omniq.cli.demo import run as demo
from omniq.cli.demo.display import LiveScreen
from omniq.cli.demo.scene import Scene

SECONDS: Final = 20.0
EVERY_S: Final = 2.0
SHOWN_S: Final = 1.2  # each picture
LAST_SHOWN_S: Final = 8.0  # the table at the end
WIDTH, HEIGHT = 88, 34


def terminal() -> Console:
    return Console(
        record=True, force_terminal=True, highlight=False, width=WIDTH, height=HEIGHT, file=io.StringIO()
    )


class Recorded(LiveScreen):
    """A screen that nobody looks at, and that keeps what it shows."""

    def __init__(self) -> None:
        super().__init__(terminal())
        self.frames: list[str] = []
        self._next_at = 0.0

    def show(self, scene: Scene) -> None:
        if scene.at_s >= self._next_at:
            self._next_at = scene.at_s + EVERY_S
            console = terminal()
            console.print(self.picture(scene))
            self.frames.append(drawn(console, len(self.frames)))

    def __enter__(self) -> "Recorded":
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def drawn(console: Console, number: int) -> str:
    svg = console.export_svg(title="omniq demo", unique_id=f"frame{number}", clear=True)
    # No font is fetched from elsewhere; the browser's own will do.
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)


def played(frames: list[str]) -> str:
    """All frames on top of each other, one visible at a time."""
    sizes = [tuple(map(float, re.findall(r'viewBox="0 0 (\S+) (\S+)"', frame)[0])) for frame in frames]
    width, height = (max(size[n] for size in sizes) for n in (0, 1))
    total_s = SHOWN_S * (len(frames) - 1) + LAST_SHOWN_S
    parts, rules, begin_s = [], [], 0.0
    for number, frame in enumerate(frames):
        last = number == len(frames) - 1
        end_s = begin_s + (LAST_SHOWN_S if last else SHOWN_S)
        first, then = 100 * begin_s / total_s, 100 * end_s / total_s
        before = "" if number == 0 else f"0% {{ opacity: 0 }} {first - 0.01:.2f}% {{ opacity: 0 }} "
        after = "" if last else f"{then:.2f}% {{ opacity: 0 }} 100% {{ opacity: 0 }} "
        shown = f"{first:.2f}% {{ opacity: 1 }} {then - 0.01:.2f}% {{ opacity: 1 }} "
        rules.append(f"@keyframes show{number} {{ {before}{shown}{after}}}")
        rules.append(f".show{number} {{ animation: show{number} {total_s:.1f}s steps(1) infinite }}")
        parts.append(f'<g class="show{number}">{_inner(frame, *sizes[number])}</g>')
        begin_s = end_s
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
    return "\n".join([head, "<style>", *rules, "</style>", *parts, "</svg>", ""])


def _inner(frame: str, width: float, height: float) -> str:
    return frame.replace("<svg ", f'<svg width="{width:g}" height="{height:g}" ', 1)


def main(target: Path) -> None:
    screen = Recorded()
    demo.screen = lambda: screen
    if not demo.run(SECONDS):
        raise SystemExit("the demo lost a task; no picture of that")
    closing = drawn(screen.console, len(screen.frames))
    target.write_text(played([*screen.frames, closing]), encoding="utf-8")
    print(f"{target}: {len(screen.frames)} pictures and the table, {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("demo.svg"))
