"""Every knob of the house: its unit, its default, and why that default.

Durations are seconds (float), sizes are bytes. Order of precedence for what comes from outside:
argument > command line > PENSTOCK_* > [tool.penstock] in pyproject.toml > these defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

MiB = 1024 * 1024

SLEEPER_TTL_FACTOR = 2.5
"""The server forgets an idle worker or a listener after this many times the interval in which it registers again.

One late or lost registration does no harm; one that died is soon forgotten."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an app may tune. All of it has a default that is right for most."""

    prefix: str = "penstock"
    """First part of every key; two apps on one server differ in it."""

    lease: float = 10.0
    """How long a claim lives without a sign of life: long enough for a pause of the garbage collector or a
    network hiccup, short enough that a killed worker's jobs run again soon."""

    result_ttl: float = 600.0
    """How long a finished job's result can be asked for. 0 keeps nothing."""

    max_payload: int = 1 * MiB
    """Largest encoded call or result. Bigger data belongs in a file or an object store, its address in the job."""

    connect_timeout: float = 3.0
    """One attempt to reach the server."""

    reply_timeout: float = 5.0
    """How long one command may take before the connection is given up. No script of ours holds the server
    longer than milliseconds; what takes this long is a lost connection. Half a lease, so that a heartbeat that went
    into one is sent again in time."""

    give_up_after: float = 15.0
    """How long a call goes on trying a server that does not answer before it raises `ServerUnavailable`.
    A failover takes a few seconds. A worker never gives up."""

    block: float = 10.0
    """How long one blocked read waits. Bounded, because a slot that moves away forgets its blocked clients."""

    sleep: float = 20.0
    """How often a sleeping worker or claim says that it still sleeps."""

    durable_timeout: float = 2.0
    """How long `durable=True` waits for the disk or the replica before it raises `NotDurable`."""


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
    that has a task."""

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

    blocked_warning: float = 1.0
    """A task that blocks the event loop for longer than this is named in a warning."""

    unknown_backoff: float = 5.0
    """The first delay of a job whose task this worker does not know, as in a rolling deploy. It doubles up to a
    minute."""

    unknown_limit: float = 3600.0
    """A job whose task no worker has known for this long becomes a dead letter."""
