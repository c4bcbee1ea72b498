"""Traces of jobs for OpenTelemetry. Needs the extra `opentelemetry`, and an SDK that your program sets up.

    app = Penstock(middleware=[Tracing()])

The trace of the code that enqueues continues in the worker: its context travels with the job as a W3C `traceparent`.
Names follow the semantic conventions for messaging. Without an SDK the spans are no-ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.integrations.requirements import needs
from penstock.jobs.middleware import MAX_TRACE, EnqueueContext, JobContext, Middleware
from penstock.jobs.retry import Drop, RetryLater

with needs("opentelemetry", "'penstock[opentelemetry]'"):
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["Tracing"]

_PROPAGATOR: Final = TraceContextTextMapPropagator()

_SYSTEM: Final = "penstock"


class Tracing(Middleware):
    """A span around each enqueue, and one around each run of a task.

    send QUEUE     PRODUCER: one for each round trip that enqueues
    process QUEUE  CONSUMER: a child of it, where the task runs, and the parent of what the task does

    Attributes: `messaging.system` "penstock", `messaging.destination.name` the queue, `messaging.operation.type` and
    `.name`, `messaging.message.id` the job's id, `messaging.batch.message_count` of a bulk enqueue, and
    `penstock.task`, `penstock.tenant`, `penstock.attempt`. An exception of the task is recorded, except `RetryLater`
    and `Drop`.

    links     start a new trace for each run, with a link to the enqueue, instead of continuing its trace: for jobs that
              run hours later
    provider  the provider of the tracer; None: the global one
    """

    def __init__(self, *, links: bool = False, provider: TracerProvider | None = None) -> None:
        self._links = links
        self._provider = provider

    @property
    def _tracer(self) -> trace.Tracer:
        return trace.get_tracer("penstock", tracer_provider=self._provider)

    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        attributes = _attributes(context.queue, "send", "enqueue")
        if len(context.jobs) == 1:
            job = context.jobs[0]
            attributes |= {"messaging.message.id": job.id, "penstock.task": job.task, "penstock.tenant": job.tenant}
        else:
            attributes["messaging.batch.message_count"] = len(context.jobs)
        with self._tracer.start_as_current_span(f"send {context.queue}", kind=SpanKind.PRODUCER, attributes=attributes):
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier)
            text = _packed(carrier)
            for job in context.jobs:
                if text and not job.trace:
                    job.trace = text
            yield

    def execute(self, job: JobContext) -> Iterator[None]:
        attributes = _attributes(job.queue, "process", "run") | {
            "messaging.message.id": job.id,
            "penstock.task": job.task,
            "penstock.tenant": job.tenant,
            "penstock.attempt": job.attempt,
        }
        sent = _PROPAGATOR.extract(_carrier(job.trace), context=Context())
        linked = trace.get_current_span(sent).get_span_context()
        parent, links = (Context(), [Link(linked)] if linked.is_valid else []) if self._links else (sent, [])
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except (RetryLater, Drop):
                raise
            except BaseException as error:
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
                raise


def _attributes(queue: str, kind: str, name: str) -> dict[str, Any]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
    }


def _packed(carrier: Mapping[str, str]) -> str:
    """`traceparent`, followed by a space and `tracestate` if both fit."""
    parent, state = carrier.get("traceparent", ""), carrier.get("tracestate", "")
    whole = f"{parent} {state}" if state else parent
    return whole if len(whole.encode()) <= MAX_TRACE else parent


def _carrier(text: str) -> dict[str, str]:
    parent, _, state = text.partition(" ")
    return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}
