"""Results, how long they are kept, and the history of runs: section 8."""

from __future__ import annotations

from typing import Any

import pytest

from omniq.errors import NotFound
from omniq.serializer import Encoded
from omniq.task import Action, RunOutcome, Settlement, StoredTask, TaskError, TaskStatus, replace
from omniq.testing.conformance.case import BOOM, FINAL, JOB, FullCase

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Results(FullCase):
    """What a task came to."""

    @pytest.mark.parametrize("value", [None, 0, "", [], {"width": 20, "tags": [1, "two"]}, "x" * 50_000])
    async def test_a_result_is_the_value_that_was_returned(self, value: Any) -> None:
        """S000-12: None is a result, other than no result yet."""
        claimed = await self.start()
        assert await self.store.get_result(claimed.id) is None
        await self.succeed(claimed, value)
        result = await self.store.get_result(claimed.id)
        task = await self.look(claimed.id)
        assert result is not None
        assert (result.task_id, result.status, result.error) == (claimed.id, TaskStatus.SUCCESS, None)
        assert (result.result, type(result.result)) == (value, type(value))
        assert result.finished_at == task.finished_at

    async def test_there_is_no_result_before_the_end_and_none_of_the_unknown(self) -> None:
        task_id = await self.put()
        assert await self.store.get_result(task_id) is None
        assert await self.store.get_result("unknown") is None
        assert await self.store.get_task("unknown") is None

    async def test_an_error_is_kept_as_text(self) -> None:
        error = TaskError("app.OddError", "größer als 3", "Traceback ...\n" * 500, "timeout")
        claimed = await self.start()
        await self.settle(Settlement.failed(claimed, error))
        result = await self.store.get_result(claimed.id)
        assert result is not None
        assert (result.status, result.error) == (TaskStatus.FAILED, error)
        assert (await self.look(claimed.id)).error == error

    async def test_an_interval_task_waits_and_shows_its_latest_run(self) -> None:
        claimed = await self.start(interval=self.tick_s)
        for value in ("first", "second"):
            repeat = Settlement.repeat(claimed, self.store.serializer.dumps(value), self.tick_s)
            await self.settle(repeat)
            assert (await self.look(claimed.id)).status is TaskStatus.PENDING
            result = await self.store.get_result(claimed.id)
            assert result is not None
            assert (result.status, result.result) == (TaskStatus.SUCCESS, value)
            await self.advance(1)
            claimed = await self.restart("ann")

    @pytest.mark.parametrize("action", [Action.RETRY, Action.GIVE_BACK, Action.LOSE, None])
    async def test_an_interval_task_that_is_run_again_still_shows_its_latest_success(
        self, action: Action | None
    ) -> None:
        """Retried, given back, or lost with its worker."""
        claimed = await self.start(interval=self.tick_s)
        await self.settle(self.settlement(claimed, Action.REPEAT, 1))
        shown = await self.store.get_result(claimed.id)
        await self.advance(1)
        claimed = await self.restart()
        if action is None:
            await self.store.release("bob")
        else:
            await self.settle(self.settlement(claimed, action, 1))
        assert await self.store.get_result(claimed.id) == shown
        assert shown is not None
        assert (shown.status, shown.error) == (TaskStatus.SUCCESS, None)

    @pytest.mark.parametrize("size", [10, 50_000])
    async def test_a_newer_result_takes_the_place_of_an_older_one_of_any_size(self, size: int) -> None:
        claimed = await self.start(interval=self.tick_s)
        large = self.store.serializer.dumps("x" * 20_000)
        await self.settle(Settlement.repeat(claimed, large, 0))
        await self.succeed(await self.restart(), "y" * size)
        result = await self.store.get_result(claimed.id)
        assert result is not None
        assert result.result == "y" * size

    @pytest.mark.parametrize("payload", [b"", b"\x00", b"\xff" * 40, b"\x01m\x00\xc1", b"\x63" * 2000])
    async def test_a_payload_that_cannot_be_read_is_shown_as_it_is(self, payload: bytes) -> None:
        """F25: nobody who looks is hurt, the bytes are kept, and its neighbours run."""
        bad = StoredTask(JOB, payload, id="bad", priority=9)
        await self.store.enqueue(bad)
        good = await self.put()
        task = await self.look("bad")
        [shown] = task.args
        assert isinstance(shown, Encoded)
        assert (shown.payload, task.kwargs, task.func_path) == (payload, {}, JOB)
        assert {one.id for one in await self.store.list_tasks()} == {good, "bad"}
        first, second = await self.claim(limit=2)
        assert (first.id, first.payload, second.id) == ("bad", payload, good)

    # --- retention -------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("status", "kept_s"), [(status, DAY_S if status == "SUCCESS" else 30 * DAY_S) for status in FINAL]
    )
    async def test_what_has_ended_is_kept_for_its_time(self, status: TaskStatus, kept_s: float) -> None:
        self.needs_virtual_time()
        task_id = await self.end(status)
        await self.clock.advance(kept_s - 1)
        assert await self.store.prune() == 0
        await self.clock.advance(1)
        assert await self.store.prune() == 1
        assert await self.store.get_task(task_id) is None
        assert await self.store.get_result(task_id) is None
        assert await self.store.history(task_id) == []

    @pytest.mark.parametrize("ttl_ticks", [0, 2])
    async def test_a_task_may_say_how_long_its_result_is_kept(self, ttl_ticks: int) -> None:
        task_id = await self.end(TaskStatus.SUCCESS, result_ttl=ttl_ticks * self.tick_s)
        await self.advance(ttl_ticks - 1 if ttl_ticks else 0)
        assert await self.store.prune() == (0 if ttl_ticks else 1)
        await self.advance(1)
        await self.store.prune()
        assert await self.store.get_task(task_id) is None

    @pytest.mark.parametrize("status", [TaskStatus.FAILED, TaskStatus.CANCELLED])
    async def test_a_short_result_ttl_does_not_hide_a_failure(self, status: TaskStatus) -> None:
        task_id = await self.end(status, result_ttl=0)
        await self.advance(1)
        assert await self.store.prune() == 0
        assert (await self.look(task_id)).status is status

    async def test_how_long_can_be_set_for_the_whole_store(self) -> None:
        self.store.keep_results(1 * self.tick_s, 3 * self.tick_s)
        for status in FINAL:
            await self.end(status)
        await self.advance(1)
        assert await self.store.prune() == 1
        await self.advance(2)
        assert await self.store.prune() == 2

    async def test_prune_takes_no_more_than_its_limit(self) -> None:
        for _ in range(5):
            await self.end(TaskStatus.SUCCESS, result_ttl=0)
        assert [await self.store.prune(2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_prune_leaves_alone_what_has_not_ended(self) -> None:
        self.needs_virtual_time()
        await self.put(result_ttl=0, eta=self.moment(10**6))
        await self.start(result_ttl=0)
        repeated = await self.start(result_ttl=0, interval=10**6 * self.tick_s)
        await self.settle(self.settlement(repeated, Action.REPEAT, 10**6))
        await self.clock.advance(days=100)
        assert await self.store.prune() == 0

    async def test_prune_counts_from_the_newest_end(self) -> None:
        """A task that was retried by hand is not pruned by its first end."""
        self.needs_virtual_time()
        task_id = await self.end(TaskStatus.FAILED)
        await self.clock.advance(days=29)
        await self.store.retry(task_id)
        await self.clock.advance(days=2)
        assert await self.store.prune() == 0
        await self.settle(Settlement.failed(await self.restart(), BOOM))
        await self.clock.advance(days=29)
        assert await self.store.prune() == 0
        await self.clock.advance(days=1)
        assert await self.store.prune() == 1


class History(FullCase):
    """Every run that did not simply succeed."""

    async def test_history_tells_each_run_once_and_in_order(self) -> None:
        task_id = await self.put(interval=self.tick_s)
        told: list[tuple[RunOutcome, TaskError | None]] = []
        for action, outcome in (
            (Action.RETRY, RunOutcome.RETRIED),
            (Action.GIVE_BACK, RunOutcome.GIVEN_BACK),
            (Action.REPEAT, RunOutcome.SUCCESS),
            (Action.CONTINUE, RunOutcome.FAILED),
            (Action.FAIL, RunOutcome.FAILED),
        ):
            [claimed] = await self.claim("ann")
            settlement = self.settlement(claimed, action, 0)
            if settlement.error is not None:
                settlement = replace(settlement, error=replace(BOOM, message=str(action)))
            await self.settle(settlement)
            told.append((outcome, settlement.error))
        history = await self.store.history(task_id)
        assert [(run.outcome, run.error) for run in history] == told
        assert [run.epoch for run in history] == [1, 2, 3, 4, 5]
        assert {run.owner for run in history} == {"ann"}

    async def test_history_says_when_a_run_began_and_ended(self) -> None:
        claimed = await self.start()
        began = self.now()
        await self.advance(1)
        await self.settle(Settlement.give_back(claimed))
        [run] = await self.store.history(claimed.id)
        assert self.is_about(run.started_at, began)
        assert self.is_about(run.finished_at, self.now())

    async def test_history_keeps_the_newest_twenty(self) -> None:
        task_id = await self.put()
        for _ in range(25):
            [claimed] = await self.claim()
            await self.settle(Settlement.give_back(claimed))
        history = await self.store.history(task_id)
        assert [run.epoch for run in history] == list(range(6, 26))

    async def test_history_goes_on_after_a_retry_by_hand(self) -> None:
        task_id = await self.end(TaskStatus.FAILED)
        await self.store.retry(task_id)
        await self.settle(Settlement.failed(await self.restart(), BOOM))
        history = await self.store.history(task_id)
        assert [(run.epoch, run.outcome) for run in history] == [(1, "failed"), (2, "failed")]

    async def test_history_of_one_task_is_not_anothers(self) -> None:
        first, second = await self.start("a"), await self.start("b", worker="bob")
        await self.settle(Settlement.give_back(second))
        assert await self.store.history(first.id) == []
        assert [run.owner for run in await self.store.history(second.id)] == ["bob"]

    async def test_history_of_a_deleted_task_is_not_found_under_its_id_again(self) -> None:
        self.needs_virtual_time()
        task_id = await self.end(TaskStatus.FAILED)
        await self.store.delete(task_id)
        with pytest.raises(NotFound):
            await self.store.retry(task_id)
        await self.clock.advance(days=1)
        await self.put(id=task_id)
        assert await self.store.history(task_id) == []
        assert (await self.look(task_id)).epoch == 0
