"""The pages that people read, taken apart: code blocks, commands, links, headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]

FENCE = re.compile(r"^```(?P<language>.*)$")
FILE_NAME = re.compile(r"^# (?P<name>\w+\.py)$")
NO_RUN_REASON = re.compile(r"^<!-- no-run: \S.*-->$")
PRINTED = re.compile(r"  # -> (?P<text>.+)$")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (?P<text>.+)$")


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is the number of its first line of content, counted from 1."""

    language: str
    line: int
    lines: tuple[str, ...]
    line_before: str

    @property
    def runs(self) -> bool:
        """A comment above it, which the site does not show, says why it does not."""
        return NO_RUN_REASON.match(self.line_before) is None

    @property
    def file_name(self) -> str | None:
        """A block that begins with `# tasks.py` is that file."""
        match = FILE_NAME.match(self.lines[0]) if self.lines else None
        return None if match is None else match["name"]

    @property
    def printed(self) -> list[str]:
        """What the comments behind its lines say that it prints."""
        return [match["text"] for line in self.lines if (match := PRINTED.search(line))]

    @property
    def commands(self) -> list[str]:
        return [line[2:] for line in self.lines if line.startswith("$ ")]


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines()

    @cached_property
    def blocks(self) -> list[Block]:
        return list(_blocks(self.lines))

    @cached_property
    def prose(self) -> list[str]:
        """The lines outside of blocks."""
        inside = {
            number
            for block in self.blocks
            for number in range(block.line - 1, block.line + len(block.lines) + 1)
        }
        return [line for number, line in enumerate(self.lines, 1) if number not in inside]

    @property
    def python(self) -> list[Block]:
        return [block for block in self.blocks if block.language == "python"]

    @property
    def commands(self) -> list[str]:
        return [
            command
            for block in self.blocks
            if block.language in ("console", "sh", "shell", "bash")
            for command in block.commands
        ]

    @property
    def links(self) -> list[str]:
        return [match["target"] for line in self.prose for match in LINK.finditer(line)]

    @property
    def anchors(self) -> set[str]:
        return {anchor(match["text"]) for line in self.prose if (match := HEADING.match(line))}

    def script(self, blocks: list[Block]) -> str:
        """These blocks as a program whose line numbers are those of the page."""
        lines = [""] * len(self.lines)
        for block in blocks:
            lines[block.line - 1 : block.line - 1 + len(block.lines)] = block.lines
        return "\n".join(lines) + "\n"


def anchor(heading: str) -> str:
    """How a heading is linked to, by GitHub's rule."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def _blocks(lines: list[str]) -> Iterator[Block]:
    start: int | None = None
    language = ""
    for number, line in enumerate(lines, 1):
        match = FENCE.match(line)
        if match is None:
            continue
        if start is None:
            start, language = number, match["language"]
        else:
            before = lines[start - 2] if start >= 2 else ""
            yield Block(language, start + 1, tuple(lines[start : number - 1]), before)
            start = None
    assert start is None, f"the block at line {start} is not closed"


README = Page(ROOT / "README.md")
PAGES = [
    README,
    Page(ROOT / "CONTRIBUTING.md"),
    Page(ROOT / "CHANGELOG.md"),
    *(Page(path) for path in sorted((ROOT / "docs").rglob("*.md"))),
]


def page(name: str) -> Page:
    return Page(ROOT / name)
