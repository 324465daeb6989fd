"""`q.trace()`: spans of enqueues and runs, with OpenTelemetry's own SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from omniq import InvalidOption, OmniQ, Snooze, TaskFailed

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
