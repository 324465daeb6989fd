"""Unique keys, and batches that are kept as a whole or not at all: section 6."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omniq.errors import DuplicateTask, IdConflict, OmniqError, PayloadTooLarge, UnserializableArgument
from omniq.task import OnConflict, Settlement, Task, TaskStatus
from omniq.testing.conformance.case import BOOM, JOB, FullCase

PRODUCERS = 12


class Unique(FullCase):
    """A key is held in every status that is not final."""

    async def enqueue(self, *tasks: Task, on_conflict: OnConflict = "skip") -> list[tuple[str, bool]]:
        enqueued = await self.store.enqueue_many(tasks, on_conflict=on_conflict)
        return [(str(one), one.created) for one in enqueued]

    async def holder_in(self, state: str) -> str:
        """The id of a task that holds the key "k"."""
        task_id = await self.put("old", unique_key="k")
        if state != "waiting":
            [claimed] = await self.claim()
            if state == "retrying":
                await self.settle(Settlement.retry(claimed, 9 * self.tick_s, BOOM))
        return task_id

    @pytest.mark.parametrize("state", ["waiting", "running", "retrying"])
    async def test_skip_gives_the_task_that_holds_the_key(self, state: str) -> None:
        holder = await self.holder_in(state)
        before = await self.snapshot()
        assert await self.enqueue(Task(JOB, ("new",), unique_key="k")) == [(holder, False)]
        assert await self.store.enqueue(Task(JOB, ("new",), unique_key="k")) == holder
        assert await self.snapshot() == before

    @pytest.mark.parametrize("state", ["waiting", "running", "retrying"])
    async def test_raise_names_the_task_that_holds_the_key(self, state: str) -> None:
        holder = await self.holder_in(state)
        before = await self.snapshot()
        with pytest.raises(DuplicateTask, match="'k'") as raised:
            await self.enqueue(Task(JOB, ("new",), unique_key="k"), on_conflict="raise")
        assert raised.value.task_id == holder
        assert await self.snapshot() == before

    async def test_replace_changes_a_waiting_task(self) -> None:
        holder = await self.holder_in("waiting")
        eta = self.moment(4)
        new = Task("jobs.other", ("new",), unique_key="k", eta=eta)
        assert await self.enqueue(new, on_conflict="replace") == [(holder, False)]
        task = await self.look(holder)
        assert (task.func_path, task.args, task.eta) == ("jobs.other", ("new",), eta)
        assert len(await self.store.list_tasks()) == 1

    async def test_replace_of_a_retrying_task_keeps_what_was_spent(self) -> None:
        holder = await self.holder_in("retrying")
        await self.enqueue(Task(JOB, ("new",), unique_key="k"), on_conflict="replace")
        task = await self.look(holder)
        assert (task.args, task.eta, task.attempts, task.epoch) == (("new",), None, 1, 1)

    async def test_a_replaced_task_knows_the_enqueue_that_made_it(self) -> None:
        """Its answer was lost, so it is sent again: it is no conflict, and brings nothing back."""
        first = Task(JOB, ("old",), unique_key="k")
        await self.store.enqueue(first)
        await self.enqueue(Task(JOB, ("new",), unique_key="k"), on_conflict="replace")
        await self.enqueue(Task(JOB, ("newer",), unique_key="k"), on_conflict="replace")
        assert await self.enqueue(first) == [(first.id, False)]
        assert (await self.look(first.id)).args == ("newer",)
        await self.succeed(*await self.claim())
        await self.store.delete(first.id)
        assert await self.enqueue(first) == [(first.id, False)]

    async def test_replace_leaves_a_running_task_alone(self) -> None:
        holder = await self.holder_in("running")
        before = await self.snapshot()
        new = Task(JOB, ("new",), unique_key="k")
        assert await self.enqueue(new, on_conflict="replace") == [(holder, False)]
        assert await self.snapshot() == before

    @pytest.mark.parametrize("on_conflict", ["skip", "raise", "replace"])
    async def test_without_a_conflict_all_ways_are_one(self, on_conflict: OnConflict) -> None:
        tasks = [Task(JOB, (n,), unique_key=key) for n, key in enumerate(("a", "b", None, None))]
        created = await self.enqueue(*tasks, on_conflict=on_conflict)
        assert created == [(task.id, True) for task in tasks]

    async def test_a_key_that_was_freed_can_be_taken_again(self) -> None:
        for _ in range(3):
            claimed = await self.start(unique_key="k")
            await self.succeed(claimed)
        assert len(await self.store.list_tasks()) == 3

    async def test_keys_are_compared_exactly(self) -> None:
        keys = ["k", "K", "k ", "k%", "ключ", "k'; DROP TABLE tasks; --"]
        await self.enqueue(*(Task(JOB, unique_key=key) for key in keys))
        assert len(await self.store.list_tasks()) == len(keys)
        for key in keys:
            [task] = [task for task in await self.store.list_tasks() if task.unique_key == key]
            assert await self.enqueue(Task(JOB, unique_key=key)) == [(task.id, False)]

    # --- in a batch ------------------------------------------------------------------------------

    async def test_skip_within_a_batch_keeps_the_first(self) -> None:
        """F22: the bulk path asks too."""
        first, second = (Task(JOB, (name,), unique_key="k") for name in ("first", "second"))
        assert await self.enqueue(first, second) == [(first.id, True), (first.id, False)]
        assert (await self.look(first.id)).args == ("first",)

    async def test_replace_within_a_batch_keeps_the_last_call_of_one_task(self) -> None:
        tasks = [Task(JOB, (number,), unique_key="k") for number in range(3)]
        answers = await self.enqueue(*tasks, on_conflict="replace")
        assert answers == [(tasks[0].id, True), (tasks[0].id, False), (tasks[0].id, False)]
        assert (await self.look(tasks[0].id)).args == (2,)

    async def test_replace_of_an_older_task_twice_in_a_batch_keeps_the_last(self) -> None:
        holder = await self.holder_in("waiting")
        tasks = [Task(JOB, (number,), unique_key="k") for number in range(3)]
        assert await self.enqueue(*tasks, on_conflict="replace") == [(holder, False)] * 3
        assert (await self.look(holder)).args == (2,)

    async def test_raise_within_a_batch_keeps_none(self) -> None:
        tasks = [Task(JOB), Task(JOB, unique_key="k"), Task(JOB, unique_key="k")]
        with pytest.raises(DuplicateTask) as raised:
            await self.enqueue(*tasks, on_conflict="raise")
        assert raised.value.task_id == tasks[1].id
        assert await self.store.list_tasks() == []

    async def test_a_batch_mixes_what_is_new_known_and_held(self) -> None:
        holder = await self.holder_in("running")
        known = Task(JOB, ("known",))
        await self.store.enqueue(known)
        fresh, held = Task(JOB, ("fresh",)), Task(JOB, unique_key="k")
        answers = await self.enqueue(held, known, fresh)
        assert answers == [(holder, False), (known.id, False), (fresh.id, True)]

    @pytest.mark.parametrize(
        ("bad", "error"),
        [
            ({"id": "taken"}, IdConflict),
            ({"args": ("x" * 2_000_000,)}, PayloadTooLarge),
            ({"args": (object(),)}, UnserializableArgument),
            ({"unique_key": "k"}, DuplicateTask),
        ],
        ids=["id", "size", "type", "key"],
    )
    async def test_a_batch_is_kept_as_a_whole_or_not_at_all(
        self, bad: dict[str, Any], error: type[OmniqError]
    ) -> None:
        await self.store.enqueue(Task("jobs.other", id="taken"))
        await self.holder_in("waiting")
        before = await self.snapshot()
        tasks = [Task(JOB, (number,)) for number in range(20)]
        tasks.insert(15, Task(JOB, **bad))
        with pytest.raises(error):
            await self.enqueue(*tasks, on_conflict="raise")
        assert await self.snapshot() == before

    async def test_a_refused_replace_replaces_nothing(self) -> None:
        await self.store.enqueue(Task("jobs.other", id="taken"))
        await self.holder_in("waiting")
        before = await self.snapshot()
        with pytest.raises(IdConflict):
            await self.enqueue(
                Task(JOB, ("new",), unique_key="k"), Task(JOB, id="taken"), on_conflict="replace"
            )
        assert await self.snapshot() == before

    async def test_a_large_batch_keeps_its_order(self) -> None:
        tasks = [Task(JOB, (number,)) for number in range(2_000)]
        assert await self.enqueue(*tasks) == [(task.id, True) for task in tasks]
        claimed = await self.claim(limit=2_000)
        assert [task.id for task in claimed] == [task.id for task in tasks]

    # --- several producers -----------------------------------------------------------------------

    @pytest.mark.parametrize("bulk", [False, True])
    async def test_many_producers_of_one_key_make_one_task(self, bulk: bool) -> None:
        """F22: the answer always names the one task there is."""
        storages = [self.store, await self.another(), await self.another()]

        async def produce(number: int) -> list[tuple[str, bool]]:
            keyed = Task(JOB, (number,), unique_key="k")
            tasks = [Task(JOB, ("before", number)), keyed, Task(JOB, ("after", number))] if bulk else [keyed]
            enqueued = await storages[number % 3].enqueue_many(tasks)
            return [(str(one), one.created) for one in enqueued]

        answers = await asyncio.gather(*(produce(number) for number in range(PRODUCERS)))
        keyed = [answer[1] if bulk else answer[0] for answer in answers]
        assert len({task_id for task_id, _ in keyed}) == 1
        assert [created for _, created in keyed].count(True) == 1
        waiting = (await self.store.counts())["default"][TaskStatus.PENDING]
        assert waiting == 1 + (2 * PRODUCERS if bulk else 0)

    async def test_of_many_producers_that_raise_one_succeeds(self) -> None:
        other = await self.another()

        async def produce(number: int) -> str | None:
            storage = (self.store, other)[number % 2]
            try:
                task = Task(JOB, (number,), unique_key="k")
                [enqueued] = await storage.enqueue_many([task], on_conflict="raise")
            except DuplicateTask as refused:
                return refused.task_id
            assert enqueued.created
            return None

        answers = await asyncio.gather(*(produce(number) for number in range(PRODUCERS)))
        [task] = await self.store.list_tasks()
        assert answers.count(None) == 1
        assert set(answers) == {None, task.id}
