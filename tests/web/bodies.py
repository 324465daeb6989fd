"""What runs while somebody looks."""

from __future__ import annotations

import asyncio


async def charge(order: int) -> int:
    """The first order never ends by itself."""
    if order == 1:
        await asyncio.Event().wait()
    return order
