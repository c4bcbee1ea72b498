"""Metrics of jobs, queues and locks for Prometheus, made with its Python client. Needs the extra `prometheus`.

    app = Penstock(middleware=[JobMetrics()])          # jobs and lock waits of this process
    web.mount("/metrics", metrics(app))                # and the state of the queues, as one ASGI application

`penstock worker --metrics-port 9464` does both. Units are seconds and jobs. The labels are names of queues, tasks and
endings, of which an app has few; no label holds a tenant, a job or a lock.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.app import Penstock
from penstock.errors import PenstockError
from penstock.integrations.requirements import needs
from penstock.jobs.middleware import EnqueueContext, JobContext, JobOutcome, Middleware
from penstock.locks import wait_times
from penstock.ops.inspect import Inspector

with needs("prometheus_client", "'penstock[prometheus]'"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from penstock.sql import Outbox

__all__ = ["JobMetrics", "OutboxMetrics", "QueueMetrics", "metrics"]

SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 300, 1800)
"""The buckets of durations and waits. Between 5 ms and 60 s each is at most 2.5 times the one before, so a quantile in
that range is wrong by a factor of less than 2.5."""

NAMES_KEPT: Final = 60.0
"""Seconds for which the names of queues are kept. A search for them reads the names of all keys of the server."""

_GONE: Final = ("completed", "retried", "failed", "dropped", "cancelled", "expired", "lost")


class JobMetrics(Middleware):
    """Counts the jobs that this process enqueues and runs, and measures runs, waits and locks.

    penstock_enqueued_jobs_total         queue                jobs that this process has enqueued
    penstock_runs_total                  queue, task, ending  runs of this process, by `JobOutcome.ending`
    penstock_run_duration_seconds        queue, task          histogram of the durations of runs
    penstock_start_delay_seconds         queue                histogram of the time from the enqueue of a job to its
                                                              first start, by the clock of this host
    penstock_lock_wait_seconds           kind, granted        histogram of the time that requests for locks and permits
                                                              took

    One object serves all apps of a process. Each event costs some microseconds and no round trip.
    """

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=SECONDS, registry=registry)

        self._enqueued = counter("penstock_enqueued_jobs", "Jobs that this process has enqueued", "queue")
        self._runs = counter("penstock_runs", "Runs of jobs by their ending", "queue", "task", "ending")
        self._durations = histogram("penstock_run_duration_seconds", "Duration of runs", "queue", "task")
        self._delays = histogram("penstock_start_delay_seconds", "From the enqueue to the first start", "queue")
        self._lock_waits = histogram("penstock_lock_wait_seconds", "Requests for locks and permits", "kind", "granted")
        wait_times.observers.append(self._lock_waited)

    def enqueue(self, context: EnqueueContext) -> Iterator[None]:
        yield
        self._enqueued.labels(context.queue).inc(len(context.jobs))

    def finished(self, job: JobContext, outcome: JobOutcome) -> None:
        self._runs.labels(job.queue, job.task, outcome.ending).inc()
        if outcome.duration:
            self._durations.labels(job.queue, job.task).observe(outcome.duration)
            if job.deliveries == 1:
                self._delays.labels(job.queue).observe(max(0.0, time.time() - outcome.duration - job.enqueued))

    def _lock_waited(self, kind: str, seconds: float, granted: bool) -> None:
        self._lock_waits.labels(kind, "true" if granted else "false").observe(seconds)


class QueueMetrics:
    """A collector for a registry of Prometheus: what the server knows about the queues, asked at each scrape.

    penstock_up                          whether the server answered
    penstock_info                        version         1
    penstock_queue_jobs                  queue, state    ready, delayed, sleeping, parked, waiting (for other jobs),
                                                         running and dead jobs
    penstock_queue_oldest_seconds        queue           for how long the oldest ready job has waited
    penstock_queue_oldest_parked_seconds  queue          for how long the oldest parked job has waited
    penstock_queue_entered_jobs_total    queue           jobs that ever entered the queue
    penstock_queue_ended_runs_total      queue, ending   completed, retried, failed, dropped, cancelled, expired, lost
    penstock_queue_paused                queue           1 if the queue is paused, so that workers claim no job from it
    penstock_queue_bound_jobs            queue           how many unfinished jobs it may have; only with a bound
    penstock_queue_refused_jobs_total    queue           jobs that a bound has refused
    penstock_queue_workers               queue           registered worker processes
    penstock_queue_workers_busy          queue           jobs of the queue that they hold
    penstock_queue_workers_capacity      queue           jobs that they run at a time, together with their other queues
    penstock_queue_workers_memory_bytes  queue           memory that they have in RAM; only where a worker knows it
    penstock_queue_tenants               queue           tenants with jobs
    penstock_queue_largest_tenant_jobs   queue, state    the waiting and running jobs of the tenant with the most
                                                         waiting jobs: whether one tenant fills the queue

    queues  the queues to report; by default all that were used, whose names are searched once a minute
    """

    def __init__(self, app: Penstock, queues: Sequence[str] | None = None) -> None:
        self._inspector = Inspector(app)
        self._given = queues
        self._names: Sequence[str] = ()
        self._searched_at = -NAMES_KEPT

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that a registry can add this collector without a round trip."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics of the queues. Three round trips for each, four if it has thousands of tenants."""
        up = GaugeMetricFamily("penstock_up", "Whether the server answered")
        try:
            families = self._families()
        except PenstockError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        info = GaugeMetricFamily("penstock_info", "The release of Penstock that answers", labels=("version",))
        info.add_metric((sys.modules["penstock"].__version__,), 1)
        yield info
        yield from families

    def _queues(self) -> Sequence[str]:
        if self._given is not None:
            return self._given
        if time.monotonic() - self._searched_at >= NAMES_KEPT:
            self._names = self._inspector.queues.names()
            self._searched_at = time.monotonic()
        return self._names

    def _families(self) -> list[Metric]:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"penstock_queue_{name}", text, labels=("queue", *labels))

        jobs = gauge("jobs", "Jobs by state", "state")
        oldest = gauge("oldest_seconds", "For how long the oldest ready job has waited")
        oldest_parked = gauge("oldest_parked_seconds", "For how long the oldest parked job has waited")
        paused = gauge("paused", "Whether the queue is paused")
        bounds = gauge("bound_jobs", "How many unfinished jobs the queue may have")
        workers = gauge("workers", "Registered worker processes")
        busy = gauge("workers_busy", "Jobs that worker processes hold")
        capacity = gauge("workers_capacity", "Jobs that worker processes run at a time, of all their queues")
        memory = gauge("workers_memory_bytes", "Memory that worker processes have in RAM")
        tenants = gauge("tenants", "Tenants with jobs")
        largest = gauge("largest_tenant_jobs", "Jobs of the tenant with the most waiting jobs", "state")
        entered = CounterMetricFamily("penstock_queue_entered_jobs", "Jobs that entered the queue", labels=("queue",))
        ended = CounterMetricFamily("penstock_queue_ended_runs", "Ended runs", labels=("queue", "ending"))
        refused = CounterMetricFamily("penstock_queue_refused_jobs", "Jobs that a bound refused", labels=("queue",))
        for view in self._inspector.queues.all(self._queues()):
            name, counts = view.name, view.counts
            for state in ("ready", "delayed", "sleeping", "running", "dead", "parked"):
                jobs.add_metric((name, state), getattr(counts, state))
            jobs.add_metric((name, "waiting"), counts.dependent)
            for ending in _GONE:
                ended.add_metric((name, ending), getattr(counts, ending))
            oldest.add_metric((name,), counts.oldest)
            oldest_parked.add_metric((name,), counts.oldest_parked)
            paused.add_metric((name,), counts.paused)
            entered.add_metric((name,), counts.entered)
            if counts.bound is not None:
                bounds.add_metric((name,), counts.bound)
            refused.add_metric((name,), counts.refused)
            usage = self._inspector.history.usage(name)
            workers.add_metric((name,), usage.workers)
            busy.add_metric((name,), usage.busy)
            capacity.add_metric((name,), usage.capacity)
            if usage.memory is not None:
                memory.add_metric((name,), usage.memory)
            tenants.add_metric((name,), usage.tenants)
            largest.add_metric((name, "waiting"), usage.largest.waiting)
            largest.add_metric((name, "running"), usage.largest.running)
        return [
            *(jobs, oldest, oldest_parked, paused, bounds, workers, busy, capacity, tenants, largest, entered, ended),
            *(memory, refused),
        ]


