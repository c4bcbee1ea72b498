"""The types of the values that Penstock's methods return. All are frozen; a program never constructs one.

A program imports them from here for its annotations. Each is defined next to the methods that return it, and no module
of Penstock imports it from here.
"""

from penstock.lazy import LazyNames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.completion.entry import EntryPage
    from penstock.files.bindings import ChannelInfo, ReceiverInfo
    from penstock.files.count_bindings import Totals
    from penstock.files.download import FileProgress
    from penstock.files.lines import CutLine
    from penstock.files.saving import Saved
    from penstock.files.sender import Sent
    from penstock.files.upload import Progress, SentFile
    from penstock.jobs.counts import Counts, TenantCounts, WorkerInfo
    from penstock.jobs.dead_groups import DeadGroup, DeadGroups
    from penstock.jobs.dead_letters import DeadLetter
    from penstock.jobs.durable_bindings import StepInfo
    from penstock.jobs.failures import Attempt
    from penstock.jobs.flow_tree import FlowNode
    from penstock.jobs.job import JobInfo
    from penstock.jobs.job_list import BulkProgress, JobPage, JobSummary
    from penstock.jobs.limits import KeyUsage, LimitInfo
    from penstock.jobs.log_lines import JobLines
    from penstock.jobs.notes import JobProgress, LogLine
    from penstock.jobs.output import JobOutput, OutputPart
    from penstock.jobs.pauses import PausedScope
    from penstock.jobs.schedule import ScheduleInfo, ScheduleRun
    from penstock.jobs.why import Explanation
    from penstock.locks.answers import (
        Allowance,
        BarrierInfo,
        BarrierPass,
        ElectionInfo,
        LatchInfo,
        Leader,
        LockInfo,
        Owner,
        RateLimitInfo,
        ReadWriteLockInfo,
        SemaphoreInfo,
    )
    from penstock.messages.chat import ChatInfo, Member
    from penstock.messages.mailbox import MailboxInfo
    from penstock.messages.message import DeadMessage, Gap
    from penstock.sealing import Sealed

__all__: list[str] = []
_names = LazyNames(__name__, __all__)
__all__ += ["Counts", "TenantCounts", "WorkerInfo"]
_names.are_in("penstock.jobs.counts")
__all__ += ["DeadGroup", "DeadGroups"]
_names.are_in("penstock.jobs.dead_groups")
__all__ += ["DeadLetter"]
_names.are_in("penstock.jobs.dead_letters")
__all__ += ["StepInfo"]
_names.are_in("penstock.jobs.durable_bindings")
__all__ += ["Attempt"]
_names.are_in("penstock.jobs.failures")
__all__ += ["FlowNode"]
_names.are_in("penstock.jobs.flow_tree")
__all__ += ["JobInfo"]
_names.are_in("penstock.jobs.job")
__all__ += ["BulkProgress", "JobPage", "JobSummary"]
_names.are_in("penstock.jobs.job_list")
__all__ += ["KeyUsage", "LimitInfo"]
_names.are_in("penstock.jobs.limits")
__all__ += ["JobLines"]
_names.are_in("penstock.jobs.log_lines")
__all__ += ["JobProgress", "LogLine"]
_names.are_in("penstock.jobs.notes")
__all__ += ["JobOutput", "OutputPart"]
_names.are_in("penstock.jobs.output")
__all__ += ["PausedScope"]
_names.are_in("penstock.jobs.pauses")
__all__ += ["ScheduleInfo", "ScheduleRun"]
_names.are_in("penstock.jobs.schedule")
__all__ += ["Explanation"]
_names.are_in("penstock.jobs.why")
__all__ += [
    "Allowance",
    "BarrierInfo",
    "BarrierPass",
    "ElectionInfo",
    "LatchInfo",
    "Leader",
    "LockInfo",
    "Owner",
    "RateLimitInfo",
    "ReadWriteLockInfo",
    "SemaphoreInfo",
]
_names.are_in("penstock.locks.answers")
__all__ += ["EntryPage"]
_names.are_in("penstock.completion.entry")
__all__ += ["ChatInfo", "Member"]
_names.are_in("penstock.messages.chat")
__all__ += ["MailboxInfo"]
_names.are_in("penstock.messages.mailbox")
__all__ += ["DeadMessage", "Gap"]
_names.are_in("penstock.messages.message")
__all__ += ["ChannelInfo", "ReceiverInfo"]
_names.are_in("penstock.files.bindings")
__all__ += ["FileProgress"]
_names.are_in("penstock.files.download")
__all__ += ["Totals"]
_names.are_in("penstock.files.count_bindings")
__all__ += ["CutLine"]
_names.are_in("penstock.files.lines")
__all__ += ["Saved"]
_names.are_in("penstock.files.saving")
__all__ += ["Sent"]
_names.are_in("penstock.files.sender")
__all__ += ["Progress", "SentFile"]
_names.are_in("penstock.files.upload")
__all__ += ["Sealed"]
_names.are_in("penstock.sealing")

if not TYPE_CHECKING:
    __getattr__, __dir__ = _names.load, _names.listed
