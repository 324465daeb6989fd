"""Flask: a view enqueues and answers at once; another one says how far the task is.

    python examples/flask_signup.py

Views are ordinary functions, so they use the blocking face. The worker runs in this process for the sake of
the example; in production it is `omniq worker flask_signup:q`.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from flask import Flask
from loguru import logger

from omniq import Context, OmniQ

logger.disable("omniq")

folder = tempfile.TemporaryDirectory()
q = OmniQ(f"sqlite:///{Path(folder.name) / 'jobs.db'}")
app = Flask(__name__)


@q.task(unique=["address"])
def welcome(ctx: Context, address: str) -> str:
    for page in range(1, 4):
        ctx.progress(page, 3)
        time.sleep(0.05)
    return f"welcomed {address}"


@app.post("/signup/<address>")
def signup(address: str) -> tuple[dict[str, Any], int]:
    handle = welcome.enqueue(address)
    return {"task": handle.id, "new": handle.created}, 202


@app.get("/tasks/<task_id>")
def task(task_id: str) -> dict[str, Any]:
    handle = q.handle(task_id)
    return {"status": handle.status(), "progress": handle.progress()}


def main() -> None:
    browser = app.test_client()
    first = browser.post("/signup/ann@example.org").json
    again = browser.post("/signup/ann@example.org").json
    print(f"one task for two requests: {first['task'] == again['task']}")
    print(f"it is {browser.get('/tasks/' + first['task']).json['status']}")
    with q, q.worker(concurrency=4):
        print(q.handle(first["task"]).result(timeout=10))
        print(f"it is {browser.get('/tasks/' + first['task']).json['status']}")


if __name__ == "__main__":
    with folder:
        main()