class OutboxMetrics:
    """A collector for a registry of Prometheus: what waits in an outbox, asked of its database at each scrape.

    penstock_outbox_up                   whether the database answered
    penstock_outbox_calls                state    waiting, sent (and not deleted yet), held
    penstock_outbox_oldest_seconds       for how long the oldest waiting call has waited
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that a registry can add this collector without a query."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics of the outbox. One query of the database."""
        up = GaugeMetricFamily("penstock_outbox_up", "Whether the database answered")
        try:
            found = self._outbox.backlog()
        except PenstockError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        calls = GaugeMetricFamily("penstock_outbox_calls", "Calls in the outbox", labels=("state",))
        for state in ("waiting", "sent", "held"):
            calls.add_metric((state,), getattr(found, state))
        oldest = GaugeMetricFamily("penstock_outbox_oldest_seconds", "For how long the oldest waiting call has waited")
        oldest.add_metric((), found.oldest)
        yield from (up, calls, oldest)


def metrics(
    app: Penstock, *, queues: Sequence[str] | None = None, registry: CollectorRegistry = REGISTRY
) -> Callable[[Any, Any, Any], Any]:
    """An ASGI application that answers each request with the metrics of this process and of the app's queues.

    queues    the queues to report; by default all that were used
    registry  with the metrics of this process

    It has no password, so mount it where only Prometheus can reach it.
    """
    state = CollectorRegistry()
    state.register(QueueMetrics(app, queues))

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        accept = next((value.decode() for name, value in scope["headers"] if name == b"accept"), "")
        encode, kind = choose_encoder(accept)

        def text() -> bytes:
            return bytes(encode(Joined((registry, state))))

        body = await asyncio.to_thread(text)
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


class Joined:
    """Several registries as one."""

    def __init__(self, registries: Iterable[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        for registry in self._registries:
            yield from registry.collect()
