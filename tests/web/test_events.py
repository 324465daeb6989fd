"""The live stream over real sockets: whoever never reads what is sent holds no place for ever."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn

from omniq import Task
from omniq.cli import listening
from omniq.cli.listening import listen
from omniq.storage import MemoryStorage
from omniq.web import Dashboard, events

SMALL = 4_096
WITHIN_S = 20.0
ASKED = b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@asynccontextmanager
async def served(dashboard: Dashboard) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """By the server that the command uses. The kernel holds little for a connection: soon it is full."""
    door = listen("127.0.0.1", 0, "")
    door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    server = uvicorn.Server(uvicorn.Config(dashboard, log_level="critical"))
    serving = asyncio.create_task(server.serve(sockets=[door]))
    try:
        yield server, door.getsockname()[1]
    finally:
        dashboard.live.end_soon()
        server.should_exit = True
        await serving


async def asked(port: int) -> socket.socket:
    """Somebody who asks for the stream and never reads an answer."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    line.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(line, ("127.0.0.1", port))
    await loop.sock_sendall(line, ASKED)
    return line


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not happened():  # noqa: ASYNC110 - nobody there could set an event
            await asyncio.sleep(0.01)


async def until_it_streams(port: int) -> None:
    """Ask for a place like the browser does, which comes again when it is refused."""
    async with (
        asyncio.timeout(WITHIN_S),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as asking,
    ):
        while True:
            async with asking.stream("GET", "/api/events") as answer:
                if answer.status_code == 200:
                    async for line in answer.aiter_lines():
                        if line == "event: overview":
                            return
            await asyncio.sleep(0.05)


async def a_long_overview() -> MemoryStorage:
    """So many queues that a few looks fill every buffer on the way."""
    store = MemoryStorage()
    await store.enqueue_many([Task("shop.many", queue=f"{n:03}" + "q" * 100) for n in range(200)])
    return store


async def test_who_never_reads_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """S11."""
    monkeypatch.setattr(events, "MAX_WATCHERS", 1)
    monkeypatch.setattr(events, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(events, "SEND_WITHIN_S", 3.0)  # one question has to fit into it
    store = await a_long_overview()
    dashboard = Dashboard(store)
    async with (
        served(dashboard) as (_, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as asking,
    ):
        deaf = await asked(port)
        await until(lambda: dashboard.live.is_full)
        assert (await asking.get("/api/events")).status_code == 503, "the only place is taken"
        await until_it_streams(port)
        deaf.close()
    await store.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux can cut a connection off")
async def test_who_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that is free is not enough: each connection has a descriptor, and those are few."""
    monkeypatch.setattr(events, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(events, "SEND_WITHIN_S", 0.5)
    monkeypatch.setattr(listening, "CUT_OFF_MS", 1_000)
    store = await a_long_overview()
    async with served(Dashboard(store)) as (server, port):
        deaf = await asked(port)
        await until(lambda: bool(server.server_state.connections))
        await until(lambda: not server.server_state.connections)
        deaf.close()
    await store.close()


async def test_who_reads_slowly_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is of one send: a page on a poor line gets fewer looks, not none."""
    monkeypatch.setattr(events, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(events, "SEND_WITHIN_S", 1.5)
    store = await a_long_overview()
    dashboard = Dashboard(store)
    loop = asyncio.get_running_loop()
    async with served(dashboard) as (_, port):
        slow = await asked(port)
        until = time.monotonic() + 4
        while time.monotonic() < until:
            assert await loop.sock_recv(slow, 65_536) != b""
            await asyncio.sleep(0.005)  # a third of what is sent
        assert dashboard.live._watchers, "it is still served"
        slow.close()
    await store.close()
