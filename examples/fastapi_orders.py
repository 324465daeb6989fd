"""FastAPI: a worker in the lifespan of the server, and an enqueue inside the transaction of a request.

    python examples/fastapi_orders.py

The order and the task that confirms it are one transaction: both are there, or neither. In production the
worker is usually a process of its own (`omniq worker fastapi_orders:q`), and the lifespan only closes `q`.
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
from fastapi import FastAPI, HTTPException
from loguru import logger

from omniq import OmniQ

logger.disable("omniq")

folder = tempfile.TemporaryDirectory()
FILE = Path(folder.name) / "shop.db"
q = OmniQ(f"sqlite:///{FILE}")


@q.task(max_retries=5)
async def confirm(order: int, customer: str) -> str:
    await asyncio.sleep(0.05)  # a mail server that takes its time
    return f"confirmed order {order} of {customer}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    with closing(sqlite3.connect(FILE)) as db, db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL)")
    async with q, q.async_worker(concurrency=10):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{customer}", status_code=202)
def order(customer: str) -> dict[str, str | int]:
    """A `def` endpoint, because sqlite3 blocks: FastAPI runs it in a thread."""
    with closing(sqlite3.connect(FILE)) as db, db:
        row = db.execute("INSERT INTO orders (customer) VALUES (?)", (customer,))
        handle = confirm.options(conn=db).enqueue(row.lastrowid, customer)
        if customer == "mallory":
            raise HTTPException(402, "the card was refused")  # takes the order and the task back
        return {"order": row.lastrowid, "task": handle.id}


@app.get("/tasks/{task_id}")
async def result(task_id: str) -> dict[str, str]:
    return {"result": await q.handle(task_id).aresult(timeout=10)}


async def main() -> None:
    """What a server and a browser do."""
    browser = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    async with lifespan(app), browser:
        ann = (await browser.post("/orders/ann")).json()
        print(f"order {ann['order']} is taken")
        print(f"mallory: {(await browser.post('/orders/mallory')).json()['detail']}")
        print((await browser.get(f"/tasks/{ann['task']}")).json()["result"])
        with closing(sqlite3.connect(FILE)) as db:
            [orders] = db.execute("SELECT count(*) FROM orders").fetchone()
        tasks = len(await (await q.astorage()).list_tasks())
        print(f"{orders} order, {tasks} task")


if __name__ == "__main__":
    with folder:
        asyncio.run(main())
        q.close()
