"""An application's tasks, as they would stand in a module of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from omniq import Context, GiveUp, OmniQ


class Made:
    """An application with a few tasks on any store."""

    def __init__(self, where: Any, **options: Any) -> None:
        self.q = q = OmniQ(where, **options)

        @q.task(name="app.add", max_retries=0)
        def add(a: int, b: int = 10) -> int:
            """Add two numbers."""
            return a + b

        @q.task(name="app.aadd")
        async def aadd(a: int, b: int) -> int:
            await asyncio.sleep(0)
            return a + b

        @q.task(name="app.fail", max_retries=0)
        def fail(reason: str) -> None:
            raise GiveUp(reason)

        @q.task(name="app.forever")
        async def forever() -> None:
            await asyncio.Event().wait()

        @q.task(name="app.report")
        async def report(ctx: Context, done: int) -> str:
            ctx.progress(done, 10)
            await asyncio.sleep(0.6)
            return ctx.task_id

        self.add, self.aadd, self.fail, self.forever, self.report = add, aadd, fail, forever, report
