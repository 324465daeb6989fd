"""What the tasks of these tests do."""

import asyncio

RUNS: dict[int, int] = {}


async def count(number: int) -> int:
    """Counts its runs in this process."""
    RUNS[number] = RUNS.get(number, 0) + 1
    await asyncio.sleep(0.005)
    return number
