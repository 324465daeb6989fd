"""The overview, pushed: one look a second for everybody who watches, and none when nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from loguru import logger
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from omniq.errors import OmniqError, StoreUnavailable
from omniq.storage.base import BaseStorage
from omniq.web import redacting, shapes

LOOK_EVERY_S: Final = 1.0
ANSWER_WITHIN_S: Final = 10.0  # a store that hangs is told of, like one that is away
REST_PER_LOOK: Final = 4  # a look that takes long is not taken as often
MAX_WATCHERS: Final = 100
SEND_WITHIN_S: Final = 30.0  # who takes nothing for so long has nobody who looks
LAST: Final = b""  # after this nothing comes


@contextlib.asynccontextmanager
async def in_time(part: float = 1.0) -> AsyncGenerator[None]:
    """Around whatever asks a store: a probe or a page must not hang as long as the store does."""
    within_s = part * ANSWER_WITHIN_S
    limit = asyncio.timeout(within_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise StoreUnavailable(f"the store has not answered for {within_s:g} s") from None


class Live:
    """Who watches, and the task that looks for them."""

    def __init__(self, storage: BaseStorage) -> None:
        self._storage = storage
        self._watchers: set[asyncio.Queue[bytes]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        self._trouble: str | None = None

    @property
    def is_full(self) -> bool:
        return len(self._watchers) >= MAX_WATCHERS

    def look_soon(self) -> None:
        self._soon.set()

    def end_soon(self) -> None:
        """Let everybody go who watches: a server waits for them at its end. Also from a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._send, LAST)

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None

    async def follow(self) -> AsyncGenerator[bytes]:
        """Server-sent events, until the other side goes away."""
        mine: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._watchers.add(mine)
        self._loop = asyncio.get_running_loop()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="omniq-dashboard-look")
        try:
            yield b"retry: 2000\n\n"
            while (frame := await mine.get()) != LAST:
                yield frame
        finally:
            self._watchers.discard(mine)

    async def _look(self) -> None:
        while self._watchers:
            self._soon.clear()
            began = time.monotonic()
            event, said = "overview", await self._seen()
            if "error" in said:
                event = "trouble"
            frame = f"event: {event}\ndata: ".encode() + msgspec.json.encode(said) + b"\n\n"
            self._send(frame)
            rest_s = max(LOOK_EVERY_S, REST_PER_LOOK * (time.monotonic() - began))
            try:
                async with asyncio.timeout(rest_s):
                    await self._soon.wait()
            except TimeoutError:
                pass

    def _send(self, frame: bytes) -> None:
        for watcher in self._watchers:
            if watcher.full():  # slow: it gets the newest, not all
                watcher.get_nowait()
            watcher.put_nowait(frame)

    async def _seen(self) -> dict[str, Any]:
        try:
            async with in_time():
                seen = await shapes.overview(self._storage)
        except Exception as exc:  # whatever it was: those who watch must not take silence for calm
            said = redacting.text(str(exc)) if isinstance(exc, OmniqError) else type(exc).__qualname__
            if said != self._trouble:  # once, and not at every look of a long night
                logger.warning("the dashboard cannot look at its store: {}", said)
            self._trouble = said
            return {"error": said}
        if self._trouble is not None:
            logger.info("the dashboard sees its store again")
            self._trouble = None
        return seen


class Stream(StreamingResponse):
    """Frames for one who watches, as long as they are taken: a place is not held by who never reads."""

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        super().__init__(frames, media_type="text/event-stream")
        self._frames = frames

    async def stream_response(self, send: Send) -> None:
        async def in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_WITHIN_S):
                await send(message)

        try:
            await super().stream_response(in_time)
        except TimeoutError:
            logger.info("a page took nothing for {} s; its stream is ended", SEND_WITHIN_S)
        finally:
            await self._frames.aclose()
