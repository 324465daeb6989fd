"""Django's own tasks on OmniQ: `@task` and `enqueue` are Django's, the queue behind them is ours.

    python examples/django_orders.py

One file, so the settings stand here and the worker runs in this process. A project has `TASKS` in its
settings, its tasks in the `tasks` modules of its applications, and the worker beside the server:
`DJANGO_SETTINGS_MODULE=mysite.settings omniq worker omniq.contrib.django:q`.
"""

import tempfile
from pathlib import Path

import django
from django.conf import settings
from loguru import logger

logger.disable("omniq")

folder = tempfile.TemporaryDirectory()
settings.configure(
    USE_TZ=True,
    TASKS={
        "default": {
            "BACKEND": "omniq.contrib.django.OmniQBackend",
            "OPTIONS": {
                "url": f"sqlite:///{Path(folder.name) / 'jobs.db'}",
                "max_retries": 3,
                "modules": [__name__],  # this file is no installed application
            },
        }
    },
)
django.setup()

try:
    from django.tasks import task  # Django 6
except ModuleNotFoundError:
    from django_tasks import task  # before that, the package django-tasks


@task(priority=50)
def confirm(order: int, customer: str) -> str:
    return f"confirmed order {order} of {customer}"


@task(takes_context=True)
async def remind(context, customer: str) -> str:
    return f"reminded {customer} at attempt {context.attempt}"


def main() -> None:
    from omniq.contrib import django as glue

    order = confirm.enqueue(7, customer="ann")
    print(f"before a worker runs: {order.status}")
    with glue.q as q, q.worker(concurrency=4):
        reminder = remind.enqueue("bob")
        for result in (order, reminder):
            q.handle(result.id).wait(timeout=30)
            result.refresh()
            print(f"{result.status}: {result.return_value}")


if __name__ == "__main__":
    with folder:
        main()
