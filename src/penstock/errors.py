"""Every error that Penstock raises, as one tree.

    PenstockError
    ├── ConfigurationError        an address, a setting or a name that cannot work      (fix the program)
    ├── BadCall                   arguments or a payload that do not fit                (fix the caller)
    │   ├── PayloadTooLarge           the encoded call is too large
    │   ├── UnknownTask               no task has this name
    │   └── BadName                   a name, id, weight or cursor that cannot be stored
    ├── ServerError               the server, or the connection to it                   (check the server)
    │   ├── ServerUnavailable         no server answers at the address
    │   ├── ServerRefused             a wrong password or certificate, or a user without the rights
    │   ├── ServerTooOld              it lacks commands that Penstock needs
    │   ├── ServerFull                maxmemory is reached; nothing was written
    │   ├── FormatTooNew              the stored data is from a newer Penstock
    │   ├── StateLost                 a key of a component has vanished
    │   ├── StateDamaged              a key of a component holds what Penstock did not write
    │   ├── DurabilityUnavailable     the server cannot confirm a durable write; nothing was enqueued
    │   └── NotDurable                enqueued, but not confirmed in time
    ├── SealError                 a body cannot be sealed or opened                     (check the keys)
    ├── LeaseLost                 a claim, lock or permit has ended                     (drop the work)
    ├── SelfDeadlock              a thread or task would wait for what it holds itself  (fix the program)
    ├── LockTimeout               others held the lock for all of `wait`; also a TimeoutError
    ├── PermitTimeout             others held the permits for all of `wait`; also a TimeoutError
    ├── ElectionTimeout           another process led for all of `wait`; also a TimeoutError
    ├── LatchTimeout              the latch did not open within the time-out; also a TimeoutError
    ├── BarrierTimeout            not all parties arrived within the time-out; also a TimeoutError
    ├── BarrierBroken             a party of a barrier died or left, or it was aborted  (begin a new meeting)
    ├── RateLimited               no room within `wait`; also a TimeoutError
    ├── QueueFull                 a queue, or a tenant of it, is at its bound           (slow down, repeat it later)
    ├── TransactionRefused        a condition was false; nothing was written            (read again, retry)
    ├── MessageError              a mailbox or a chat refused an operation
    │   ├── ChatGone                  it does not exist (any longer)
    │   ├── ChatExists                its id is in use
    │   ├── NotAMember                the sender or reader is not a member
    │   ├── NoSpace                   it is at its limit, because its reader is behind
    │   ├── TooManyIds                more message ids were given than are kept
    │   └── NewBeginning              it began again since this message was read
    ├── FilesError                a file or a channel of files cannot be used
    │   ├── FileDamaged               its bytes do not match its format or digest
    │   ├── FileNotSaved              a receiver could not save it
    │   ├── FileChanged               it changed while it was sent
    │   └── ChannelError              the channel refused an operation
    │       ├── ChannelClosed             it takes no more files
    │       ├── NoReceiver                it has no such receiver, or no receiver at all
    │       ├── CountsRefused             the server cannot add an aggregate's counts to its own
    │       ├── SentElsewhere             another process sends this file now
    │       ├── BlocksMissed              this receiver was away for too long and has a gap
    │       └── ChannelRestarted          it was deleted and created again, or restored, while this process received
    ├── StepError                 a durable step could not be repeated like this        (fix the task)
    │   └── ProgramChanged            its job has recorded other steps
    ├── MarkForgotten             a job is older than the marks of effects in a database (look there)
    ├── NoCurrentJob              `current()` was called outside of a job               (fix the caller)
    ├── SignalTimeout             no signal came to `wait_for` in time; also a TimeoutError
    └── JobError                  a job has no result
        ├── JobFailed                 it is a dead letter
        ├── JobCancelled              it was cancelled, or dropped by its task
        ├── JobExpired                it expired before it ran
        ├── JobNotFound               no such job, or no record of it any longer
        ├── ScheduleNotFound          no schedule has this name
        ├── CannotRunAgain            it has not ended, or its arguments were not kept
        ├── UniqueKeyHeld             another job holds the unique key that it needs to run again
        ├── ResultNotKept             it was enqueued with result_ttl=0
        ├── CancelTimeout             it was cancelled and still runs; also a TimeoutError
        └── ResultTimeout             it has not finished yet; also a TimeoutError

The exceptions with which a task decides how its run ends (`Retry`, `Drop`, `RetryLater`) are in `jobs/retry.py`.
"""

