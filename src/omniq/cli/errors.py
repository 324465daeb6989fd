"""The one place where an exception becomes a line on stderr and an exit code.

    1     OmniQ, or something below it, says why it cannot
    2     the command was written wrongly, or names an application that cannot be loaded
    130   Ctrl-C

Whether a refusal is 1 or 2 does not follow from its class: a missing folder is an `InvalidOption`, and so is
a queue name with a blank. What the words alone make impossible is `written_wrongly`.

A traceback is printed only with `--debug`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from omniq.cli.text import masked, safe
from omniq.errors import InvalidOption, OmniqError

if TYPE_CHECKING:
    import click

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class CommandFailed(OmniqError):
    """The command cannot do what it was asked for."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def written_wrongly() -> Generator[None]:
    """Around what only looks at the words of the command, and at nothing on this machine."""
    try:
        yield
    except InvalidOption as exc:
        raise CommandFailed(str(exc), EXIT_USAGE) from exc


def report(exc: BaseException, *, debug: bool) -> int:
    """Say what went wrong, on one line, and with which code to exit."""
    if debug:
        sys.stderr.write(masked("".join(traceback.format_exception(exc))))
    message, code = _explained(exc)
    sys.stderr.write(f"omniq: {safe(message)}\n")
    return code


def _explained(exc: BaseException) -> tuple[str, int]:
    import click

    match exc:
        case click.ClickException():
            return exc.format_message() + _where_to_look(exc), exc.exit_code
        case click.Abort():
            return "interrupted", EXIT_INTERRUPTED
        case ExceptionGroup():
            return _explained(exc.exceptions[0])
        case CommandFailed():
            return str(exc), exc.exit_code
        case OmniqError() | OSError():
            return str(exc), EXIT_FAILED
        case _:
            return f"unexpected {type(exc).__name__}: {exc} (--debug shows where)", EXIT_FAILED


def _where_to_look(exc: click.ClickException) -> str:
    """Behind what names something that is not there, or is missing, and not what to write instead."""
    import click

    if isinstance(exc, click.BadParameter) and not isinstance(exc, click.MissingParameter):
        return ""  # it says what is wrong with a value
    if not isinstance(exc, click.UsageError) or exc.ctx is None:
        return ""
    return f" See `{exc.ctx.command_path} --help`."
