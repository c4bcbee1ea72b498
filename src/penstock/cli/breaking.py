"""`penstock lock|semaphore|rwlock|election break`: take what processes hold. Four commands, one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.cli.exits import Exit
from penstock.cli.owners import owner_name
from penstock.cli.where import HERE, Where, Yes, confirm
from penstock.errors import ConfigurationError
from penstock.locks.breaking import MAX_REASON
from penstock.ops.answers import Holding, HoldingKind
from penstock.ops.wording import many
from penstock.terminal.tables import show

MOST_NAMED = 10
"""Holdings that a question names; it counts the others."""


@dataclass(frozen=True)
class Breaking:
    kind: HoldingKind
    holder: str
    """The word for a process that holds one."""
    taken: str
    """The word for what is taken from it."""
    things: str
    """The word for the things whose names the command takes."""
    none: str
    """The line that is printed if there is nothing to take."""
    summary: str
    fence: str
    """The sentence about the number that makes a storage refuse late writes of a former holder."""


def command(noun: Breaking) -> Callable[..., Exit]:
    """The function of `break`, with the docstring that `--help` prints."""

    def break_(
        *names: str,
        name_prefix: str | None = None,
        host: str | None = None,
        process: str | None = None,
        reason: str = "",
        yes: Yes = False,
        where: Where = HERE,
    ) -> Exit:
        if not names and name_prefix is None and host is None and process is None:
            raise ConfigurationError(f"name {noun.things}, or select them with --name-prefix, --host or --process")
        if names and name_prefix is not None:
            raise ConfigurationError(f"name {noun.things}, or give the --name-prefix of their names, but not both")
        if len(reason) > MAX_REASON:
            raise ConfigurationError(f"--reason: at most {MAX_REASON} characters")
        with where.open() as inspector:
            found = inspector.coordination.holdings(
                noun.kind, names, name_prefix=name_prefix or "", host=host, process=process
            )
            if not found:
                show(noun.none)
                return Exit.FAILED
            holders = ", ".join(_holding(one) for one in found[:MOST_NAMED])
            more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
            what = f"This takes {noun.taken} from {many(len(found), noun.holder)}"
            confirm(f"{what}: {holders}{more}, at {inspector.location}.", yes=yes)
            broken = inspector.coordination.break_holdings(found, reason)
        for one in broken:
            show(f"{one.name} taken from {owner_name(one.holder)}")
        if len(broken) < len(found):
            show(f"{many(len(found) - len(broken), noun.holder)} no longer had it.")
        return Exit.OK

    break_.__doc__ = f"""{noun.summary}

{noun.fence} A process that hangs and resumes later gets LeaseLost with the reason.

Parameters
----------
names
    Names of {noun.things}.
name_prefix
    Instead of names: all whose names begin with this text.
host
    Only from processes of this host.
process
    Only from this process, as `ls` and `show` name it: host:pid.
reason
    Why, for the log of the {noun.holder}: at most {MAX_REASON} characters.
yes
    Do not ask; required unless at a terminal.
"""
    return break_


def _holding(one: Holding) -> str:
    of = f"{one.holder.permits:,} of " if one.kind == "semaphore" else ""
    return f"{of}{one.name} of {owner_name(one.holder)}"


break_locks = command(
    Breaking(
        "lock",
        "owner",
        "locks",
        "locks",
        "No such lock is held.",
        "Take locks from their owners, which are notified. Each goes to its first waiter. Exit code 1 if none is held.",
        "The fence of each lock rises.",
    )
)

break_semaphores = command(
    Breaking(
        "semaphore",
        "holder",
        "permits",
        "semaphores",
        "No permit of such a semaphore is held.",
        "Take permits from their holders, which are notified. They go to waiters. Exit code 1 if none is held.",
        "Select one holder with --process.",
    )
)

break_read_write_locks = command(
    Breaking(
        "rwlock",
        "holder",
        "read-write locks",
        "read-write locks",
        "No such read-write lock is held.",
        "Take read-write locks from the writer or the readers, which are notified. Exit code 1 if none is held.",
        "The next writer has a higher fence. Select one reader with --process.",
    )
)

break_elections = command(
    Breaking(
        "election",
        "leader",
        "the leadership",
        "elections",
        "No such election has a leader.",
        "Take the leadership from leaders, which are notified. The first candidate follows. Exit code 1 if none leads.",
        "The next leader has a higher term.",
    )
)
