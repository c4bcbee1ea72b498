"""Every setting: its unit, its default, and the reason for that default.

Durations are seconds (float), sizes are bytes. A value is taken from the first of these that has one:
argument > command line > PENSTOCK_* > [tool.penstock] in pyproject.toml > the default here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

MiB = 1024 * 1024

SLEEPER_TTL_FACTOR = 2.5
"""An idle worker or a listener registers again at a fixed interval. After this many intervals without a new
registration the server forgets it.

So one late or lost registration does no harm, and a process that died is soon forgotten."""


class Seal(Protocol):
    """A codec that seals the bodies of an app: it encrypts or compresses them. Any object with these two methods.

    Several threads call them at the same time. They must not wait for the network: fetch keys when the program starts.
    """

    def seal(self, body: bytes, /) -> tuple[str, bytes]:
        """The id of the key that was used, and the sealed body.

        The id is 1 to 64 characters of ASCII, without spaces and quotation marks. Everybody can read it.
        """
        ...

    def open(self, sealed: bytes, key: str, /) -> bytes:
        """The body again. Raises KeyError for an id of a key that it does not have."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an app. Every one has a default that suits most programs."""

    prefix: str = "penstock"
    """The beginning of every key. Two apps on one server need different prefixes."""

    lease: float = 10.0
    """How long a claim lasts without a heartbeat. Long enough for a pause of the garbage collector or a short network
    failure, short enough that the jobs of a killed worker run again soon."""

    result_ttl: float = 600.0
    """How long the result of a finished job is kept. 0: not at all."""

    source: str = ""
    """The name of this host as a sender of files. Empty: $PENSTOCK_SOURCE, or the name that the system gives it."""

    max_payload: int = 1 * MiB
    """Largest encoded call or result. Larger data belongs in a file or an object store, and its address in the job."""

    connect_timeout: float = 3.0
    """How long one attempt to connect may take."""

    reply_timeout: float = 5.0
    """How long one reply may take before its connection counts as lost. Penstock's scripts take milliseconds, so a
    reply that is later than this will not arrive. Half a lease, so that a lost heartbeat is sent again in time."""

    give_up_after: float = 15.0
    """How long an operation is retried, from its first failure, before it raises `ServerUnavailable`. A failover takes
    a few seconds. A worker never gives up."""

    ping_interval: float = 5.0
    """While something waits for messages, a node that was silent for this long is sent a PING. If it does not answer
    within 0.4 of this time, it counts as lost. So a server that froze is noticed within 7 s."""

    sleep: float = 20.0
    """How often an idle worker, or a claim that waits, registers again for wake-ups."""

    shards: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The number of shards with which each of these queues begins, as `Penstock.queue` takes it. If the app gets no
    `settings`: $PENSTOCK_SHARDS, as in `mail=8,raw=2`, else `shards` in [tool.penstock]."""

    seal: Seal | None = field(default=None, hash=False, repr=False)
    """A codec that seals the bodies of this app: arguments, results, notes, steps, signals, reasons and messages. None:
    the server can read them. If the app gets no `settings`: $PENSTOCK_SEAL, as in `shop.keys:seal`, else `seal` in
    [tool.penstock]."""

    durable_timeout: float = 2.0
    """How long `durable=True` waits for the disk or a replica before it raises `NotDurable`."""

    address_remap: Callable[[tuple[str, int]], tuple[str, int]] | None = None
    """Translates the host and port that a Sentinel or a cluster node reports into one that can be reached from here, as
    behind NAT. The addresses that the program itself gives are used as they are. None: no translation."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The options of a worker."""

    concurrency: int = 10
    """How many jobs run at once in one process."""

    isolated: int | None = None
    """How many processes run `isolate=True` tasks at once. None: as many as `concurrency`, so that every claimed job
    starts. Fewer save memory and CPU, but claimed jobs then wait here for a process."""

    queues: tuple[str, ...] = ()
    """The queues to serve, in strict order: the second is asked only when the first has nothing. Empty: every queue
    that has a task, in rotation."""

    burst: bool = False
    """Stop when no job is ready any more."""

    prefetch: float = 0.020
    """Beyond its free runners a worker claims only jobs that will start within this time, as estimated from the mean
    duration of past jobs, so that an urgent job does not wait behind prefetched ones."""

    max_batch: int = 256
    """The most jobs that one turn may claim; keeps a turn below a millisecond or two of server time."""

    settle_within: float = 0.005
    """A finished job is settled within this time, in a turn shared with other jobs."""

    stop_timeout: float = 30.0
    """How long a graceful stop waits for running jobs before it hands them back."""

    trials: int = 2
    """How many trial processes a supervisor runs at once, for all its queues. They try suspects: jobs that may have
    killed a worker. Each runs one suspect at a time, and exists only while there are some."""

    host_deaths: int = 10
    """A suspect becomes a dead letter when its host has died in this many of its trials. 0: never. The number is higher
    than for crashes, because a host may die for a reason of its own, as spot machines do."""

    max_jobs: int | None = None
    """After this many jobs a worker process retires: it claims no more, finishes those that run, however long they
    take, and ends. Its supervisor starts the next one at once. For code that leaks. None: never."""

    max_memory: int | None = None
    """A worker process that uses more bytes of memory than this (resident, without its isolated processes) retires as
    after `max_jobs`. None: never."""

    job_log_level: LogLevel = "debug"
    """The level of the log lines that say that a job starts, and that it has completed. Other endings have levels of
    their own."""

    blocked_warning: float = 1.0
    """If a task blocks the event loop for longer than this, a warning names the task."""

    unknown_backoff: float = 5.0
    """The first delay of a job whose task this worker does not know, as in a rolling deploy. It doubles up to
    twelve times this."""

    unknown_limit: float = 3600.0
    """A job whose task no worker has known for this long becomes a dead letter."""

    release: str | None = None
    """The name of the release that the worker runs, at most 64 bytes. Workers of different releases hand a call to each
    other if they cannot read it. None: `PENSTOCK_RELEASE`, `release` in [tool.penstock], or else a digest of the tasks
    and their parameters, so that a rolling deployment needs no name."""
