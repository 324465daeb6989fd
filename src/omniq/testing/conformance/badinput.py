"""What nobody should write: refused by name, with what to write instead, and nothing is changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from omniq.errors import InvalidOption, PayloadTooLarge, UnserializableArgument
from omniq.storage.batched import BatchedStorage
from omniq.task import Claim, StoredTask, Task
from omniq.testing.conformance.case import JOB, FullCase

NAIVE = datetime(2031, 1, 1)  # noqa: DTZ001 - the point is that it has no time zone
HOSTILE_NAMES = (
    *("", " ", "-x", ".x", ":x", "a b", "a/b", "a'b", 'a"b', "a;b", "a*", "a%", "a\\b", "a\x00b", "a\nb"),
    *("{x}", "ä", "\u202ea", "x" * 129, "'; DROP TABLE omniq_task; --", "a\r\nSET b 1"),
)

Verb = Callable[[BatchedStorage], Awaitable[Any]]

# What is asked, and a word of what the message must say.
REFUSED: dict[str, tuple[Verb, str]] = {
    "claim: negative limit": (lambda s: s.claim("ann", limit=-1), "limit"),
    "claim: limit is no number": (lambda s: s.claim("ann", limit="3"), "limit"),  # type: ignore[arg-type]
    "claim: limit is a bool": (lambda s: s.claim("ann", limit=True), "limit"),
    "claim: no lease": (lambda s: s.claim("ann", lease=0), "lease"),
    "claim: negative lease": (lambda s: s.claim("ann", lease=-1), "lease"),
    "claim: endless lease": (lambda s: s.claim("ann", lease=float("inf")), "lease"),
    "claim: lease is no number": (lambda s: s.claim("ann", lease=float("nan")), "lease"),
    "claim: nobody's": (lambda s: s.claim(""), "worker"),
    "claim: queues as one text": (lambda s: s.claim("ann", "mail"), "queues"),
    "exchange: no lease": (lambda s: s.exchange((), Claim("ann", lease=0)), "lease"),
    "exchange: hostile queue": (lambda s: s.exchange((), Claim("ann", ("a b",))), "queue"),
    "renew: no lease": (lambda s: s.renew("ann", 0), "lease"),
    "renew: negative lease": (lambda s: s.renew("ann", -3), "lease"),
    "lapse: no limit": (lambda s: s.lapse(0), "limit"),
    "prune: no limit": (lambda s: s.prune(0), "limit"),
    "list: no limit": (lambda s: s.list_tasks(limit=0), "limit"),
    "list: endless": (lambda s: s.list_tasks(limit=10**9), "limit"),
    "reschedule: naive eta": (lambda s: s.reschedule("t", NAIVE), "time zone"),
    "reschedule: no moment": (lambda s: s.reschedule("t", 5), "eta"),  # type: ignore[arg-type]
    "rates: naive moment": (lambda s: s.rates(NAIVE), "time zone"),
    "enqueue: not a task": (lambda s: s.enqueue("jobs.resize"), "Task"),  # type: ignore[arg-type]
    "enqueue: no such conflict": (
        lambda s: s.enqueue_many([], on_conflict="ignore"),  # type: ignore[arg-type]
        "on_conflict",
    ),
    "enqueue: bytes with a hostile queue": (
        lambda s: s.enqueue(StoredTask(JOB, b"", queue="a b")),
        "queue",
    ),
    "enqueue: bytes with a hostile function": (
        lambda s: s.enqueue(StoredTask("os;system", b"")),
        "func_path",
    ),
    "enqueue: bytes with a naive eta": (
        lambda s: s.enqueue(StoredTask(JOB, b"", eta=NAIVE)),
        "time zone",
    ),
}


class BadInput(FullCase):
    """Each is an error of the project's own."""

    async def test_headers_are_looked_at_when_they_are_kept(self) -> None:
        """A task is frozen, a dict in it is not: what cannot be read again must not be stored."""
        task = Task(JOB, headers={"by": "ann"}, id="t")
        task.headers["count"] = 5  # type: ignore[assignment]
        with pytest.raises(InvalidOption, match="headers"):
            await self.store.enqueue(task)
        assert await self.store.get_task("t") is None

    async def test_headers_are_those_of_the_enqueue(self) -> None:
        headers = {"by": "ann"}
        await self.store.enqueue(Task(JOB, headers=headers, id="t"))
        headers["by"] = "bob"
        assert (await self.look("t")).headers == {"by": "ann"}

    @pytest.mark.parametrize("case", REFUSED)
    async def test_a_bad_argument_is_refused(self, case: str) -> None:
        await self.put(id="t", eta=self.moment(9))
        before = await self.snapshot()
        call, word = REFUSED[case]
        with pytest.raises(InvalidOption, match=word):
            await call(self.store)
        assert await self.snapshot() == before

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    async def test_a_hostile_queue_name_is_refused_everywhere(self, name: str) -> None:
        """S6."""
        await self.put()
        before = await self.snapshot()
        for refuse in (
            lambda: self.store.pause(name),
            lambda: self.store.resume(name),
            lambda: self.store.claim("ann", [name]),
            lambda: self.store.claim("ann", ["default", name]),
        ):
            with pytest.raises(InvalidOption, match="queue name"):
                await refuse()
        with pytest.raises(InvalidOption, match="queue name"):
            Task(JOB, queue=name)
        assert await self.snapshot() == before

    @pytest.mark.parametrize("text", ["'; DROP TABLE omniq_task; --", "%", "*", "{x}", "'", '"', "ключ"])
    async def test_hostile_texts_are_only_texts(self, text: str) -> None:
        """S6: ids, keys, workers, headers and errors are values, never part of a statement."""
        await self.put(text, id=text, unique_key=text, headers={text: text})
        [claimed] = await self.claim(text, claim_id=text)
        assert (claimed.id, claimed.owner) == (text, text)
        assert [one.id for one in await self.store.held(text)] == [text]
        await self.store.progress(text, 1, 1, 2)
        assert await self.store.release(text) == 1
        await self.store.cancel(text)
        task = await self.look(text)
        assert (task.args, task.headers, task.unique_key) == ((text,), {text: text}, text)
        await self.store.delete(text)
        assert await self.store.list_tasks() == []

    async def test_what_cannot_be_encoded_is_refused_by_name(self) -> None:
        with pytest.raises(UnserializableArgument, match="object"):
            await self.put(1, object())
        assert await self.store.list_tasks() == []

    async def test_a_call_over_the_limit_is_refused(self) -> None:
        with pytest.raises(PayloadTooLarge, match="max_payload"):
            await self.put("x" * (1 << 20))
        assert await self.store.list_tasks() == []

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"priority": 10}, "priority"),
            ({"priority": -1}, "priority"),
            ({"priority": 1.5}, "priority"),
            ({"eta": NAIVE}, "time zone"),
            ({"eta": 5}, "eta"),
            ({"expires_at": NAIVE}, "time zone"),
            ({"interval": "60"}, "interval"),
            ({"interval": float("nan")}, "interval"),
            ({"timeout": 0}, "timeout"),
            ({"timeout": -1}, "timeout"),
            ({"max_retries": -1}, "max_retries"),
            ({"max_losses": 0}, "max_losses"),
            ({"unique_key": ""}, "unique_key"),
            ({"unique_key": "x" * 513}, "unique_key"),
            ({"id": ""}, "id"),
            ({"id": "a\x00b"}, "id"),
            ({"headers": {"a": 1}}, "headers"),
            ({"on_failure": "explode"}, "on_failure"),
            ({"kwargs": {1: 2}}, "kwargs"),
            ({"args": "abc"}, "args"),
            ({"queue": "a b"}, "queue"),
        ],
    )
    async def test_a_task_that_nobody_could_run_cannot_be_made(
        self, options: dict[str, Any], word: str
    ) -> None:
        with pytest.raises(InvalidOption, match=word):
            Task(JOB, **options)

    @pytest.mark.parametrize("path", ["", " ", "a b", "a..b", ".a", "a.", "1a", "a;b", "a.b()", "x" * 600])
    async def test_a_function_that_no_path_can_mean_is_refused(self, path: str) -> None:
        with pytest.raises(InvalidOption, match="func_path"):
            Task(path)

    async def test_an_eta_in_any_time_zone_is_the_same_moment(self) -> None:
        eta = datetime(2031, 6, 1, 12, tzinfo=timezone(timedelta(hours=2)))
        kept = await self.look(await self.put(eta=eta))
        assert kept.eta == datetime(2031, 6, 1, 10, tzinfo=UTC)
