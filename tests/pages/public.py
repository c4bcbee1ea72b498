"""What is public: the names of the modules that users import from, and the members of their classes.

A member that does not begin with an underscore is public, unless it is listed or its signature has types of the inside.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from types import MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

MODULES = (
    "penstock",
    "penstock.counting",
    "penstock.errors",
    "penstock.info",
    "penstock.testing",
    "penstock.testing.history",
    "penstock.sql",
    "penstock.web",
    "penstock.integrations.django",
    "penstock.integrations.fastapi",
    "penstock.integrations.flask",
    "penstock.integrations.opentelemetry",
    "penstock.integrations.prometheus",
    "penstock.integrations.starlette",
)

# Types that no user has: a method with one of them serves other modules of Penstock.
INSIDE = re.compile(
    r"\b(Operation|RoundTrip|Claim|Settlement|StoredSchedule|Shard|\w*Bindings|Driver|Renewer|Definition|EncodedCall|UniqueField|Listener)\b"
)

# Members that other modules of Penstock use, by the name of the member or of its class and it.
INTERNAL = {
    # of leases, locks and permits, which renew themselves
    "drop", "ends_at", "ends_because", "ends_by_itself", "give_back", "mark_lost", "notice_address", "notice_key",
    "raise_on_exit", "receive_notice", "renew_at", "stop_renewing", "token", "renewal",
    # of jobs
    "Call.draft", "Call.job", "Call.payload", "Call.powers", "Call.wanted", "Batch.declared", "Flow.enqueue_here",
    "JobDraft.record", "Options.is_due_now", "Options.is_plain", "Queue.draft", "Rate.interval", "Retention.stored",
    "Retry.applies", "Retry.left", "Retry.DEFAULT_TIMES", "Stage.pack", "Task.definition", "Task.options",
    "Task.effort", "Task.record_start", "Task.result_ttl", "Task.shard", "Task.unique", "Task.waiting",
    "Unique.replaces", "Job.keeps_no_result", "Queue.check_shards", "ErrorReports.enqueue", "ErrorReports.execute",
    "ErrorReports.finished", "JobFields.filter",
    # of locks, messages and files
    "Leader.elected", "DeadMessage.read", "Follow.fetch", "Follow.settle", "Mail.marked",
    # of counting
    "word",
}  # fmt: skip


class Public(NamedTuple):
    """A public name, with the module that users import it from."""

    module: str
    name: str
    thing: Any


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module. `penstock.errors` has no list: all its errors are public."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [name for name, one in vars(module).items() if isinstance(one, type) and issubclass(one, Exception)]


def everything() -> Iterator[Public]:
    """Each public name once. An error that `penstock` offers too is one of `penstock.errors`."""
    seen: set[int] = set()
    for place in sorted(MODULES, key=lambda name: name != "penstock.errors"):
        module = import_module(place)
        for name in names_of(module):
            thing = getattr(module, name)
            if id(thing) not in seen:
                seen.add(id(thing))
                yield Public(place, name, thing)


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The public members of a class, without its fields, in the order of their definition."""
    order = {name: (-depth, place) for depth, base in enumerate(kind.__mro__) for place, name in enumerate(vars(base))}
    for name in sorted(set(dir(kind)), key=lambda name: order.get(name, (0, 0))):
        member = inspect.getattr_static(kind, name)
        home = next((base for base in kind.__mro__ if name in vars(base)), object)
        if name.startswith("_") or not home.__module__.startswith("penstock") or is_field(kind, name, member):
            continue
        if name not in INTERNAL and f"{kind.__name__}.{name}" not in INTERNAL and not _is_inside(member):
            yield name, member


def is_field(kind: type, name: str, member: Any) -> bool:
    """Whether a member is a value of each object, which `fields_of` lists, and neither method nor property."""
    if isinstance(member, MemberDescriptorType) or type(member).__name__ == "_tuplegetter":
        return True
    return issubclass(kind, Enum) or not (
        inspect.isroutine(member) or isinstance(member, property) or hasattr(member, "_make") or callable(member)
    )


def _is_inside(member: Any) -> bool:
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if not inspect.isfunction(member):
        return False
    return bool(INSIDE.search(str(inspect.signature(member))))
