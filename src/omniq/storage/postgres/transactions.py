"""A body's own transaction, and the success of its task in it.

    begin ──> the body's statements ──> settle, where the run is still held ──> COMMIT

The connections are apart from those of the store's own statements: bodies may keep them as long as they like.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from omniq.errors import InvalidOption, StoreUnavailable
from omniq.storage.postgres.connections import BORDER, RELAXED, Address, close, cut
from omniq.storage.postgres.errors import code_of, explained
from omniq.task import Answer, Settlement

if TYPE_CHECKING:
    from omniq.storage.postgres.connections import Connection

# Bodies that are in a transaction at the same time; who comes later waits until one has ended.
MAX_TRANSACTIONS: Final = 16
# To settle and to commit. Who does not answer by then may be answered for by the next who settles.
END_TIMEOUT_S: Final = 10.0
# A machine that disappears leaves an open transaction behind; its end is noticed within a minute.
KEEP_ALIVE: Final = (
    "SET LOCAL tcp_keepalives_idle = 30; SET LOCAL tcp_keepalives_interval = 10; "
    "SET LOCAL tcp_keepalives_count = 3"
)

# What the body itself may have set on its connection, beyond what the driver resets.
CLEAN: Final = "SET SESSION AUTHORIZATION DEFAULT; DISCARD TEMP; DISCARD SEQUENCES"
# After these, only the store can say what has become of the run; after others nothing was kept.
UNDECIDED: Final = ("08", "25006", "40", "53", "57P", "58")
IN_FAILED_TRANSACTION: Final = "25P02"

Settle = Callable[["Connection", Settlement], Any]


class Transactions:
    """The connections that bodies write on: cleaned and kept for the next one."""

    def __init__(self, address: Address, settle: Settle, limit: int = MAX_TRANSACTIONS) -> None:
        self.address = address
        self._settle = settle
        self._free = asyncio.Semaphore(limit)
        self._idle: list[Connection] = []
        self._lent: set[Connection] = set()

    async def begin(self) -> BodyTransaction:
        await self._free.acquire()
        try:
            while self._idle:
                with suppress(*BORDER):  # it broke while nobody used it
                    return await self._begin_on(self._idle.pop())
            return await self._begin_on(await self.address.connect("body"))
        except BaseException as exc:
            self._free.release()
            if isinstance(exc, BORDER):
                raise explained(exc, self.address.shown, self.address.schema) from exc
            raise

    async def _begin_on(self, conn: Connection) -> BodyTransaction:
        self._lent.add(conn)
        try:
            # Read committed: the settle at its end must see what has become of the task meanwhile.
            whole = conn.transaction(isolation="read_committed")
            await whole.start()
            await conn.execute(KEEP_ALIVE)
            if self.address.pooled and self.address.durability == "relaxed":
                await conn.execute(f"SET LOCAL {RELAXED}")
        except BaseException:
            self._lent.discard(conn)
            conn.terminate()
            raise
        return BodyTransaction(self, conn, whole, self._settle)

    async def give_back(self, conn: Connection) -> None:
        """Whatever a body has set on its connection is undone, or the connection goes."""
        try:
            assert not conn.is_closed()
            if not self.address.pooled:  # behind a pooler the session is somebody else's by now
                async with asyncio.timeout(END_TIMEOUT_S):
                    await conn.reset()
                    await conn.execute(CLEAN)
            self._idle.append(conn)
        except (AssertionError, *BORDER):
            conn.terminate()
        finally:
            self._lent.discard(conn)
            self._free.release()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for conn in self._lent:
            conn.terminate()
        await asyncio.gather(*(close(conn) for conn in idle))

    def abandon(self) -> None:
        for conn in (*self._idle, *self._lent):
            cut(conn)


class BodyTransaction:
    def __init__(self, home: Transactions, conn: Connection, whole: Any, settle: Settle) -> None:
        self._home = home
        self._conn = conn
        self._whole = whole
        self._settle = settle

    def block(self) -> AbstractAsyncContextManager[Any]:
        return self._block()

    @asynccontextmanager
    async def _block(self) -> AsyncGenerator[Any]:
        async with self._conn.transaction():  # a savepoint
            yield self._conn

    async def settle(self, settlement: Settlement) -> Answer:
        if not self._conn.is_closed() and not self._conn.is_in_transaction():
            await self.undo()
            raise InvalidOption(
                "the body ended the transaction of ctx.transaction() itself; do not commit there"
            )
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                answer: Answer = await self._settle(self._conn, settlement)
                if answer is Answer.HELD:
                    await self._whole.commit()
        except BaseException as exc:
            gone = self._conn.is_closed()
            await self.undo()
            if gone or isinstance(exc, OSError | EOFError) or code_of(exc).startswith(UNDECIDED):
                raise StoreUnavailable(f"{self._home.address.shown}: {exc!r}") from exc
            if code_of(exc) == IN_FAILED_TRANSACTION:
                raise InvalidOption(
                    "a statement on ctx.transaction() failed and the body went on; let its exception leave "
                    "the `async with` block"
                ) from exc
            raise
        if answer is not Answer.HELD:
            await self.undo()
        else:
            await self._home.give_back(self._conn)
        return answer

    async def undo(self) -> None:
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._whole.rollback()
        except BORDER:  # among it: the body still uses it
            self._conn.terminate()
        await self._home.give_back(self._conn)
