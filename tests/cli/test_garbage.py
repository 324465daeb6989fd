"""What a worker process keeps for ever is not looked through again and again."""

from omniq.task import TaskStatus
from tests.cli.site import Site, call, until_status

TASK = """

LOADED = [[] for _ in range(200_000)]

@q.task
async def frozen(name):
    import gc
    return gc.get_freeze_count()
"""


async def test_a_full_collection_leaves_the_application_alone(site: Site) -> None:
    """It stops the loop, so that each run would wait for it: the longer, the larger the application is."""
    with (site.folder / "jobs.py").open("a") as module:
        module.write(TASK)
    async with site.store() as store:
        task_id = await store.enqueue(call("frozen", "a"))
        with site.worker():
            await until_status(store, [str(task_id)], TaskStatus.SUCCESS)
        result = await store.get_result(str(task_id))
    assert result is not None
    assert result.result > 200_000
