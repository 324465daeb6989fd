"""Tasks that this worker may not run: given back, never failed, never imported (F24, S2, C27)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from omniq import AsyncWorkerPool, InvalidOption, OmniQ, Task, TaskStatus, WorkerPool
from omniq.crew import MAX_UNSERVED
from omniq.logic.health import judge
from omniq.storage.facts import vital_signs
from omniq.task import RunOutcome
from omniq.testing import VirtualClock
from tests.worker.scene import Bodies, Logs, ended, running, until
from tests.worker.stores import AnyStore, Five, Memory, result_of, task_of

HOSTILE = [
    "os.system",
    "subprocess.run",
    "builtins.eval",
    "builtins.exec",
    "os:system",
    "importlib.import_module",
    "xmlrpc.server.resolve_dotted_attribute",
    "canary_module.write",
]


async def test_never_fails_by_itself() -> None:
    """F24: an old worker gives it back again and again; a new one runs it."""
    clock = VirtualClock()
    async with Memory(clock=clock) as store:
        old, new = OmniQ(store), OmniQ(store)
        old.task(name="app.known_to_both")(allowed_body)

        async def added(n: int) -> int:
            return n

        new.task(name="app.new_in_version_2")(added)
        task_id = await store.enqueue(Task("app.new_in_version_2", (2,), max_retries=0, max_losses=1))
        async with old.async_worker(poll_interval=1, clock=clock):
            for _ in range(12):
                await clock.advance(30)
                task = await task_of(store, task_id)
                assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)
            assert task.epoch >= 8
        async with new.async_worker(poll_interval=1, clock=clock):
            await clock.advance(61)
        result = await result_of(store, task_id)
        outcomes = {run.outcome for run in await store.history(task_id)}
    assert result is not None
    assert result.result == 2
    assert outcomes == {RunOutcome.GIVEN_BACK}


async def test_is_told_to_the_store_while_it_comes_back() -> None:
    """For whoever looks: a task that is given back before it is due for long stands in no other list."""
    clock = VirtualClock()
    async with Memory(clock=clock) as store:
        q = OmniQ(store)
        q.task(name="app.known")(allowed_body)
        await store.enqueue(Task("app.unknown", id="lost", queue="mail"))
        async with q.async_worker(poll_interval=1, clock=clock):
            for _ in range(10):
                await clock.advance(30)
            [told] = await store.workers()
            assert told.unserved == (("mail", "app.unknown"),)
            health = judge(*await vital_signs(store))
            assert health.problems == ("queue mail: no living worker knows app.unknown, and its tasks wait",)
            await store.cancel("lost")
            await clock.advance(200)
            [told] = await store.workers()
            assert told.unserved == ()
            assert judge(*await vital_signs(store)).ok


async def test_names_that_are_unknown_are_bounded() -> None:
    clock = VirtualClock()
    async with Memory(clock=clock) as store:
        q = OmniQ(store)
        await store.enqueue_many([Task(f"app.unknown_{n}") for n in range(100)])
        async with q.async_worker(poll_interval=1, clock=clock):
            await clock.advance(30)
            [told] = await store.workers()
            assert len(told.unserved) == MAX_UNSERVED


def allowed_body(n: int) -> int:
    return n


async def test_runs_what_is_allowed_meanwhile(builtin: AnyStore) -> None:
    async with builtin as store:
        for _ in range(30):
            await store.enqueue(Task("somebody.elses", priority=9))
        path = f"{__name__}.allowed_body"
        ids = [await store.enqueue(Task(path, (n,))) for n in range(5)]
        async with running(store, 2, allow=[f"{__name__}.*"], poll_interval=0.05):
            assert [(await ended(store, i)).result for i in ids] == [0, 1, 2, 3, 4]


async def test_is_said_with_a_name_on_one_line(logs: Logs) -> None:
    async with Memory() as store, running(store, allow=["mine.*"]):
        task_id = await store.enqueue(Task("somebody.elses"))
        await until(lambda: store.log.ids("settled"))
    [line] = [line for line in logs.lines("WARNING") if line.startswith("unserved")]
    assert task_id in line
    assert "somebody.elses" in line


async def test_the_worker_says_what_it_serves(builtin: AnyStore) -> None:
    """So that a person can see that nobody serves a task."""
    async with builtin as store, running(store, allow=["mine.*"]):
        assert not isinstance(store, Five)
        [info] = await until(store.workers)
    assert info.functions == ("mine.*",)


# --- the import gate -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", HOSTILE)
async def test_what_is_not_allowed_is_not_imported(
    builtin: AnyStore, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: neither an application's worker nor one with `allow` imports what a stored path names."""
    canary = tmp_path / "canary"
    source = f"open({str(canary)!r}, 'w')\ndef write(*args): open({str(canary)!r}, 'w')"
    (tmp_path / "canary_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("canary_module", "xmlrpc.server"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    async with builtin as store:
        before = set(sys.modules)
        q = OmniQ(store)
        q.task(name="mine")(allowed_body)
        for pool in (q.async_worker(poll_interval=0.05), q.async_worker(allow=["mine.*"])):
            async with pool:
                task_id = await store.enqueue(Task(path, (f"touch {canary}",), max_retries=0))
                await until(given_back, store, task_id)
        assert not {name for name in set(sys.modules) - before if "canary" in name or "xmlrpc" in name}
    assert not canary.exists()


async def given_back(store: AnyStore, task_id: str) -> bool:
    task = await task_of(store, task_id)
    return task.status is TaskStatus.PENDING and task.epoch > 0


@pytest.mark.parametrize(
    "path",
    [
        f"{__name__}.sys.exit",  # imported there, not defined
        f"{__name__}:sys.exit",
        f"{__name__}.Path.home",
        f"{__name__}.__builtins__.eval",
        f"{__name__}.allowed_body.__globals__",
        f"{__name__}.allowed_body.__call__",
        f"{__name__}._hidden",
        f"{__name__}.HOSTILE",
    ],
)
async def test_allow_opens_functions_defined_there_and_nothing_else(path: str) -> None:
    async with Memory() as store, running(store, allow=[f"{__name__}.*", f"{__name__}:*"]):
        task_id = await store.enqueue(Task(path, max_retries=0))
        await until(lambda: store.log.ids("settled"))
        task = await task_of(store, task_id)
    unserved = task.status is TaskStatus.PENDING and task.attempts == 0
    unresolvable = task.error is not None and task.error.kind == "unresolvable"
    assert unserved or unresolvable


def _hidden() -> None: ...


def test_a_pattern_that_is_no_list_is_refused() -> None:
    """`tuple("myapp.*")` would have a `*` in it, which opens everything."""
    allow: Any = "myapp.*"
    for make in (
        lambda: AsyncWorkerPool(Memory(), allow=allow),
        lambda: WorkerPool(Memory(), allow=allow),
        lambda: OmniQ(Memory(), allow=allow),
        lambda: OmniQ(Memory()).worker(allow=allow),
        lambda: OmniQ(Memory()).async_worker(allow=allow),
    ):
        with pytest.raises(InvalidOption, match="allow"):
            make()


async def test_allow_nothing_runs_nothing(bodies: Bodies) -> None:
    async with Memory() as store, running(store, allow=[]):
        task_id = await store.enqueue(Task(f"{__name__}.allowed_body", (1,)))
        await until(lambda: given_back(store, task_id))


async def test_a_path_inside_the_payload_does_not_choose(bodies: Bodies) -> None:
    """Only the task's own `func_path` says what runs; a payload that names another function does not."""
    from omniq.serializer import MsgpackSerializer
    from omniq.task import StoredTask

    path = bodies(lambda: "the path's", "right")
    payload = MsgpackSerializer().dump_call("os.getcwd", (), {})
    async with Memory() as store, running(store):
        stored = StoredTask(path, payload)
        await store.enqueue(stored)
        assert (await ended(store, stored.id)).result == "the path's"
