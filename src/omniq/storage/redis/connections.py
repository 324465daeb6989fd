"""Calls to the server: scripts by their digest, one connection for all of them, a new one when it breaks.

Nothing is kept on a connection, so any will do: who was told `StoreUnavailable` only has to call again. Where
the server syncs its file only once a second, writes share their waits: a second connection writes a mark and
waits until the disk has it, and with it everything that was written before.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from hiredis import ReplyError
from loguru import logger

from omniq.errors import OmniqError, StoreUnavailable
from omniq.storage.redis.address import BORDER, Address
from omniq.storage.redis.durability import Durability, ask, decide, life_of
from omniq.storage.redis.errors import explained
from omniq.storage.redis.scripts import Script, Scripts
from omniq.storage.redis.wire import ANSWER_TIMEOUT_S, Argument, Wire

# Somebody who waits for the disk, and the life of the server that was written to.
Waiting = tuple[asyncio.Future[None], str]
# So often a call follows its slot to another node of a Cluster.
MOVES: Final = 3
# A plain SET is refused where memory is full, and then there would be nothing to wait for.
_MARK: Final = "#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], 1)"
# After these the address may lead elsewhere: a failover.
_ELSEWHERE: Final = ("READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED", "CLUSTERDOWN")


class Server:
    def __init__(self, address: Address, durability: Durability, scripts: Scripts) -> None:
        self.address = address
        self._durability: Durability = durability
        self._scripts = scripts
        self._wire: Wire | None = None
        self._connecting = asyncio.Lock()
        self._disk: Disk | None = None
        self._warned: str | None = None
        self._life = ""
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waits(self) -> bool:
        """Whether each write waits for the disk."""
        return self._disk is not None

    def wait_from_now_on(self) -> None:
        """Somebody has met this server and found that it syncs its file only now and then."""
        if self._disk is None:
            self._disk = Disk(self.address)

    def script(self, name: str) -> Script:
        return self._scripts[name]

    async def read(self, name: str, *arguments: Argument) -> Any:
        """Run a script that changes nothing that anybody relies on."""
        return await self._run(name, arguments)

    async def write(self, name: str, *arguments: Argument) -> Any:
        """Run a script; what it wrote is as durable as was asked for when this returns."""
        reply = await self._run(name, arguments)
        if self._disk is not None:  # and the one that answered: to connect anew takes longer than this line
            await self._disk.has_it(self._life)
        return reply

    async def command(self, *command: Argument) -> Any:
        """A plain command; every key in it begins with the namespace."""
        return self._checked(await self._call(command))

    async def _run(self, name: str, arguments: tuple[Argument, ...]) -> Any:
        script = self._scripts[name]
        reply = await self._call((b"EVALSHA", script.sha, b"1", self.address.prefix, *arguments))
        if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
            # The server is new, or has forgotten its scripts: it ran nothing.
            reply = await self._call((b"EVAL", script.text, b"1", self.address.prefix, *arguments))
        return self._checked(reply)

    def _checked(self, reply: Any) -> Any:
        if isinstance(reply, ReplyError):
            raise explained(reply, self.address.shown)
        return reply

    async def _call(self, command: tuple[Argument, ...]) -> Any:
        for _ in range(MOVES):
            wire = self._wire
            if wire is None or not wire.is_open:
                wire = await self._connect()
            try:
                reply = await wire.call(*command)
            except BORDER as exc:
                raise explained(exc, self.address.shown) from exc
            if not isinstance(reply, ReplyError) or not self._leads_elsewhere(str(reply), wire):
                return reply
        raise StoreUnavailable(f"{self.address.shown}: the cluster is moving these keys")

    def _leads_elsewhere(self, refusal: str, wire: Wire) -> bool:
        """In a Cluster: whether our slot, and with it all of ours, is on another node. Others who were told
        the same may have left this connection already, and be on their way with the next."""
        has_moved = refusal.startswith("MOVED ")
        if wire is self._wire and has_moved:
            host, _, port = refusal.split()[2].rpartition(":")
            self.address.move_to(host, int(port))
        if wire is self._wire and (has_moved or refusal.startswith(_ELSEWHERE)):
            self._drop()
        return has_moved

    async def _connect(self) -> Wire:
        async with self._connecting:
            if self._wire is not None and self._wire.is_open:
                return self._wire
            wire = await self.address.connect("work", doubted=self._doubt)
            try:
                await self._examine(wire)
            except BORDER as exc:
                wire.close()
                raise explained(exc, self.address.shown) from exc
            except BaseException:
                wire.close()
                raise
            if self._closed:  # meanwhile, by somebody else: nobody would close this one
                wire.close()
                raise StoreUnavailable("the storage was closed; repeat the call")
            self._wire = wire
            return wire

    def _doubt(self, wire: Wire) -> None:
        """An answer is late: is the server slow, or did the connection die without a word?"""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._compare(wire), name="omniq-probe")

    async def _compare(self, wire: Wire) -> None:
        """A server that answers a new connection, one call after the other, has long answered the old one."""
        try:
            probe = await self.address.connect("probe")
        except OmniqError:
            return
        probe.close()
        if wire.is_late:
            wire.fail(ConnectionError("the connection died without a word"))

    async def _examine(self, wire: Wire) -> None:
        """At every connection: after a failover it may be another server."""
        facts = await ask(wire)
        self._life = facts.life
        verdict = decide(facts, self._durability, self.address.shown)
        if verdict.warning is not None and verdict.warning != self._warned:
            logger.warning("{}", verdict.warning)
        self._warned = verdict.warning
        if verdict.waits and self._disk is None:
            self._disk = Disk(self.address)
        elif not verdict.waits and self._disk is not None:
            await self._disk.stop()
            self._disk = None

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    async def close(self) -> None:
        wire = self._wire
        self.abandon()
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        if self._disk is not None:
            await self._disk.stop()
        if wire is not None:
            await wire.lost.wait()

    def abandon(self) -> None:
        """Its loop may have closed: only the socket can still be given back."""
        self._closed = True
        self._drop()


class Disk:
    """Waits until the append-only file is on disk, for everybody who waits at that moment at once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._waiting: list[Waiting] = []
        self._keeper: asyncio.Task[None] | None = None
        self._wire: Wire | None = None
        self._life = ""
        self._stopped = False

    async def has_it(self, life: str) -> None:
        """Returns when everything that this life of the server was told before the call is on disk."""
        if self._stopped:
            raise _closed()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((done, life))
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="omniq-disk")
        await done

    async def _keep(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                await self._sync()
            except BaseException as exc:
                self._waiting = waiting + self._waiting
                self._tell_all(exc if isinstance(exc, Exception) else _closed())
                if not isinstance(exc, Exception):
                    raise
            else:
                for one, life in waiting:
                    if one.done():
                        continue
                    if life == self._life:
                        one.set_result(None)
                    else:
                        one.set_exception(_another(self._address.shown))

    def _tell_all(self, why: Exception) -> None:
        """Also those who came later: the next connection cannot answer for what was written before it."""
        waiting, self._waiting = self._waiting, []
        for one, _ in waiting:
            if not one.done():
                one.set_exception(why)

    async def _sync(self) -> None:
        if self._wire is None or not self._wire.is_open:
            self._wire, self._life = await self._address.connect("disk"), ""
        try:
            self._life = self._life or await life_of(self._wire)
            mark = self._wire.call("EVAL", _MARK, b"1", self._address.prefix + b"disk")
            timeout_ms = int(ANSWER_TIMEOUT_S * 900)
            marked, reply = await asyncio.gather(mark, self._wire.call("WAITAOF", 1, 0, timeout_ms))
            for refusal in (marked, reply):
                if isinstance(refusal, ReplyError):
                    self._wire.close()  # it may be a replica by now, or our slot elsewhere
                    raise refusal
        except BORDER as exc:
            raise explained(exc, self._address.shown) from exc
        if reply[0] < 1:
            raise StoreUnavailable(
                f"{self._address.shown}: its disk did not keep up; what was written may be lost"
            )

    async def stop(self) -> None:
        self._stopped = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        self._tell_all(_closed())
        if self._wire is not None:
            self._wire.close()
            await self._wire.lost.wait()


def _another(where: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{where}: it is not the server any more that was written to; a write may be lost"
    )


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the storage was closed while it waited for its disk; a write may be lost")
