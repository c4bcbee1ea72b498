"""Penstock: the application components a Python service needs on one Valkey or Redis.

    from penstock import Penstock, Retry

    app = Penstock()

    @app.task(queue="mail", retry=Retry(5))
    async def send_email(to: str, subject: str) -> None: ...

    send_email.enqueue("ada@example.com", "Hi")

The reading order of the source is in docs/tour.md.
"""

from penstock.app import Penstock
from penstock.components.job import Job, JobInfo, Status
from penstock.components.queue import DeadLetter, Item, Queue, Tenant
from penstock.components.task import Call, Task
from penstock.components.transitions import Counts, TenantCounts, WorkerInfo
from penstock.errors import (
    BadCall,
    ConfigurationError,
    DurabilityUnavailable,
    FormatTooNew,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobNotFound,
    LeaseLost,
    NotDurable,
    PayloadTooLarge,
    PenstockError,
    ResultNotKept,
    ResultTimeout,
    ServerError,
    ServerFull,
    ServerRefused,
    ServerTooOld,
    ServerUnavailable,
    UnknownTask,
)
from penstock.settings import Settings, WorkerSettings
from penstock.tasks.definition import Options
from penstock.tasks.retry import Drop, Retry, RetryLater

__version__ = "0.1.0"

__all__ = [
    "BadCall",
    "Call",
    "ConfigurationError",
    "Counts",
    "DeadLetter",
    "Drop",
    "DurabilityUnavailable",
    "FormatTooNew",
    "Item",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobInfo",
    "JobNotFound",
    "LeaseLost",
    "NotDurable",
    "Options",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "Queue",
    "ResultNotKept",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "ServerError",
    "ServerFull",
    "ServerRefused",
    "ServerTooOld",
    "ServerUnavailable",
    "Settings",
    "Status",
    "Task",
    "Tenant",
    "TenantCounts",
    "UnknownTask",
    "WorkerInfo",
    "WorkerSettings",
]
