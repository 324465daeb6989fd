"""What the tasks of these tests do."""

import asyncio
from pathlib import Path


async def fail_when_told(path: str) -> None:
    while not Path(path).exists():  # noqa: ASYNC110 - the test makes it, and cannot reach in here
        await asyncio.sleep(0.01)
    raise ValueError("told to")
