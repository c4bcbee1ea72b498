"""Penstock: the components that a Python service needs, on one Valkey or Redis.

    from penstock import Penstock, Retry

    app = Penstock()

    @app.task(queue="mail", retry=Retry(5))
    async def send_email(to: str, subject: str) -> None: ...

    send_email.enqueue("ada@example.com", "Hi")

Here is what a program constructs, calls, annotates or catches every day. The other names are in three modules:

    penstock.errors      all errors, drawn as one tree
    penstock.info        the answers of methods such as `info()`, `status()` and `count()`
    penstock.counting    aggregates, and what they count

Each name is imported when it is first used (lazy.py). docs/tour.md gives an order in which to read the source.

The modules of this folder, in reading order:

    lazy.py               public names that are imported when they are first used
    info.py               the types of the values that methods return
    errors.py             every error that Penstock raises, as one tree
    short_names.py        shortens long names in the text of an error
    settings.py           every setting, its unit, its default and the reason for it
    models.py             writes objects with fields, such as pydantic's models, as JSON, and finds what would be
                          lost
    sealing.py            bodies that a codec of the program has sealed
    codec.py              values to JSON and back
    config.py             settings from environment and `pyproject.toml`
    app.py                the app, one server and one registry, with a factory for every component
    __main__.py           `python -m penstock`
"""

from penstock.lazy import LazyNames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.completion.contacts import Contacts
    from penstock.completion.directory import Directory
    from penstock.completion.entry import Entry
    from penstock.errors import (
        BadCall,
        ConfigurationError,
        JobFailed,
        LeaseLost,
        LockTimeout,
        NotDurable,
        PenstockError,
        PermitTimeout,
        RateLimited,
        ResultTimeout,
        ServerError,
        ServerFull,
    )
    from penstock.files.batches import LineBatch
    from penstock.files.channel import Channel
    from penstock.files.receiver import Block, Receiver
    from penstock.files.source_reader import file_digest
    from penstock.jobs.awaited import RESULT
    from penstock.jobs.batching import Batch
    from penstock.jobs.children import run
    from penstock.jobs.current import CurrentJob, current
    from penstock.jobs.dependencies import per_job, per_process
    from penstock.jobs.durable import patched, sleep, step, wait_for
    from penstock.jobs.flow import Flow, chain, group, result_of
    from penstock.jobs.item import Item
    from penstock.jobs.job import Job
    from penstock.jobs.job_list import Jobs
    from penstock.jobs.limits import Concurrency, Rate
    from penstock.jobs.middleware import EnqueueContext, JobContext, JobDraft, JobOutcome, Middleware
    from penstock.jobs.options import Options
    from penstock.jobs.queue import Queue
    from penstock.jobs.reporting import ErrorReports, JobFields
    from penstock.jobs.retention import Retention
    from penstock.jobs.retry import Drop, Retry, RetryLater
    from penstock.jobs.schedules import Schedules
    from penstock.jobs.stage import Stage
    from penstock.jobs.status import Status
    from penstock.jobs.task import Call, Task
    from penstock.jobs.tenant import Tenant
    from penstock.jobs.unique import Unique
    from penstock.locks.barrier import Barrier
    from penstock.locks.election import Election, Leadership
    from penstock.locks.latch import Latch
    from penstock.locks.lock import Held, Lock
    from penstock.locks.rate_limit import RateLimit
    from penstock.locks.rwlock import Reading, ReadWriteLock, Writing
    from penstock.locks.semaphore import Permit, Semaphore
    from penstock.locks.transaction import Transaction
    from penstock.messages.chat import Chat, Reader
    from penstock.messages.chats import Chats, UserChats
    from penstock.messages.mailbox import Claimed, Mailbox
    from penstock.messages.message import History, Keep, Mail, Message
    from penstock.messages.reader import Follow
    from penstock.settings import Seal, Settings, WorkerSettings
    from penstock.worker.worker import Worker

__version__ = "0.2.0"

