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
    """What a worker may tune."""

    concurrency: int = 10
    """Jobs that run at once in one process."""

    isolated: int | None = None
    """Processes for `isolate=True` tasks at once. None: as many as `concurrency`, so that what was claimed starts;
    fewer save memory and processor, but hold jobs here that wait for a process."""

    queues: tuple[str, ...] = ()
    """In strict order: the second is asked only when the first has nothing. Empty: every queue with a task."""

    burst: bool = False
    """Stop when nothing is ready any more."""

    prefetch: float = 0.020
    """Beyond its free runners a worker claims only what it will start within this time, by its measured
    mean duration, so that an urgent job never waits behind a hoard."""

    max_batch: int = 256
    """Most jobs one turn may claim; keeps a turn below a millisecond or two of server time."""

    settle_within: float = 0.005
    """A finished job's settlement leaves at the latest after this time, in a turn shared with others."""

    stop_timeout: float = 30.0
    """How long a graceful stop lets running jobs go on before they are handed back."""

    blocked_warning: float = 1.0
    """A task that holds the event loop longer than this is named in a warning."""

    unknown_backoff: float = 5.0
    """First delay of a job whose task no worker knows yet (a rolling deploy); doubles up to a minute."""

    unknown_limit: float = 3600.0
    """A job no worker knew for this long becomes a dead letter."""
