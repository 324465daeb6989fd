"""`q.trace()`: spans of enqueues and runs, with OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from omniq import Context, InvalidOption, OmniQ, Retry, Snooze, TaskFailed
from omniq.hooks import Call

WITHIN_S = 30.0


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def q(spans: InMemorySpanExporter, tmp_path: Path) -> Iterator[OmniQ]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with OmniQ(f"sqlite:///{tmp_path}/jobs.db") as app:
        app.trace(provider)
        yield app
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


@pytest.mark.parametrize("on_loop", [True, False])
def test_a_run_belongs_to_the_trace_of_its_enqueue(
    q: OmniQ, spans: InMemorySpanExporter, on_loop: bool
) -> None:
    def body() -> None:
        with q._tracing._tracer.start_as_current_span("inside"):  # type: ignore[union-attr]
            pass

    async def abody() -> None:
        body()

    job = q.task(name="job", queue="mail")(abody if on_loop else body)
    with q.worker():
        handle = job.enqueue()
        handle.result(timeout=WITHIN_S)
    [sent], [run], [inside] = (named(spans, name) for name in ("send mail", "process mail", "inside"))
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert run.parent is not None
    assert run.parent.span_id == sent.context.span_id
    assert run.links[0].context.span_id == sent.context.span_id
    assert inside.parent is not None
    assert inside.parent.span_id == run.context.span_id
    common = {
        "messaging.system": "omniq",
        "messaging.destination.name": "mail",
        "messaging.message.id": handle.id,
    }
    assert dict(sent.attributes or {}).items() >= (common | {"messaging.operation.type": "send"}).items()
    wanted = common | {
        "messaging.operation.type": "process",
        "omniq.task.name": "job",
        "omniq.task.attempt": 1,
    }
    assert dict(run.attributes or {}).items() >= wanted.items()


async def test_a_batch_is_one_span_and_its_tasks_carry_it(q: OmniQ, spans: InMemorySpanExporter) -> None:
    @q.task(name="job")
    async def job(n: int) -> int:
        return n

    handles = await q.aenqueue_many([job.options(headers={"tenant": "ann"}).call(n) for n in range(3)])
    [sent] = named(spans, "send default")
    assert dict(sent.attributes or {})["messaging.batch.message_count"] == 3
    storage = await q.astorage()
    for handle in handles:
        task = await storage.get_task(handle.id)
        assert task is not None
        assert task.headers["tenant"] == "ann"
        assert f"{sent.context.span_id:016x}" in task.headers["traceparent"]


def test_what_repeats_is_in_no_trace_for_ever(q: OmniQ) -> None:
    @q.task(name="job", interval=60)
    async def job() -> None: ...

    handle = job.enqueue()
    task = q.run(lambda storage: storage.get_task(handle.id), "")
    assert task is not None
    assert "traceparent" not in task.headers


def test_an_error_is_told_by_its_type_alone(q: OmniQ, spans: InMemorySpanExporter) -> None:
    """S12: a message may quote an argument."""

    @q.task(name="boom", max_retries=0)
    async def boom() -> None:
        raise ValueError("c4nary")

    with q.worker(), pytest.raises(TaskFailed):
        boom.enqueue().result(timeout=WITHIN_S)
    [run] = named(spans, "process default")
    assert run.status.status_code is StatusCode.ERROR
    assert dict(run.attributes or {})["error.type"] == "ValueError"
    assert "c4nary" not in run.to_json()


def test_a_snooze_is_no_error(q: OmniQ, spans: InMemorySpanExporter) -> None:
    runs: list[int] = []

    @q.task(name="later")
    async def later() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Snooze(0.01)

    with q.worker():
        later.enqueue().result(timeout=WITHIN_S)
    assert [run.status.status_code for run in named(spans, "process default")] == [StatusCode.UNSET] * 2


def test_twice_is_refused(q: OmniQ) -> None:
    with pytest.raises(InvalidOption, match="once"):
        q.trace()


PROGRAM = """
import sys
{hide}
from omniq import OmniQ
q = OmniQ("memory://")
@q.task(name="job")
def job(): return 7
with q.worker():
    assert job.enqueue().result(timeout=30) == 7
assert not any(name.partition(".")[0] == "opentelemetry" and found for name, found in sys.modules.items())
try:
    q.trace()
except Exception as exc:
    print(type(exc).__name__, exc)
q.close()
"""


@pytest.mark.parametrize(
    ("hide", "says"),
    [("", ""), ("sys.modules['opentelemetry'] = None", "Unsupported traces need pip install")],
)
def test_nothing_is_imported_unasked(hide: str, says: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(hide=hide)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(says)
    assert bool(ended.stdout) is bool(says)


ELSEWHERE = """
import sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, ConsoleSpanExporter
from omniq import OmniQ
q = OmniQ(sys.argv[1])
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
q.trace(provider)
@q.task(name="job")
async def job(): pass
with q.worker():
    q.handle(sys.argv[2]).result(timeout=30)