__all__: list[str] = []
_names = LazyNames(__name__, __all__, others=("penstock.errors", "penstock.info", "penstock.counting"))
__all__ += ["Penstock"]
_names.are_in("penstock.app")
__all__ += ["Settings", "WorkerSettings", "Seal"]
_names.are_in("penstock.settings")
__all__ += [
    "PenstockError",
    "BadCall",
    "ConfigurationError",
    "JobFailed",
    "ResultTimeout",
    "LockTimeout",
    "PermitTimeout",
    "LeaseLost",
    "RateLimited",
    "ServerError",
    "ServerFull",
    "NotDurable",
]
_names.are_in("penstock.errors")
__all__ += ["Batch"]
_names.are_in("penstock.jobs.batching")
__all__ += ["run"]
_names.are_in("penstock.jobs.children")
__all__ += ["CurrentJob", "current"]
_names.are_in("penstock.jobs.current")
__all__ += ["per_job", "per_process"]
_names.are_in("penstock.jobs.dependencies")
__all__ += ["patched", "sleep", "step", "wait_for"]
_names.are_in("penstock.jobs.durable")
__all__ += ["Flow", "chain", "group", "result_of"]
_names.are_in("penstock.jobs.flow")
__all__ += ["Item"]
_names.are_in("penstock.jobs.item")
__all__ += ["Job"]
_names.are_in("penstock.jobs.job")
__all__ += ["Jobs"]
_names.are_in("penstock.jobs.job_list")
__all__ += ["Concurrency", "Rate"]
_names.are_in("penstock.jobs.limits")
__all__ += ["EnqueueContext", "JobContext", "JobDraft", "JobOutcome", "Middleware"]
_names.are_in("penstock.jobs.middleware")
__all__ += ["Options"]
_names.are_in("penstock.jobs.options")
__all__ += ["RESULT"]
_names.are_in("penstock.jobs.awaited")
__all__ += ["Queue"]
_names.are_in("penstock.jobs.queue")
__all__ += ["ErrorReports", "JobFields"]
_names.are_in("penstock.jobs.reporting")
__all__ += ["Retention"]
_names.are_in("penstock.jobs.retention")
__all__ += ["Drop", "Retry", "RetryLater"]
_names.are_in("penstock.jobs.retry")
__all__ += ["Schedules"]
_names.are_in("penstock.jobs.schedules")
__all__ += ["Stage"]
_names.are_in("penstock.jobs.stage")
__all__ += ["Status"]
_names.are_in("penstock.jobs.status")
__all__ += ["Call", "Task"]
_names.are_in("penstock.jobs.task")
__all__ += ["Tenant"]
_names.are_in("penstock.jobs.tenant")
__all__ += ["Unique"]
_names.are_in("penstock.jobs.unique")
__all__ += ["Worker"]
_names.are_in("penstock.worker.worker")
__all__ += ["Barrier"]
_names.are_in("penstock.locks.barrier")
__all__ += ["Election", "Leadership"]
_names.are_in("penstock.locks.election")
__all__ += ["Latch"]
_names.are_in("penstock.locks.latch")
__all__ += ["Held", "Lock"]
_names.are_in("penstock.locks.lock")
__all__ += ["RateLimit"]
_names.are_in("penstock.locks.rate_limit")
__all__ += ["Reading", "ReadWriteLock", "Writing"]
_names.are_in("penstock.locks.rwlock")
__all__ += ["Permit", "Semaphore"]
_names.are_in("penstock.locks.semaphore")
__all__ += ["Transaction"]
_names.are_in("penstock.locks.transaction")
__all__ += ["Contacts"]
_names.are_in("penstock.completion.contacts")
__all__ += ["Directory"]
_names.are_in("penstock.completion.directory")
__all__ += ["Entry"]
_names.are_in("penstock.completion.entry")
__all__ += ["Chat", "Reader"]
_names.are_in("penstock.messages.chat")
__all__ += ["Chats", "UserChats"]
_names.are_in("penstock.messages.chats")
__all__ += ["Claimed", "Mailbox"]
_names.are_in("penstock.messages.mailbox")
__all__ += ["History", "Keep", "Mail", "Message"]
_names.are_in("penstock.messages.message")
__all__ += ["Follow"]
_names.are_in("penstock.messages.reader")
__all__ += ["LineBatch"]
_names.are_in("penstock.files.batches")
__all__ += ["Channel"]
_names.are_in("penstock.files.channel")
__all__ += ["Block", "Receiver"]
_names.are_in("penstock.files.receiver")
__all__ += ["file_digest"]
_names.are_in("penstock.files.source_reader")

if not TYPE_CHECKING:
    __getattr__, __dir__ = _names.load, _names.listed
