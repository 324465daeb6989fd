"""A module for `preload`: the next child dies if the file that DIES_AT_BIRTH names is there, and removes it.

The template goes on only when that child is dead, so nobody can have spoken to it.
"""

import os

_flag = os.environ.get("DIES_AT_BIRTH", "")
_dying: list[bool] = []


def _before() -> None:
    _dying[:] = [os.path.exists(_flag)]


def _in_child() -> None:
    if any(_dying):
        os.unlink(_flag)
        os._exit(7)


def _in_template() -> None:
    if any(_dying):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)


if _flag:
    os.register_at_fork(before=_before, after_in_child=_in_child, after_in_parent=_in_template)
