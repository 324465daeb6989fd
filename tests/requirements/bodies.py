"""Bodies that a worker imports by their path, as an application's would be."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

HERE = __name__


def path(func: Any) -> str:
    return f"{HERE}.{func.__name__}"


def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


async def aecho(*args: Any, **kwargs: Any) -> list[Any]:
    await asyncio.sleep(0)
    return [list(args), kwargs]


def nothing() -> None:
    return None


def boom(message: str = "boom") -> None:
    raise ValueError(message)


async def aboom(message: str = "boom") -> None:
    raise ValueError(message)


def thread_name() -> str:
    return threading.current_thread().name


NOT_CALLABLE = 7
