"""Penstock: the components that a Python service needs, on one Valkey or Redis.

    from penstock import Penstock, Retry

    app = Penstock()

    @app.task(queue="mail", retry=Retry(5))
    async def send_email(to: str, subject: str) -> None: ...

    send_email.enqueue("ada@example.com", "Hi")

Each public name is imported when it is first used (PEP 562), so that `penstock --help` starts at once. docs/tour.md
gives an order in which to read the source.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.completion.contacts import Contacts
    from penstock.completion.directory import Directory
    from penstock.completion.entry import Entry, EntryPage
    from penstock.counting.access_log import parse, requests_per
    from penstock.counting.aggregate import Aggregate
    from penstock.counting.countries import mmdb
    from penstock.counting.dead_batches import DeadBatch
    from penstock.counting.kinds import Count, First, Last, Max, Min, Sum, TimeWindow, Uniques
    from penstock.counting.request import Request
    from penstock.counting.snapshot import Snapshot
    from penstock.counting.tally import Tally
    from penstock.errors import (
        BadCall,
        BadName,
        BarrierBroken,
        BarrierTimeout,
        BlocksMissed,
        CancelTimeout,
        ChannelClosed,
        ChannelError,
        ChannelRestarted,
        ChatExists,
        ChatGone,
        ConfigurationError,
        CountsRefused,
        DurabilityUnavailable,
        ElectionTimeout,
        FileChanged,
        FileDamaged,
        FilesError,
        FormatTooNew,
        JobCancelled,
        JobError,
        JobExpired,
        JobFailed,
        JobNotFound,
        LatchTimeout,
        LeaseLost,
        LockTimeout,
        MessageError,
        NewBeginning,
        NoCurrentJob,
        NoReceiver,
        NoSpace,
        NotAMember,
        NotDurable,
        PayloadTooLarge,
        PenstockError,
        PermitTimeout,
        ProgramChanged,
        RateLimited,
        ResultNotKept,
        ResultTimeout,
        ScheduleNotFound,
        SelfDeadlock,
        SentElsewhere,
        ServerError,
        ServerFull,
        ServerRefused,
        ServerTooOld,
        ServerUnavailable,
        SignalTimeout,
        StateDamaged,
        StateLost,
        StepError,
        TooManyIds,
        TransactionRefused,
        UniqueKeyHeld,
        UnknownTask,
    )
    from penstock.files.batches import LineBatch
    from penstock.files.bindings import ChannelInfo, ReceiverInfo
    from penstock.files.channel import Channel
    from penstock.files.count_bindings import Totals
    from penstock.files.lines import CutLine
    from penstock.files.receiver import Block, Receiver
    from penstock.files.saving import Saved
    from penstock.files.sender import Progress, Sent
    from penstock.files.source_reader import file_digest
    from penstock.files.upload import SentFile
    from penstock.jobs.batching import Batch
    from penstock.jobs.counts import Counts, TenantCounts, WorkerInfo
    from penstock.jobs.current import CurrentJob, current
    from penstock.jobs.dead_letters import DeadLetter
    from penstock.jobs.dependencies import per_job, per_process
    from penstock.jobs.durable import sleep, step, wait_for
    from penstock.jobs.durable_bindings import StepInfo
    from penstock.jobs.flow import Flow, chain, group
    from penstock.jobs.flow_tree import FlowNode
    from penstock.jobs.item import Item
    from penstock.jobs.job import Job, JobInfo
    from penstock.jobs.job_list import BulkProgress, JobPage, Jobs, JobSummary
    from penstock.jobs.limits import Concurrency, KeyUsage, LimitInfo, Rate
    from penstock.jobs.middleware import EnqueueContext, JobContext, JobDraft, JobOutcome, Middleware
    from penstock.jobs.notes import JobProgress, LogLine
    from penstock.jobs.operating import Tenant
    from penstock.jobs.options import Options
    from penstock.jobs.outputs import RESULT
    from penstock.jobs.pauses import PausedPart
    from penstock.jobs.queue import Queue
    from penstock.jobs.reporting import ErrorReports, JobFields
    from penstock.jobs.retention import Retention
    from penstock.jobs.retry import Drop, Retry, RetryLater
    from penstock.jobs.schedule import ScheduleInfo
    from penstock.jobs.schedules import Schedules
    from penstock.jobs.stage import Stage
    from penstock.jobs.status import Status
    from penstock.jobs.task import Call, Task
    from penstock.jobs.unique import Unique
    from penstock.locks.answers import (
        Allowance,
        BarrierInfo,
        BarrierPass,
        ElectionInfo,
        LatchInfo,
        Leader,
        LockInfo,
        Owner,
        ReadWriteLockInfo,
        SemaphoreInfo,
    )
    from penstock.locks.barrier import Barrier
    from penstock.locks.election import Election, Leadership
    from penstock.locks.latch import Latch
    from penstock.locks.lock import Held, Lock
    from penstock.locks.rate_limit import RateLimit
    from penstock.locks.rwlock import Reading, ReadWriteLock, Writing
    from penstock.locks.semaphore import Permit, Semaphore
    from penstock.locks.transaction import Transaction
    from penstock.messages.chat import Chat, ChatInfo, Member, Reader
    from penstock.messages.chats import Chats, UserChats
    from penstock.messages.mailbox import Claimed, Mailbox, MailboxInfo
    from penstock.messages.message import DeadMessage, Gap, History, Keep, Mail, Message
    from penstock.messages.reader import Follow
    from penstock.settings import Settings, WorkerSettings
    from penstock.worker.worker import Worker
else:
    import os
    import sys
    from importlib import import_module

    _NAMES = {
        "app": "Penstock",
        "messages.chat": "Chat ChatInfo Member Reader",
        "messages.chats": "Chats UserChats",
        "completion.contacts": "Contacts",
        "counting.access_log": "parse requests_per",
        "counting.aggregate": "Aggregate",
        "counting.countries": "mmdb",
        "counting.kinds": "Count First Last Max Min Sum TimeWindow Uniques",
        "counting.request": "Request",
        "counting.snapshot": "Snapshot",
        "counting.dead_batches": "DeadBatch",
        "counting.tally": "Tally",
        "files.channel": "Channel",
        "files.lines": "CutLine",
        "files.batches": "LineBatch",
        "files.receiver": "Block Receiver",
        "files.saving": "Saved",
        "files.sender": "Progress Sent",
        "files.source_reader": "file_digest",
        "files.upload": "SentFile",
        "files.bindings": "ChannelInfo ReceiverInfo",
        "files.count_bindings": "Totals",
        "completion.entry": "Entry EntryPage",
        "completion.directory": "Directory",
        "locks.answers": "Allowance BarrierInfo BarrierPass ElectionInfo LatchInfo Leader LockInfo Owner "
        "ReadWriteLockInfo SemaphoreInfo",
        "jobs.job": "Job JobInfo",
        "jobs.status": "Status",
        "jobs.job_list": "BulkProgress JobPage Jobs JobSummary",
        "locks.barrier": "Barrier",
        "locks.election": "Election Leadership",
        "locks.latch": "Latch",
        "locks.lock": "Held Lock",
        "messages.message": "DeadMessage Gap History Keep Mail Message",
        "messages.reader": "Follow",
        "messages.mailbox": "Claimed Mailbox MailboxInfo",
        "jobs.batching": "Batch",
        "jobs.current": "CurrentJob current",
        "jobs.stage": "Stage",
        "jobs.durable": "sleep step wait_for",
        "jobs.durable_bindings": "StepInfo",
        "jobs.dead_letters": "DeadLetter",
        "jobs.dependencies": "per_job per_process",
        "jobs.flow": "Flow chain group",
        "jobs.outputs": "RESULT",
        "jobs.flow_tree": "FlowNode",
        "jobs.item": "Item",
        "jobs.operating": "Tenant",
        "jobs.queue": "Queue",
        "locks.rate_limit": "RateLimit",
        "locks.rwlock": "Reading ReadWriteLock Writing",
        "locks.semaphore": "Permit Semaphore",
        "jobs.task": "Call Task",
        "jobs.schedule": "ScheduleInfo",
        "jobs.schedules": "Schedules",
        "jobs.unique": "Unique",
        "locks.transaction": "Transaction",
        "jobs.counts": "Counts TenantCounts WorkerInfo",
        "errors": "BadCall BadName BarrierBroken BarrierTimeout BlocksMissed CancelTimeout ChannelClosed ChannelError "
        "ChannelRestarted ChatExists ChatGone ConfigurationError CountsRefused DurabilityUnavailable "
        "ElectionTimeout FileChanged FileDamaged FilesError FormatTooNew JobCancelled JobError JobExpired "
        "JobFailed JobNotFound LatchTimeout LeaseLost LockTimeout MessageError NewBeginning NoCurrentJob NoReceiver "
        "NoSpace NotAMember NotDurable PayloadTooLarge PenstockError PermitTimeout RateLimited ResultNotKept "
        "ResultTimeout ScheduleNotFound SelfDeadlock SentElsewhere ServerError ServerFull ServerRefused ServerTooOld "
        "ServerUnavailable SignalTimeout StateDamaged StateLost StepError ProgramChanged TooManyIds "
        "TransactionRefused UniqueKeyHeld UnknownTask",
        "settings": "Settings WorkerSettings",
        "jobs.middleware": "EnqueueContext JobContext JobDraft JobOutcome Middleware",
        "jobs.notes": "JobProgress LogLine",
        "jobs.options": "Options",
        "jobs.pauses": "PausedPart",
        "jobs.limits": "Concurrency KeyUsage LimitInfo Rate",
        "jobs.reporting": "ErrorReports JobFields",
        "jobs.retention": "Retention",
        "jobs.retry": "Drop Retry RetryLater",
        "worker.worker": "Worker",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def _load_all() -> None:
        """Called before a fork: a module that another thread is importing would stay locked in the child for ever."""
        if f"{__name__}.app" in sys.modules:
            for module in (*_NAMES, "core.renewal", "driver.aio", "driver.blocking", "driver.pipeline"):
                import_module(f"{__name__}.{module}")

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_load_all)

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value

    def __dir__():
        return [*__all__, *(name for name in globals() if name.startswith("__"))]


__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "Allowance",
    "BadCall",
    "BadName",
    "Barrier",
    "BarrierBroken",
    "BarrierInfo",
    "BarrierPass",
    "BarrierTimeout",
    "Batch",
    "Block",
    "BlocksMissed",
    "BulkProgress",
    "Call",
    "CancelTimeout",
    "Channel",
    "ChannelClosed",
    "ChannelError",
    "ChannelInfo",
    "ChannelRestarted",
    "Chat",
    "ChatExists",
    "ChatGone",
    "ChatInfo",
    "Chats",
    "Claimed",
    "Concurrency",
    "ConfigurationError",
    "Contacts",
    "Count",
    "Counts",
    "CountsRefused",
    "CurrentJob",
    "CutLine",
    "DeadBatch",
    "DeadLetter",
    "DeadMessage",
    "Directory",
    "Drop",
    "DurabilityUnavailable",
    "Election",
    "ElectionInfo",
    "ElectionTimeout",
    "EnqueueContext",
    "Entry",
    "EntryPage",
    "ErrorReports",
    "FileChanged",
    "FileDamaged",
    "FilesError",
    "First",
    "Flow",
    "FlowNode",
    "Follow",
    "FormatTooNew",
    "Gap",
    "Held",
    "History",
    "Item",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobDraft",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobFields",
    "JobInfo",
    "JobNotFound",
    "JobOutcome",
    "JobPage",
    "JobProgress",
    "JobSummary",
    "Jobs",
    "Keep",
    "KeyUsage",
    "Last",
    "Latch",
    "LatchInfo",
    "LatchTimeout",
    "Leader",
    "Leadership",
    "LeaseLost",
    "LimitInfo",
    "Lock",
    "LockInfo",
    "LockTimeout",
    "LineBatch",
    "LogLine",
    "Mail",
    "Mailbox",
    "MailboxInfo",
    "Max",
    "Member",
    "Message",
    "MessageError",
    "Middleware",
    "Min",
    "NewBeginning",
    "NoCurrentJob",
    "NoReceiver",
    "NoSpace",
    "NotAMember",
    "NotDurable",
    "Options",
    "Owner",
    "PausedPart",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "Permit",
    "PermitTimeout",
    "Progress",
    "Queue",
    "RESULT",
    "Rate",
    "RateLimit",
    "RateLimited",
    "ReadWriteLock",
    "ReadWriteLockInfo",
    "Reader",
    "Reading",
    "Receiver",
    "ReceiverInfo",
    "Request",
    "ResultNotKept",
    "ResultTimeout",
    "Retention",
    "Retry",
    "RetryLater",
    "Saved",
    "ScheduleInfo",
    "ScheduleNotFound",
    "Schedules",
    "SelfDeadlock",
    "Semaphore",
    "SemaphoreInfo",
    "Sent",
    "SentElsewhere",
    "SentFile",
    "ServerError",
    "ServerFull",
    "ServerRefused",
    "ServerTooOld",
    "ServerUnavailable",
    "Settings",
    "Snapshot",
    "Stage",
    "StateDamaged",
    "StateLost",
    "Status",
    "Sum",
    "Tally",
    "Task",
    "Tenant",
    "TenantCounts",
    "TimeWindow",
    "TooManyIds",
    "Totals",
    "Transaction",
    "TransactionRefused",
    "Unique",
    "UniqueKeyHeld",
    "Uniques",
    "UnknownTask",
    "UserChats",
    "Worker",
    "WorkerInfo",
    "WorkerSettings",
    "Writing",
    "chain",
    "current",
    "file_digest",
    "group",
    "mmdb",
    "parse",
    "per_job",
    "per_process",
    "requests_per",
    "ProgramChanged",
    "SignalTimeout",
    "StepError",
    "StepInfo",
    "sleep",
    "step",
    "wait_for",
]
