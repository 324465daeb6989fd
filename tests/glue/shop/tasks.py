"""The tasks of a Django application, as its authors wrote them."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.glue.tasks_of_django import task

runs: list[str] = []


class OutOfStock(Exception):
    pass


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def greet(name: str) -> str:
    return f"hello {name}"


@task(queue_name="mail", priority=50)
def note(word: str) -> None:
    runs.append(word)


@task
def fails() -> None:
    raise OutOfStock("nothing left")


@task
def fails_plainly() -> None:
    raise ValueError("no")


@task(takes_context=True)
def with_context(context: Any, word: str) -> list[Any]:
    return [word, context.attempt, context.task_result.id]


@task
def returns_a_set() -> set[int]:
    return {1}


@task
def interrupts() -> None:
    raise KeyboardInterrupt("of its own")


@task
async def waits() -> None:
    runs.append("waiting")
    await asyncio.Event().wait()


not_a_task = "just text"
