"""A program that owns a template and children, to be killed or interrupted by a test.

usage: python -m tests.pool.owner HOW     prints the pids of template and children, then lives on
"""

import asyncio
import os
import sys
import time

from tests.pool import transport_bodies as bodies
from tests.pool.listening import a_template, spawned


async def main(how: str) -> None:
    async with a_template() as template:
        listeners = [await spawned(template) for _ in range(3)]
        maker = await listeners[0].call(bodies.parent_pid)
        for heard in listeners[1:]:
            heard.send(bodies.sleep_after_touching, os.devnull)
        print(maker, *(heard.child.pid for heard in listeners if heard.child), flush=True)
        if how == "exit":
            sys.exit(0)
        if how == "leave":
            os._exit(0)
        if how == "fork" and os.fork() == 0:
            # Somebody else's process that has inherited the parent's ends of all sockets.
            time.sleep(30)
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
