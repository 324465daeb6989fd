"""docs/cli.md has every command and every option, and no other; README's commands exist."""

import re
import shlex

import click
import pytest

from omniq.cli import main
from tests.docs.pages import PAGES, Page, page

HEADING = re.compile(r"^## omniq (?P<command>[a-z]+)$")
# Every command has these, and the page says so once.
COMMON = {"--help", "-h", "--debug"}
NAMES = sorted(main.commands)


def sections(cli: Page) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in cli.lines:
        if match := HEADING.match(line):
            lines = found[match["command"]] = []
        lines.append(line)
    return found


def options_of(command: click.Command) -> set[str]:
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    return {name for option in options for name in option.opts} - COMMON


def documented(lines: list[str]) -> set[str]:
    return {match[1] for line in lines if (match := re.match(r"^\| `(--[a-z-]+)`", line))}


def test_every_command_has_its_section() -> None:
    assert sorted(sections(page("docs/cli.md"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_section_lists_the_options_of_its_command(name: str) -> None:
    lines = sections(page("docs/cli.md")).get(name, [])
    assert documented(lines) == options_of(main.commands[name])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_pages_name_exist(page: Page) -> None:
    """Also in the middle of a sentence: `omniq retry ID`."""
    named = set(re.findall(r"`omniq ([a-z][a-z-]*)", "\n".join(page.lines)))
    assert named <= set(NAMES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_pages_give_can_be_parsed(page: Page) -> None:
    for command in page.commands:
        program, *words = shlex.split(command, comments=True)
        if program != "omniq":
            continue
        name, *arguments = words
        main.commands[name].make_context(name, arguments)  # raises what click has to say
