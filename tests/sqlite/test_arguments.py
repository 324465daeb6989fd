"""Arguments that SQLite cannot take: said to whoever passed them, and to nobody beside."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from omniq import InvalidOption, NotFound, Task
from omniq.storage import MemoryStorage, SQLiteStorage


@pytest.mark.parametrize("bad", [UUID(int=7), object(), 2**70], ids=["uuid", "object", "large"])
@pytest.mark.parametrize("verb", ["get_task", "get_result", "history", "cancel", "retry", "delete"])
async def test_an_id_that_is_no_text_is_a_bad_argument(database: Path, verb: str, bad: Any) -> None:
    """Not a store that is away: whoever repeats the call then would repeat it for ever."""
    async with SQLiteStorage(database) as store:
        call, beside = await asyncio.gather(
            getattr(store, verb)(bad), store.enqueue(Task("a.b")), return_exceptions=True
        )
        assert isinstance(call, InvalidOption)
        assert "text" in str(call)
        assert isinstance(beside, str)


async def test_an_id_in_a_message_is_bounded(database: Path) -> None:
    async with SQLiteStorage(database) as store, MemoryStorage() as memory:
        for one in (store, memory):
            with pytest.raises(NotFound) as refusal:
                await one.cancel("x" * 1_000_000)
            assert len(str(refusal.value)) < 1000
