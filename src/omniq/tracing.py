"""OpenTelemetry spans for enqueueing and running, joined across processes by the headers of the task.

Imported only by `q.trace()`: an application without traces needs no OpenTelemetry, and pays for one look
at an attribute. Names and attributes follow the conventions for messaging.

    enqueue: span "send QUEUE" ── traceparent in the headers ──> worker: span "process QUEUE", begun and ended
                                                                 by the crew, current while the body runs

Whoever enqueues decides whether a trace is recorded. What that left out is left out here at once,
without asking the sampler again: at thousands of tasks a second nearly all of them are left out.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

import msgspec
from opentelemetry import context, trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from omniq.running import current
from omniq.task import Action, Failed, Outcome, Settlement, StoredTask

if TYPE_CHECKING:
    from omniq.executors import Flight

SYSTEM: Final = "omniq"
_HEADERS: Final = TraceContextTextMapPropagator()
_PARENT: Final = "traceparent"
# A header is as long as this, and the lowest bit of its last digit says whether the trace is recorded.
_LENGTH: Final = 55
_NOT_RECORDED: Final = frozenset("02468ace")


class Tracing:
    """What `q.trace()` sets up: `sending` around every enqueue, `began` and `ended` for every run."""

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
        with self._tracer.start_as_current_span(
            _named("send", queue), None, SpanKind.PRODUCER, attributes,
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            carried: dict[str, str] = {}
            _HEADERS.inject(carried)
            try:
                yield [_carrying(task, carried) for task in tasks]
            except BaseException as exc:
                _tell_error(span, type(exc).__qualname__)
                raise

    def stand_by(self) -> None:
        """Called once where runs begin: what those find that have no span here."""
        context.attach(_left_out)

    def began(self, flight: Flight) -> None:
        """A span for one run, in the trace of whoever enqueued its task, and current for its body."""
        headers = flight.claim.headers
        said = headers.get(_PARENT)
        if said is not None and len(said) == _LENGTH and said[-1] in _NOT_RECORDED:
            flight.context.sent_with = headers
            return
        sender = context.Context() if said is None else _HEADERS.extract(headers)
        origin = trace.get_current_span(sender).get_span_context()
        task = flight.claim
        attributes = _attributes("process", task.queue) | {
            "messaging.message.id": task.id,
            "omniq.task.name": task.func_path,
            "omniq.task.attempt": flight.context.attempt,
        }
        links = [Link(origin)] if origin.is_valid else []
        span = self._tracer.start_span(
            _named("process", task.queue), sender, SpanKind.CONSUMER, attributes, links
        )
        if span is trace.INVALID_SPAN:  # nothing is set up that could record it
            return
        flight.span = span
        flight.variables = copy_context()
        flight.variables.run(context.attach, trace.set_span_in_context(span, sender))

    def ended(self, flight: Flight, settlement: Settlement | None, outcome: Outcome | None) -> None:
        """No settlement: nobody asks us any more what becomes of the task."""
        if settlement is not None and settlement.error is not None and not _asked_for(settlement, outcome):
            _tell_error(flight.span, settlement.error.type)
        flight.span.end()


# --- runs that are not recorded ------------------------------------------------------------------


class _LeftOut(NonRecordingSpan):
    """The span of whoever enqueued the task that runs here. Read only if its body begins spans of its own."""

    def get_span_context(self) -> SpanContext:
        run = current.get(None)
        if run is None or run.sent_with is None:
            return trace.INVALID_SPAN_CONTEXT
        return trace.get_current_span(_HEADERS.extract(run.sent_with)).get_span_context()


# One span for all of them, made once and current wherever runs begin. A context of its own for each run, and
# what is in it, would make the garbage collector go round four times as often.
_left_out: Final = trace.set_span_in_context(_LeftOut(trace.INVALID_SPAN_CONTEXT), context.Context())


def _asked_for(settlement: Settlement, outcome: Outcome | None) -> bool:
    """It goes on later, because its body wished so. A `Retry`, of whatever class, has no kinds."""
    if settlement.action is Action.GIVE_BACK:
        return True
    wished = isinstance(outcome, Failed) and not outcome.kinds and outcome.error.kind == "error"
    return wished and settlement.action is Action.RETRY


def _named(operation: str, queue: str | None) -> str:
    return operation if queue is None else f"{operation} {queue}"


def _tell_error(span: trace.Span, kind_of_error: str) -> None:
    """Only the type: a message may quote an argument, and traces are read by many."""
    span.set_attribute("error.type", kind_of_error)
    span.set_status(Status(StatusCode.ERROR, kind_of_error))


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
