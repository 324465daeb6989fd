"""A web server that answers at once and leaves the slow part to a task.

    python examples/web_signup.py

There is no framework in it: what matters is one line, `await welcome.aenqueue(address)`, and it is the
same line in any framework that runs on asyncio. Here the worker shares the server's event loop; in
production it is usually a process of its own (`omniq worker web_signup:q`).
"""

import asyncio
import tempfile
from pathlib import Path

from loguru import logger

from omniq import OmniQ

logger.disable("omniq")

folder = tempfile.TemporaryDirectory()
q = OmniQ(f"sqlite:///{Path(folder.name) / 'jobs.db'}")


@q.task(max_retries=5, timeout=30)
async def welcome(address: str) -> str:
    await asyncio.sleep(0.2)  # a mail server that takes its time
    return f"welcomed {address}"


async def signup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """`POST /signup` with an address as its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    address = (await reader.readexactly(length)).decode()
    # One address, one mail: a second request finds the first one's task as long as that has not ended.
    handle = await welcome.options(unique_key=f"welcome:{address}").aenqueue(address)
    body = f"{'accepted' if handle.created else 'already accepted'} {handle.id}".encode()
    writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def post(port: int, address: str) -> str:
    """What a browser does; the answer's body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /signup HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(address), address.encode()))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.partition(b"\r\n\r\n")[2].decode()


async def main() -> None:
    server = await asyncio.start_server(signup, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with q, server:
        answers = [await post(port, f"{name}@example.org") for name in ("ann", "bob", "ann")]
        for answer in answers:
            print(answer.rpartition(" ")[0])
        async with q.async_worker():
            for task_id in dict.fromkeys(answer.rpartition(" ")[2] for answer in answers):
                print(await q.handle(task_id).aresult(timeout=10))


if __name__ == "__main__":
    with folder:
        asyncio.run(main())
