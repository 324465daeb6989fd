"""OpenTelemetry spans for enqueueing and running, joined across processes by the headers of the task.

Imported only by `q.trace()`: an application without traces needs no OpenTelemetry, and pays for one look
at an attribute. Names and attributes follow the conventions for messaging.

    enqueue: span "send QUEUE" ── traceparent in the headers ──> worker: span "process QUEUE" around the run
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from omniq.errors import Retry, Snooze, TaskFailed
from omniq.hooks import Call
from omniq.running import Context
from omniq.task import StoredTask

SYSTEM: Final = "omniq"
# No failures: the task goes on later, or whoever stopped it knows.
NO_ERRORS: Final = (Retry, Snooze, asyncio.CancelledError)
_HEADERS: Final = TraceContextTextMapPropagator()


class Tracing:
    """What `q.trace()` sets up: `sending` around every enqueue, `around` around every run."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("omniq", tracer_provider=provider)

    @contextmanager
    def sending(self, tasks: list[StoredTask]) -> Generator[list[StoredTask]]:
        """A span for one enqueue, of however many: gives the tasks with the span in their headers."""
        queues = {task.queue for task in tasks}
        queue = queues.pop() if len(queues) == 1 else None
        attributes: dict[str, AttributeValue] = _attributes("send", queue)
        if len(tasks) == 1:
            attributes |= {"messaging.message.id": tasks[0].id, "omniq.task.name": tasks[0].func_path}
        else:
            attributes["messaging.batch.message_count"] = len(tasks)
        with self._span("send", queue, SpanKind.PRODUCER, attributes):
            carried: dict[str, str] = {}
            _HEADERS.inject(carried)
            yield [_carrying(task, carried) for task in tasks]

    async def around(self, context: Context, call: Call) -> Any:
        """A hook: a span for one run, in the trace of whoever enqueued its task."""
        sender = _HEADERS.extract(call.headers)
        origin = trace.get_current_span(sender).get_span_context()
        attributes = _attributes("process", call.queue) | {
            "messaging.message.id": context.task_id,
            "omniq.task.name": call.name,
            "omniq.task.attempt": context.attempt,
        }
        links = [Link(origin)] if origin.is_valid else []
        with self._span("process", call.queue, SpanKind.CONSUMER, attributes, links, sender):
            return await call()

    @contextmanager
    def _span(
        self,
        operation: str,
        queue: str | None,
        kind: SpanKind,
        attributes: dict[str, AttributeValue],
        links: list[Link] | None = None,
        parent: Any = None,
    ) -> Generator[None]:
        name = operation if queue is None else f"{operation} {queue}"
        with self._tracer.start_as_current_span(
            name, parent, kind, attributes, links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except NO_ERRORS:
                raise
            except BaseException as exc:
                # Only the type: a message may quote an argument, and traces are read by many.
                kind_of_error = _type_of(exc)
                span.set_attribute("error.type", kind_of_error)
                span.set_status(Status(StatusCode.ERROR, kind_of_error))
                raise


def _attributes(operation: str, queue: str | None) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    return attributes


def _carrying(task: StoredTask, carried: dict[str, str]) -> StoredTask:
    """A task that repeats would make its trace longer for ever: each of its runs begins one of its own."""
    if task.repeats or not carried:
        return task
    return msgspec.structs.replace(task, headers=task.headers | carried)


def _type_of(exc: BaseException) -> str:
    if isinstance(exc, TaskFailed) and exc.error is not None:  # a body in a process: it stays there
        return exc.error.type
    return type(exc).__qualname__
