"""The one place where an exception becomes a line on stderr and an exit code.

    1   OmniQ, or something below it, says why it cannot      2   the command was written wrongly
    130 Ctrl-C

A traceback is printed only with `--debug`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from omniq.cli.text import masked, safe
from omniq.errors import OmniqError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class CommandFailed(OmniqError):
    """The command cannot do what it was asked for; `exit_code` says whose fault that is."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class OmniqCommand(click.Command):
    """A command with `--debug`, wherever on the line it is written."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(_debug_option())


class OmniqGroup(click.Group):
    """Runs a command; whatever it raises ends here. A command may return its exit code."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(_debug_option())
        self.debug = False

    def main(self, *args: Any, **options: Any) -> NoReturn:
        options["standalone_mode"] = False
        self.debug = False
        sys.exit(self._guarded(lambda: super(OmniqGroup, self).main(*args, **options)))

    def _guarded(self, run: Callable[[], Any]) -> int:
        try:
            code = run()
        except NoArgsIsHelpError as exc:
            exc.show()
            return exc.exit_code
        except click.ClickException as exc:
            return self._say(exc.format_message(), exc.exit_code)
        except click.Abort:
            return self._say("interrupted", EXIT_INTERRUPTED)
        except CommandFailed as exc:
            return self._say(str(exc), exc.exit_code)
        except (OmniqError, OSError) as exc:
            return self._say(str(exc), EXIT_FAILED)
        except Exception as exc:
            hint = "" if self.debug else "; run it again with --debug to see where"
            return self._say(f"unexpected {type(exc).__name__}: {exc}{hint}", EXIT_FAILED)
        return code if isinstance(code, int) else 0

    def _say(self, message: str, code: int) -> int:
        if self.debug:
            click.echo(masked(traceback.format_exc()), err=True, nl=False)
        click.echo(f"omniq: {safe(message)}", err=True)
        return code


def debugging() -> bool:
    """Whether the command that runs now was started with `--debug`."""
    root = click.get_current_context().find_root().command
    return isinstance(root, OmniqGroup) and root.debug


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_note_debug,
        help="Show the traceback of what goes wrong.",
    )


def _note_debug(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    root = context.find_root().command
    if wanted and isinstance(root, OmniqGroup):
        root.debug = True
