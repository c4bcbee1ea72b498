"""Every error Penstock raises, as one tree.

    PenstockError
    ├── ConfigurationError        an address, a setting or a name that cannot work      (fix the program)
    ├── BadCall                   arguments or a payload that do not fit                (fix the caller)
    │   ├── PayloadTooLarge
    │   ├── UnknownTask
    │   └── BadName
    ├── ServerError               the server, or the way to it                          (look at the server)
    │   ├── ServerUnavailable         nobody answers at the address
    │   ├── ServerRefused             wrong password, or a user without the rights
    │   ├── ServerTooOld
    │   ├── ServerFull                maxmemory is reached: nothing was written
    │   ├── FormatTooNew              the stored data is from a newer Penstock
    │   ├── DurabilityUnavailable     nothing was enqueued: the server cannot promise the disk
    │   └── NotDurable                enqueued, but the promise did not come in time
    ├── LeaseLost                 the claim, lock or permit is somebody else's now: drop the work
    ├── LockTimeout               (also a TimeoutError) others held the lock all the time
    ├── PermitTimeout             (also a TimeoutError) others held the permits all the time
    ├── RateLimited               (also a TimeoutError) no room within `wait`; `retry_after` says when
    ├── TransactionRefused        a condition did not hold: nothing was written
    ├── MessageError              a mailbox or a chat cannot take or give a message
    │   ├── ChatGone                  never created, or its last member has left
    │   ├── ChatExists
    │   ├── NotAMember
    │   └── NoSpace                   it keeps at most so much, and the reader is behind
    ├── FilesError                a file, or a channel of files, that cannot be sent or received
    │   ├── FileDamaged               it is not what its format or its digest says
    │   ├── FileChanged               it is not what it was when its sending began
    │   └── ChannelError              the channel itself cannot take or give
    │       ├── ChannelClosed
    │       ├── NoReceiver                a name that is none of its receivers, or it has none at all
    │       ├── SentElsewhere             another process sends this file by now
    │       └── BlocksMissed              this receiver was away for too long: a gap
    └── JobError                  asking for a result
        ├── JobFailed                 it is a dead letter; the reason is in the text
        ├── JobCancelled
        ├── JobExpired
        ├── JobNotFound               never enqueued here, or its record is gone
        ├── ResultNotKept             the job ran with result_ttl=0
        └── ResultTimeout             (also a TimeoutError) it is not finished yet

What a task raises to say how it ended (`Retry`, `Drop`, `RetryLater`) is in `tasks/retry.py`.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of all of them; catch it at the edge of a program."""


class ConfigurationError(PenstockError, ValueError):
    """An address, a setting or a name that cannot work. The text names the fix."""


class BadCall(PenstockError, TypeError):
    """Arguments that do not fit the task's signature, or a value JSON cannot hold. Nothing was sent."""


class PayloadTooLarge(BadCall):
    """The encoded call is above `max_payload`. Nothing was sent: store the data, enqueue its address."""


class UnknownTask(BadCall):
    """No task of this name is registered in this app; the text lists those that are."""


class BadName(BadCall, ValueError):
    """A name, id, prefix, weight or cursor that cannot be; the text says why. Nothing was sent."""


class ServerError(PenstockError):
    """The server or the way to it failed; steps may be sent again."""


class ServerUnavailable(ServerError, ConnectionError):
    """Nobody answered at the address within the time allowed."""


class ServerRefused(ServerError):
    """The server answered, but not to us: wrong password, or a user without the rights."""


class ServerTooOld(ServerError):
    """The server lacks a command Penstock needs (Valkey 7.2 or Redis 7.0 and newer have them)."""


class ServerFull(ServerError):
    """The server is at `maxmemory` and refused new work before anything was written."""


class FormatTooNew(ServerError):
    """The stored data was written by a newer Penstock. Nothing was read or changed: update this process."""


class DurabilityUnavailable(ServerError):
    """`durable=True` on a server that cannot be trusted to say when a write is safe. Nothing was enqueued."""


class NotDurable(ServerError):
    """The job is accepted, but its safety was not confirmed in time; it may be lost with the server's memory."""


class LeaseLost(PenstockError):
    """The lease on a claim, a lock or a permit ran out or was taken back. Drop the work: another may have it."""


class LockTimeout(PenstockError, TimeoutError):
    """The lock was not free within `wait`. Nothing is held, no place in line is kept."""


class PermitTimeout(PenstockError, TimeoutError):
    """The permits were not free within `wait`. Nothing is held, no place in line is kept."""


class RateLimited(PenstockError, TimeoutError):
    """A rate limit has no room within `wait`. Nothing is reserved; `retry_after`: seconds until there would be."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TransactionRefused(PenstockError):
    """A condition of a transaction did not hold, or a key holds what a write cannot work on. Nothing was written.

    `condition`: the first that failed, as it was written; `found`: what was there, None for nothing.
    """

    def __init__(self, message: str, *, condition: str = "", found: bytes | None = None) -> None:
        super().__init__(message)
        self.condition = condition
        self.found = found


class MessageError(PenstockError):
    """A mailbox or a chat cannot take or give a message. Nothing was written."""


class ChatGone(MessageError):
    """No chat of this id: never created, deleted, or its last member has left."""


class ChatExists(MessageError):
    """A chat of this id is there already; it was left as it is."""


class NotAMember(MessageError):
    """Who sends or reads is no member of the chat: never joined, left, or was kicked."""


class NoSpace(MessageError):
    """It keeps at most so many messages or bytes, refuses more, and its reader is behind. Try later, or with `wait`."""


class FilesError(PenstockError):
    """A file cannot be read, sent, received or saved. The text names the file and the reason."""


class FileDamaged(FilesError):
    """The bytes of a file are not what its format or its digest says they are. Fetch it again from where it came."""


class FileChanged(FilesError):
    """A file is not what it was when its sending began: truncated, replaced or overwritten. Send it as a new one."""


class ChannelError(FilesError):
    """A channel of files cannot take or give anything: it was never made, or was deleted."""


class ChannelClosed(ChannelError):
    """Nothing can be sent: it was closed, and some receivers have not had all yet."""


class NoReceiver(ChannelError):
    """A name that is none of the channel's receivers; or it has none, and what is sent would reach nobody."""


class SentElsewhere(ChannelError):
    """Another process has gone on with this file; this one has stopped."""


class BlocksMissed(ChannelError):
    """A receiver was not heard of for longer than the channel's `patience`, and records were let go of meanwhile."""


class JobError(PenstockError):
    """A job has no result to give."""


class JobFailed(JobError):
    """The job is a dead letter. `reason` is one line, `traceback` the worker's text or ''."""

    def __init__(self, message: str, *, reason: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.traceback = traceback


class JobCancelled(JobError):
    """The job was cancelled or purged before it ran."""


class JobExpired(JobError):
    """The job's `expires` passed before a worker was free; it did not run."""


class JobNotFound(JobError):
    """No job of this id: never enqueued here, or finished longer ago than its `result_ttl`."""


class ResultNotKept(JobError):
    """The job was enqueued with `result_ttl=0`: its result is not kept anywhere."""


class ResultTimeout(JobError, TimeoutError):
    """The job is not finished yet. It goes on: ask again."""
