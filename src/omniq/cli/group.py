"""How every `omniq` command behaves: it takes `--debug`, may return its exit code, and fails in one line."""

from __future__ import annotations

import sys
from typing import Any, Final, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from omniq.cli.errors import report

LONGEST_SENTENCE: Final = 200


class OmniqCommand(click.Command):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(_debug_option())

    def get_short_help_str(self, limit: int = 45) -> str:
        """The whole first sentence: what is longer than a line is wrapped, so nothing need be cut."""
        return super().get_short_help_str(max(limit, LONGEST_SENTENCE))


class OmniqGroup(click.Group):
    """Whatever its commands raise ends here."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(_debug_option())
        self.debug = False

    def main(self, *args: Any, **options: Any) -> NoReturn:
        options["standalone_mode"] = False
        self.debug = False
        try:
            code = super().main(*args, **options)
        except NoArgsIsHelpError as exc:
            exc.show()
            sys.exit(exc.exit_code)
        except Exception as exc:
            sys.exit(report(exc, debug=self.debug))
        sys.exit(code if isinstance(code, int) else 0)


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