q.close()
"""


def test_across_processes(q: OmniQ, spans: InMemorySpanExporter, tmp_path: Path) -> None:
    @q.task(name="job")
    async def job() -> None: ...

    handle = job.enqueue()
    command = [sys.executable, "-c", ELSEWHERE, f"sqlite:///{tmp_path}/jobs.db", handle.id]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    run: Any = json.loads(ended.stdout)
    [sent] = named(spans, "send default")
    assert run["name"] == "process default"
    assert int(run["context"]["trace_id"], 16) == sent.context.trace_id
    assert int(run["parent_id"], 16) == sent.context.span_id


UNRECORDED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@pytest.mark.parametrize("on_loop", [True, False])
def test_what_the_sender_did_not_record_is_not_recorded_here(
    q: OmniQ, spans: InMemorySpanExporter, on_loop: bool
) -> None:
    """And the body's own spans know to which trace they belong, each run's to its own."""
    carried: dict[int, str] = {}

    def body(n: int) -> None:
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        carried[n] = headers["traceparent"]

    async def abody(n: int) -> None:
        body(n)

    # Enqueued elsewhere: an enqueue of our own would be recorded, and say so in the header.
    sender = OmniQ(q.url)
    job = sender.task(name="job")(abody if on_loop else body)
    q.task(name="job")(abody if on_loop else body)
    sent = [UNRECORDED, UNRECORDED.replace("0af7", "1bf7")]
    with q.worker(), sender:
        handles = sender.enqueue_many(
            [job.options(headers={"traceparent": said}).call(n) for n, said in enumerate(sent)]
        )
        for handle in handles:
            handle.result(timeout=WITHIN_S)
    assert named(spans, "process default") == []
    assert [carried[0], carried[1]] == sent


def test_what_a_header_says_that_is_none_is_not_believed(q: OmniQ, spans: InMemorySpanExporter) -> None:
    sender = OmniQ(q.url)
    job = sender.task(name="job")(lambda: None)
    q.task(name="job")(lambda: None)
    with q.worker(), sender:
        job.options(headers={"traceparent": "00-nonsense-00"}).enqueue().result(timeout=WITHIN_S)
    [run] = named(spans, "process default")
    assert run.parent is None


def test_hooks_run_inside_the_span_and_a_retry_is_no_error(q: OmniQ, spans: InMemorySpanExporter) -> None:
    seen: list[int] = []

    @q.around
    async def hook(context: Context, call: Call) -> Any:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return await call()

    @q.task(name="again")
    def again() -> None:
        if len(seen) == 1:
            raise Retry(0.01)

    with q.worker():
        again.enqueue().result(timeout=WITHIN_S)
    runs = named(spans, "process default")
    assert [run.context.span_id for run in runs] == seen
    assert [run.status.status_code for run in runs] == [StatusCode.UNSET] * 2


@pytest.mark.parametrize("on_loop", [True, False])
@pytest.mark.parametrize("when", ["on_start", "on_end"])
def test_a_span_processor_that_raises_costs_no_task(tmp_path: Path, when: str, on_loop: bool) -> None:
    """Neither the worker nor what was done: it is logged, and that is all."""
    runs: list[int] = []

    def body(n: int) -> int:
        runs.append(n)
        return n

    async def abody(n: int) -> int:
        return body(n)

    def fail(*_: object) -> None:
        raise RuntimeError("no room for spans")

    provider = TracerProvider(shutdown_on_exit=False)
    with OmniQ(f"sqlite:///{tmp_path}/jobs.db") as app:
        job = app.task(name="job")(abody if on_loop else body)
        handles = [job.enqueue(n) for n in range(3)]
        processor = SimpleSpanProcessor(InMemorySpanExporter())
        setattr(processor, when, fail)
        provider.add_span_processor(processor)
        app.trace(provider)
        with app.worker():
            assert [handle.result(timeout=WITHIN_S) for handle in handles] == [0, 1, 2]
    assert sorted(runs) == [0, 1, 2]


def test_a_retry_of_a_class_of_ones_own_is_no_error_either(q: OmniQ, spans: InMemorySpanExporter) -> None:
    class Later(Retry):
        pass

    runs: list[int] = []

    @q.task(name="again")
    async def again() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Later(0.01)

    with q.worker():
        again.enqueue().result(timeout=WITHIN_S)
    assert [run.status.status_code for run in named(spans, "process default")] == [StatusCode.UNSET] * 2


@pytest.mark.parametrize("sampled", [True, False])
def test_a_body_sees_the_variables_of_its_worker_whoever_was_sampled(tmp_path: Path, sampled: bool) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    provider = TracerProvider(ALWAYS_ON if sampled else ALWAYS_OFF, shutdown_on_exit=False)

    async def body() -> str:
        return tenant.get()

    async def main() -> object:
        app = OmniQ(f"sqlite:///{tmp_path}/jobs.db")
        app.trace(provider)
        job = app.task(name="job")(body)
        tenant.set("ann")
        async with app.async_worker():
            found = await (await job.aenqueue()).aresult(timeout=WITHIN_S)
        await app.aclose()
        return found

    assert asyncio.run(main()) == "ann"