from __future__ import annotations

from typing import Any

from penstock.short_names import with_short_names


class PenstockError(Exception):
    """The base class of all errors here. Catch it at the edge of a program, where every failure is handled.

    The text of an error shortens long names; `args` has them in full.
    """

    def __str__(self) -> str:
        return with_short_names(super().__str__())


class ConfigurationError(PenstockError, ValueError):
    """An address, a setting or a name cannot work. Do not catch it: fix the program or its settings, as it says."""


class BadCall(PenstockError, TypeError):
    """The arguments do not fit the task's signature, or JSON cannot hold a value. Nothing was sent.

    It is a mistake in the calling code. Catch it only where the arguments come from a user, and report it there.
    """


class PayloadTooLarge(BadCall):
    """The encoded call or result is larger than `max_payload`. Nothing was sent.

    Store the data elsewhere, in a file or an object store, and enqueue its address.
    """


class UnknownTask(BadCall):
    """This app has no task of this name; the text lists those it has. Import the task's module, or fix the name."""


class BadName(BadCall, ValueError):
    """A name, id, prefix, weight or cursor cannot be used; the text says why. Nothing was sent.

    Catch it where names come from a user or a file, and report it there.
    """


class ServerError(PenstockError):
    """The server, or the connection to it, failed.

    Code that can wait catches it and repeats the operation later. If a retry could help, Penstock has already retried
    for `give_up_after` seconds. The server may have executed the operation even so; if you gave it an id, you can
    repeat it safely.
    """


class ServerUnavailable(ServerError, ConnectionError):
    """No server answered at the address within `give_up_after` seconds. Retry later, or check server and address."""


class ServerRefused(ServerError):
    """The server rejected the password, the user lacks a right, or client and server do not agree on TLS.

    The text says which, and what to do. Retrying does not help."""


class ServerTooOld(ServerError):
    """The server lacks commands that Penstock needs: use Valkey 7.2 or Redis 7.0, or newer."""


class ServerFull(ServerError):
    """The server is at `maxmemory` and refused new work before it wrote anything.

    Catch it to slow a producer down. Running jobs can still finish, which frees memory.
    """


class FormatTooNew(ServerError):
    """Another Penstock wrote the stored data in a format that this one does not read. Nothing was read or changed.

    Usually that is a newer one: update this process. For data of an older one, the text says what to do.
    """


class StateLost(ServerError):
    """A key of a component has vanished while other keys say that it must be there. Nothing was read or changed.

    The server evicted it, a person deleted it, or a restore left it out. Restore it, or delete the component and begin
    again; the text says how. `key`: the name of the key.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class StateDamaged(ServerError):
    """A key of a component has a type or a value that Penstock never writes: a person or another program changed it.

    Scripts check before they write, but cannot check every value: what a call changed before it met the damage stays
    changed. The text names the component. `key`: the key, or the prefix of the names of the component's keys.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class DurabilityUnavailable(ServerError):
    """`durable=True`, but this server cannot confirm that a write is safe. Nothing of this call was sent.

    It is raised only if no copy of the call can have been executed. Of a bulk enqueue, earlier groups may be enqueued.
    Change the server as the text says, or enqueue without `durable`.
    """


class NotDurable(ServerError):
    """The job was enqueued, but neither disk nor replica confirmed it within `durable_timeout` seconds.

    The job will run, unless the server loses its memory first. Catch this error to keep its data until it has run.
    """


