"""Traces for OpenTelemetry, by its own SDK: a trace goes from the enqueue into the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import Drop, Penstock, Retry, WorkerSettings
from penstock.integrations.opentelemetry import Tracing
from penstock.testing import TemporaryServer
from penstock.worker.worker import Worker


@pytest.fixture(scope="module")
def server() -> Iterator[TemporaryServer]:
    with TemporaryServer() as server:
        yield server


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exported: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return provider


def traced(server: TemporaryServer, request: pytest.FixtureRequest, tracing: Tracing) -> Penstock:
    return Penstock(server.address, prefix=f"p{abs(hash(request.node.nodeid)) % 10**9}", middleware=[tracing])


def run(app: Penstock) -> None:
    asyncio.run(Worker(app, WorkerSettings(burst=True)).run())


def by_name(exported: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exported.get_finished_spans()}


@pytest.mark.parametrize("is_async", [True, False])
def test_a_trace_goes_from_the_enqueue_into_the_task(
    server: TemporaryServer, request: Any, provider: TracerProvider, exported: InMemorySpanExporter, is_async: bool
):
    tracer = provider.get_tracer("test")
    with traced(server, request, Tracing(provider=provider)) as app:

        async def in_loop() -> None:
            with tracer.start_as_current_span("inside"):
                pass

        def in_thread() -> None:
            with tracer.start_as_current_span("inside"):
                pass

        task = app.task(queue="mail", name="work")(in_loop if is_async else in_thread)
        with tracer.start_as_current_span("request"):
            job = task.using(tenant="acme").enqueue()
        run(app)
    spans = by_name(exported)
    request_, send, process, inside = (spans[name] for name in ("request", "send mail", "process mail", "inside"))
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    parents = [(span.parent.span_id if span.parent else None) for span in (request_, send, process, inside)]
    assert parents == [None, *(span.context.span_id for span in (request_, send, process) if span.context)]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(process.attributes or {}) == {
        "messaging.system": "penstock",
        "messaging.destination.name": "mail",
        "messaging.operation.type": "process",
        "messaging.operation.name": "run",
        "messaging.message.id": job.id,
        "penstock.task": "work",
        "penstock.tenant": "acme",
        "penstock.attempt": 1,
    }
    assert process.status.status_code is StatusCode.UNSET


def test_failures_are_recorded_and_drops_are_not(
    server: TemporaryServer, request: Any, provider: TracerProvider, exported: InMemorySpanExporter
):
    with traced(server, request, Tracing(provider=provider)) as app:

        @app.task(queue="mail", retry=Retry(1, base=0.01, jitter=0))
        def fail(drop: bool) -> None:
            if drop:
                raise Drop("not needed")
            raise ValueError("broken")

        fail.enqueue(False)
        for _ in range(2):
            run(app)
            time.sleep(0.05)
        fail.enqueue(True)
        run(app)
    *failed, dropped = (span for span in exported.get_finished_spans() if span.name == "process mail")
    assert {span.status.description for span in failed} == {"ValueError: broken"}
    assert [(span.attributes or {})["penstock.attempt"] for span in failed] == [*range(1, len(failed) + 1)]
    assert all(event.name == "exception" for span in failed for event in span.events)
    assert (dropped.status.status_code, len(dropped.events)) == (StatusCode.UNSET, 0)


def test_a_bulk_enqueue_is_one_span_and_runs_can_be_linked(
    server: TemporaryServer, request: Any, provider: TracerProvider, exported: InMemorySpanExporter
):
    with traced(server, request, Tracing(links=True, provider=provider)) as app:

        @app.task(queue="mail")
        def work(n: int) -> None: ...

        app.enqueue_many(work.call(n) for n in range(3))
        run(app)
    send, *runs = sorted(exported.get_finished_spans(), key=lambda span: span.name != "send mail")
    assert (send.attributes or {})["messaging.batch.message_count"] == 3
    assert len(runs) == 3
    for one in runs:
        assert one.parent is None
        assert [link.context.span_id for link in one.links] == [send.context.span_id if send.context else 0]


def test_a_trace_of_the_users_own_is_kept_and_a_damaged_one_is_ignored(
    server: TemporaryServer, request: Any, provider: TracerProvider, exported: InMemorySpanExporter
):
    from penstock import EnqueueContext, Middleware

    class Own(Middleware):
        def enqueue(self, context: EnqueueContext) -> Iterator[None]:
            context.jobs[0].trace = "request-17"
            yield

    with traced(server, request, Tracing(provider=provider)) as app:
        app.add_middleware(Own())
        seen = []

        @app.task(queue="mail")
        def work() -> None:
            seen.append(1)

        work.enqueue()
        run(app)
    assert seen == [1]
    assert by_name(exported)["process mail"].parent is None
