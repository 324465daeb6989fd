"""What the pools run. A module of its own, with numpy, so that every pool imports the same in its workers."""

from __future__ import annotations

from typing import Any

import numpy as np


def same(value: Any) -> Any:
    """A call that does nothing."""
    return value


def an_array(mib: int) -> Any:
    return np.ones(mib * 2**20 // 8)