class SealError(PenstockError):
    """A body cannot be opened, because this program has no codec or lacks the key; or its codec could not seal it.

    Nothing that was to be sealed was sent. What cannot be opened stays as it is: give the program the key that the text
    names, and repeat. A worker that lacks a key hands the job back, which costs no attempt. `key`: the id of the key
    with which the body is sealed; "" if it was to be sealed.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class LeaseLost(PenstockError):
    """The lease on a claim, a lock or a permit ran out or was taken over, so another process may hold it now.

    Code that works under a lease catches it and drops the work: what it writes now may conflict with the new holder.
    """


class SelfDeadlock(PenstockError, RuntimeError):
    """A thread or task requested a lock or permits that it holds itself, and would wait for ever. Nothing was changed.

    Do not catch it: release the lock or the permits first, or use a lock with `reentrant=True`.
    """


class LockTimeout(PenstockError, TimeoutError):
    """The lock did not become free within `wait` seconds. Nothing is held, and the request no longer waits.

    Catch it where there is something else to do without the lock.
    """


class PermitTimeout(PenstockError, TimeoutError):
    """The permits did not become free within `wait` seconds. Nothing is held, and the request no longer waits.

    Catch it where there is something else to do without the permits.
    """


class ElectionTimeout(PenstockError, TimeoutError):
    """Another process was the leader for all of `wait` seconds. This process is no longer a candidate.

    Catch it where there is something else to do for a process that does not lead.
    """


class LatchTimeout(PenstockError, TimeoutError):
    """The latch did not open within the time-out. It may open later: wait again."""


class BarrierTimeout(PenstockError, TimeoutError):
    """This party timed out before all parties of the barrier had arrived. The others that waited get BarrierBroken.

    Catch it where the parties can begin a new meeting, or end.
    """


class BarrierBroken(PenstockError):
    """The parties of a barrier will not meet: one of them died, left or timed out, or the barrier was aborted.

    All parties that waited get it. Catch it where they can meet again: the next `wait` begins a new meeting.

    generation  the number of the meeting that is broken
    """

    def __init__(self, message: str, *, generation: int = 0) -> None:
        super().__init__(message)
        self.generation = generation


class RateLimited(PenstockError, TimeoutError):
    """A rate limit has no room within `wait` seconds. Nothing is reserved.

    Catch it to answer "too many requests". `retry_after`: seconds until there will be room.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(PenstockError):
    """A queue has as many unfinished jobs as its bound allows, and refused jobs, of which nothing was stored.

    Repeat them later, slow the producer down, or answer HTTP 429 or 503. A bulk raises it after its last call.

    queue    the queue that refused, or its shard
    count    its unfinished jobs, or those of `tenant`
    bound    how many there may be
    tenant   whose bound it is; None: the bound of the queue
    taken    of a bulk: the jobs that were enqueued, in order
    refused  of a bulk: the positions, from 0, of the others
    """

    def __init__(
        self, message: str, *, queue: str = "", count: int = 0, bound: int = 0, tenant: str | None = None
    ) -> None:
        super().__init__(message)
        self.queue, self.count, self.bound, self.tenant = queue, count, bound, tenant
        self.taken: list[Any] = []
        self.refused: list[int] = [0]


class TransactionRefused(PenstockError):
    """A condition of a transaction was false, or a key holds a type that a write cannot change. Nothing was written.

    Catch it to read the values again and build a new transaction.

    condition  the first condition that was false, as it was written
    found      the value that was there; None if there was no value
    """

    def __init__(self, message: str, *, condition: str = "", found: bytes | None = None) -> None:
        super().__init__(message)
        self.condition = condition
        self.found = found


class MessageError(PenstockError):
    """A mailbox or a chat refused an operation. Nothing was written. The text, or a class below, says why."""


class ChatGone(MessageError):
    """No chat has this id: it was never created, was deleted, or its last member left. Create it, or forget the id."""


class ChatExists(MessageError):
    """A chat with this id exists, and was not changed. Open it with `get`, or create one with another id."""


class NotAMember(MessageError):
    """The sender or reader is not a member of the chat: never joined, left, or was removed. Join first."""


class NoSpace(MessageError):
    """The mailbox or chat is at its limit of messages or bytes, because a reader is behind. Nothing was sent.

    Send later, or with `wait`.
    """


class TooManyIds(MessageError):
    """More message ids were given than can be kept for ten minutes, so a repeated message might not be recognised.

    Nothing was sent. Send later, or without an id.
    """


class NewBeginning(MessageError):
    """The mailbox or chat began again since this message was read: it was deleted and created again, or its server fell
    back to an older state. Nothing was acknowledged.

    Drop the position that you kept, and pull again: the server knows what this reader has acknowledged.
    """


class FilesError(PenstockError):
    """A file cannot be read, sent, received or saved. The text names the file and the reason."""


