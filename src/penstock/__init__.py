"""Penstock: the application components a Python service needs on one Valkey or Redis.

    from penstock import Penstock, Retry

    app = Penstock()

    @app.task(queue="mail", retry=Retry(5))
    async def send_email(to: str, subject: str) -> None: ...

    send_email.enqueue("ada@example.com", "Hi")

A name is imported when it is first used (PEP 562), so that `penstock --help` starts at once. The reading order of the
source is in docs/tour.md.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.components.chat import Chat, ChatInfo, Member, Reader
    from penstock.components.chats import Chats, UserChats
    from penstock.components.contacts import Contacts
    from penstock.components.counting.access_log import requests_per
    from penstock.components.counting.aggregate import Aggregate
    from penstock.components.counting.countries import mmdb
    from penstock.components.counting.tally import Tally
    from penstock.components.directory import Directory, Entry
    from penstock.components.files.channel import Channel
    from penstock.components.files.lines import CutLine
    from penstock.components.files.receiver import Batch, Block, Receiver, Saved
    from penstock.components.files.sender import Progress, Sent, SentFile
    from penstock.components.files.source import file_digest
    from penstock.components.files.transitions import ChannelInfo, ReceiverInfo, Totals
    from penstock.components.holding import Party
    from penstock.components.job import Job, JobInfo, Status
    from penstock.components.lock import Held, Lock, LockInfo
    from penstock.components.log import Follow, Gap, Keep, Mail, Message
    from penstock.components.mailbox import Claimed, Mailbox, MailboxInfo
    from penstock.components.queue import DeadLetter, Item, Queue, Tenant
    from penstock.components.rate import Allowance, RateLimit
    from penstock.components.rwlock import Reading, ReadWriteLock, Writing
    from penstock.components.semaphore import Permit, Semaphore, SemaphoreInfo
    from penstock.components.task import Call, Task
    from penstock.components.transaction import Transaction
    from penstock.components.transitions import Counts, TenantCounts, WorkerInfo
    from penstock.errors import (
        BadCall,
        BadName,
        BlocksMissed,
        ChannelClosed,
        ChannelError,
        ChatExists,
        ChatGone,
        ConfigurationError,
        DurabilityUnavailable,
        FileChanged,
        FileDamaged,
        FilesError,
        FormatTooNew,
        JobCancelled,
        JobError,
        JobExpired,
        JobFailed,
        JobNotFound,
        LeaseLost,
        LockTimeout,
        MessageError,
        NoReceiver,
        NoSpace,
        NotAMember,
        NotDurable,
        PayloadTooLarge,
        PenstockError,
        PermitTimeout,
        RateLimited,
        ResultNotKept,
        ResultTimeout,
        SentElsewhere,
        ServerError,
        ServerFull,
        ServerRefused,
        ServerTooOld,
        ServerUnavailable,
        TransactionRefused,
        UnknownTask,
    )
    from penstock.settings import Settings, WorkerSettings
    from penstock.tasks.definition import Options
    from penstock.tasks.retry import Drop, Retry, RetryLater
else:
    from importlib import import_module

    _NAMES = {
        "app": "Penstock",
        "components.chat": "Chat ChatInfo Member Reader",
        "components.chats": "Chats UserChats",
        "components.contacts": "Contacts",
        "components.counting.access_log": "requests_per",
        "components.counting.aggregate": "Aggregate",
        "components.counting.countries": "mmdb",
        "components.counting.tally": "Tally",
        "components.files.channel": "Channel",
        "components.files.lines": "CutLine",
        "components.files.receiver": "Batch Block Receiver Saved",
        "components.files.sender": "Progress Sent SentFile",
        "components.files.source": "file_digest",
        "components.files.transitions": "ChannelInfo ReceiverInfo Totals",
        "components.directory": "Directory Entry",
        "components.holding": "Party",
        "components.job": "Job JobInfo Status",
        "components.lock": "Held Lock LockInfo",
        "components.log": "Follow Gap Keep Mail Message",
        "components.mailbox": "Claimed Mailbox MailboxInfo",
        "components.queue": "DeadLetter Item Queue Tenant",
        "components.rate": "Allowance RateLimit",
        "components.rwlock": "Reading ReadWriteLock Writing",
        "components.semaphore": "Permit Semaphore SemaphoreInfo",
        "components.task": "Call Task",
        "components.transaction": "Transaction",
        "components.transitions": "Counts TenantCounts WorkerInfo",
        "errors": "BadCall BadName BlocksMissed ChannelClosed ChannelError ChatExists ChatGone ConfigurationError "
        "DurabilityUnavailable FileChanged FileDamaged FilesError FormatTooNew JobCancelled JobError "
        "JobExpired JobFailed JobNotFound LeaseLost LockTimeout MessageError NoReceiver NoSpace NotAMember "
        "NotDurable PayloadTooLarge PenstockError PermitTimeout RateLimited ResultNotKept ResultTimeout "
        "SentElsewhere ServerError ServerFull ServerRefused ServerTooOld ServerUnavailable TransactionRefused "
        "UnknownTask",
        "settings": "Settings WorkerSettings",
        "tasks.definition": "Options",
        "tasks.retry": "Drop Retry RetryLater",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

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
    "Batch",
    "Block",
    "BlocksMissed",
    "Call",
    "Channel",
    "ChannelClosed",
    "ChannelError",
    "ChannelInfo",
    "Chat",
    "ChatExists",
    "ChatGone",
    "ChatInfo",
    "Chats",
    "Claimed",
    "ConfigurationError",
    "Contacts",
    "Counts",
    "CutLine",
    "DeadLetter",
    "Directory",
    "Drop",
    "DurabilityUnavailable",
    "Entry",
    "FileChanged",
    "FileDamaged",
    "FilesError",
    "Follow",
    "FormatTooNew",
    "Gap",
    "Held",
    "Item",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobInfo",
    "JobNotFound",
    "Keep",
    "LeaseLost",
    "Lock",
    "LockInfo",
    "LockTimeout",
    "Mail",
    "Mailbox",
    "MailboxInfo",
    "Member",
    "Message",
    "MessageError",
    "NoReceiver",
    "NoSpace",
    "NotAMember",
    "NotDurable",
    "Options",
    "Party",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "Permit",
    "PermitTimeout",
    "Progress",
    "Queue",
    "RateLimit",
    "RateLimited",
    "ReadWriteLock",
    "Reader",
    "Reading",
    "Receiver",
    "ReceiverInfo",
    "ResultNotKept",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "Saved",
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
    "Status",
    "Tally",
    "Task",
    "Tenant",
    "TenantCounts",
    "Totals",
    "Transaction",
    "TransactionRefused",
    "UnknownTask",
    "UserChats",
    "WorkerInfo",
    "WorkerSettings",
    "Writing",
    "file_digest",
    "mmdb",
    "requests_per",
]
