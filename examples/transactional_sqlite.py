"""A task and your own rows in one transaction: both are there, or neither is.

    python examples/transactional_sqlite.py

Where the application keeps its data in the same SQLite file, `conn=` puts the task into the application's
own transaction. No worker sees it before the commit, and after a rollback it never existed.
"""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from loguru import logger

from omniq import OmniQ

logger.disable("omniq")

folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "shop.db"
q = OmniQ(f"sqlite:///{path}")


@q.task
def confirm(order: int) -> str:
    with closing(sqlite3.connect(path)) as conn:
        [customer] = conn.execute("SELECT customer FROM orders WHERE id = ?", (order,)).fetchone()
    return f"order {order} of {customer} is confirmed"


async def migrate() -> None:
    """OmniQ's own tables, made before the first transaction, where you also make yours."""
    async with q.storage().clone() as storage:
        await storage.migrate()


def place_order(conn: sqlite3.Connection, customer: str, *, card_is_good: bool) -> str:
    """Insert the order, enqueue its confirmation, then find out whether the card is good."""
    with conn:  # commits at the end, rolls back when something is raised
        cursor = conn.execute("INSERT INTO orders (customer) VALUES (?)", (customer,))
        handle = confirm.options(conn=conn).enqueue(cursor.lastrowid or 0)
        if not card_is_good:
            raise ValueError(f"the card of {customer} was refused")
    return handle.id


def main() -> None:
    asyncio.run(migrate())
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL)")
        task_id = place_order(conn, "ann", card_is_good=True)
        try:
            place_order(conn, "bob", card_is_good=False)
        except ValueError as exc:
            print("rolled back:", exc)
        [orders] = conn.execute("SELECT count(*) FROM orders").fetchone()
        [tasks] = conn.execute("SELECT count(*) FROM omniq_task").fetchone()
        print(f"{orders} order, {tasks} task")

    with q.worker(concurrency=2):
        print(q.handle(task_id).result(timeout=10))


if __name__ == "__main__":
    with folder, q:
        main()