class FileDamaged(FilesError):
    """The bytes of a file do not match its format or its digest. Drop what was received of it; have it sent again."""


class FileNotSaved(FilesError):
    """A receiver could not save a file. It is one of the receiver's dead files now, and the next files follow.

    Remove the cause that the text names, then retry it with `receiver.dead`.
    """


class FileChanged(FilesError):
    """A file was truncated, replaced or overwritten while it was sent. Send it again, as a new file."""


class ChannelError(FilesError):
    """A channel of files does not exist, or cannot do what was asked. The text says why and what to do."""


class CountsRefused(ChannelError):
    """The server cannot add an aggregate's counts to those that it has: a number would overflow, a table has another
    kind, or a table of different texts has too many keys. None of the batches was settled. Catch it where you call
    `run`; the next run counts the same lines again."""


class ChannelClosed(ChannelError):
    """The channel takes no more files: it was closed, and some receivers have not received everything yet."""


class NoReceiver(ChannelError):
    """The channel has no receiver of this name, or none at all, so that nothing would be delivered.

    Name the receivers where you send, or let them join first.
    """


class SentElsewhere(ChannelError):
    """Another process has taken over the sending of this file. This one has stopped and need do nothing."""


class BlocksMissed(ChannelError):
    """A receiver was silent for longer than the channel's `patience`, so records that it had not read were freed.

    Its next loop continues after the gap. Have the missing files sent again, if they matter.
    """


class ChannelRestarted(ChannelError):
    """The channel was deleted and created again while this process received, or its server fell back to an older state.

    Its next loop continues after the last record that the server knows as received, so blocks may be received again.
    """


class JobError(PenstockError):
    """A job has no result. Code that waits for results catches it, or one of the classes below."""


class JobFailed(JobError):
    """The job failed for the last time and is a dead letter. Requeue it with `queue.dead` once the cause is repaired.

    reason     one line
    traceback  the worker's traceback, or ''
    """

    def __init__(self, message: str, *, reason: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.traceback = traceback


class JobCancelled(JobError):
    """The job was cancelled or purged before it ran, or its task raised `Drop`.

    Catch it where somebody may cancel the job; the text has the reason.
    """


class StepError(PenstockError):
    """A durable step is used in a way that cannot be repeated. Fix the task: its job becomes a dead letter at once."""


class ProgramChanged(StepError):
    """A durable job has recorded other steps than its task calls now.

    The text says which. Run it with the program that began it, or requeue it to begin it again, as the text says.
    """


class SignalTimeout(PenstockError, TimeoutError):
    """`wait_for` got no signal in time; in later runs of the job it raises this again. Catch it, and do without."""


class MarkForgotten(PenstockError):
    """A job is older than the marks that an inbox keeps, so nobody knows whether its effect is in the database.

    Look there, and then remove the job or enqueue it anew.
    """


class NoCurrentJob(PenstockError, LookupError):
    """`current()` was called by code that runs in no job. Call it in a task, or pass what the code needs to it."""


class JobExpired(JobError):
    """The job did not run, because its `expires` passed before a worker was free.

    Enqueue it again if it still matters; add workers if that happens often.
    """


class JobNotFound(JobError):
    """No job has this id: it was never enqueued here, or its `result_ttl` has passed since it finished."""


class ScheduleNotFound(JobError):
    """No schedule has this name: it was never added, or it was removed. `app.schedules.list()` has those that exist."""


class CannotRunAgain(JobError):
    """A job cannot run again as a new one: it has not ended, or left no arguments. The text says what to do."""


class UniqueKeyHeld(JobError):
    """A dead letter cannot be requeued, because another job holds its unique key. `holder`: the id of that job.

    Requeue it when that job has ended, or remove it.
    """

    def __init__(self, message: str, *, holder: str = "") -> None:
        super().__init__(message)
        self.holder = holder


class ResultNotKept(JobError):
    """The job was enqueued with `result_ttl=0`, so its result is not stored. Name another if somebody waits for it."""


class CancelTimeout(JobError, TimeoutError):
    """A running job that was cancelled has not ended in time, because its code cannot be interrupted.

    Wait again, or let it run. Tasks with isolate=True can always be ended.
    """


class ResultTimeout(JobError, TimeoutError):
    """The job has not finished within `timeout` seconds. It continues: ask for the result again later."""
