"""`penstock dead …`: jobs and messages that failed for good, until an operator requeues or removes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from penstock.cli import dead_batches, dead_files, dead_messages, job_actions
from penstock.cli.ages import Age
from penstock.cli.exits import Exit
from penstock.cli.job import show_attempts, value_text
from penstock.cli.job_outcomes import report_outcomes
from penstock.cli.where import HERE, AsJson, Limit, Offset, Where, Yes, confirm, read_arguments
from penstock.errors import ConfigurationError
from penstock.jobs.job_list import BulkProgress
from penstock.ops.inspect import Inspector
from penstock.ops.wording import age, ago, many
from penstock.terminal.tables import cell, headings, note, show, show_facts, show_json, show_list, show_table

AllOf: TypeAlias = Annotated[str | None, Parameter(name="--all")]

_OTHERS: dict[str, Any] = {one.PREFIX: one for one in (dead_messages, dead_batches, dead_files)}
"""Prefixes of names that are not queues -> the module that acts on what they name."""


def _other(name: str) -> Any:
    return next((module for prefix, module in _OTHERS.items() if name.startswith(prefix)), None)


def ls(
    queue: str,
    /,
    *,
    tag: str | None = None,
    limit: Limit = 20,
    offset: Offset = 0,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of a queue or of a mailbox, newest first, or what a receiver of files could not handle.

    Parameters
    ----------
    queue
        The name of the queue, or mailbox:NAME, or counts:CHANNEL:RECEIVER for the batches that an aggregate could not
        count, or files:CHANNEL:RECEIVER for the files that a receiver could not save.
    tag
        Of a queue: only those with this tag, among its latest 10,000.
    limit
        How many to list, up to 1000.
    offset
        How many of the newest to skip.
    as_json
        Print one JSON document.
    """
    if other := _other(queue):
        if tag is not None:
            raise ConfigurationError(f"--tag {tag}: {queue} is not a queue, so its dead letters have no tags")
        other.list_page(queue, limit, offset, where, as_json=as_json)
        return
    with where.open() as inspector:
        page, now = inspector.queues.list_dead(queue, limit, offset, tag=tag), inspector.now()
    if as_json:
        return show_json(page)
    if not page.letters and tag is not None:
        return show(f"No dead letter of {queue} has the tag {tag!r}" + (f" after {offset:,}." if offset else "."))
    if not page.letters:
        return show(f"No dead letters in {queue}." if not page.total else f"{queue} has only {page.total:,}.")
    lines = [(one.id, one.task, ago(one.died, now), f"{one.attempts}", one.reason) for one in page.letters]
    show_table(headings("job:name", "task:text", "died", "attempts", "reason:text"), lines)
    if tag is not None:
        show(f"{len(page.letters):,} with the tag {tag!r}, of {many(page.total, 'dead letter')}.")
    elif page.total > len(page.letters):
        show(f"{offset + 1:,} to {offset + len(page.letters):,} of {page.total:,}; --limit and --offset select others.")


def groups(
    queue: str,
    /,
    *,
    most: Annotated[int, Parameter(validator=Number(gte=1, lte=1_000_000))] = 10_000,
    where: Where = HERE,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of a queue grouped by task and error, the largest group first.

    Errors that differ only in numbers, ids or quoted texts are one group. `dead retry --all QUEUE --group KEY` and
    `dead rm` act on a group.

    Parameters
    ----------
    queue
        The name of the queue.
    most
        How many dead letters to examine, the latest first.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found, now = inspector.queues.dead_groups(queue, most), inspector.now()
    rows = (
        (one.key, f"{one.count:,}", one.task, ago(one.first, now), ago(one.last, now), one.example, one.error)
        for one in found.groups
    )
    if as_json:
        return show_json(found)
    columns = headings("group:name", "jobs", "task:text", "first", "last", "example:name", "error:text")
    show_list(found.groups, columns, rows, none=f"No dead letters in {queue}.", as_json=False)
    if found.examined < found.of:
        note(f"examined the latest {found.examined:,} of {found.of:,}; --most examines more")


def show_one(id: str, /, *, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show a dead letter with the traceback of its last failure.

    Parameters
    ----------
    id
        The id as it was printed: queue:key, mailbox:NAME:ID, counts:CHANNEL:RECEIVER:ID, or files:CHANNEL:RECEIVER:ID.
    as_json
        Print one JSON document.
    """
    if other := _other(id):
        other.show_one(id, where, as_json=as_json)
        return
    with where.open() as inspector:
        letter, now = inspector.jobs.show_dead(id), inspector.now()
    if as_json:
        return show_json(letter)
    show_facts(
        {
            "job": letter.id,
            "task": letter.task or "(a bare value)",
            "died": ago(letter.died, now),
            "attempts": f"{letter.attempts} failed, {many(letter.deliveries, 'delivery', 'deliveries')}",
            "tenant": letter.tenant or "(none)",
            "worker": letter.worker or "(none)",
            **({"tags": ", ".join(letter.tags)} if letter.tags else {}),
            "body": cell(value_text(letter.body)),
            "reason": letter.reason,
        }
    )
    show_attempts(letter.failures, now)
    if letter.traceback:
        show("", letter.traceback.rstrip())


def retry(
    *ids: str,
    all_of: AllOf = None,
    group: str | None = None,
    arguments: str | None = None,
    yes: Yes = False,
    where: Where = HERE,
) -> Exit:
    """Run dead letters again, with their attempts reset to zero. Exit code 1 if one is not a dead letter.

    The dead batches of an aggregate are counted by its next run, and dead files are saved by the next `files receive`
    into the folder that keeps them.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key, mailbox:NAME:ID, counts:CHANNEL:RECEIVER:ID, or files:CHANNEL:RECEIVER:ID.
    all_of
        Instead of ids: all present dead letters of this queue, or of what `dead ls` takes instead of a queue.
    group
        With --all QUEUE: only those of this group, as `dead groups` lists it.
    arguments
        Run the one job that is named with these arguments, a JSON object of all of them by name. Its unique key and
        its limits follow from them. Needs --app.
    yes
        Do not ask; required with --all unless at a terminal.
    """
    queue = _queue_of_all(ids, all_of)
    _check_option("--group", group, queue)
    if arguments is not None:
        return _repair(ids, arguments, where)
    if other := _other(queue or ids[0]):
        return Exit(other.retry(ids, queue, where, yes=yes))
    with where.open() as inspector:
        if queue is None:
            return job_actions.requeue(inspector, ids)
        if group is not None:
            act = inspector.queues.requeue_dead_group
            return _do_to_group(inspector, queue, group, "runs {} again", "Requeued", act, yes=yes)
        done = _do_to_all(inspector, queue, "runs {} again", inspector.queues.requeue_all_dead, yes=yes)
        show(f"Requeued {many(done, 'job')} of {queue}.")
        return Exit.OK


def _repair(ids: Sequence[str], arguments: str, where: Where) -> Exit:
    if len(ids) != 1 or _other(ids[0]):
        raise ConfigurationError("--arguments is for one job of a queue: name it by its id")
    if where.app is None:
        raise ConfigurationError("dead retry --arguments needs the app that has the task: --app module:name")
    values = read_arguments(arguments)
    with where.open() as inspector:
        outcome = inspector.jobs.repair_dead(ids[0], values)
    return report_outcomes([outcome], "requeued with these arguments", job_actions.RETRIED)


def rm(
    *ids: str,
    all_of: AllOf = None,
    older: Age | None = None,
    group: str | None = None,
    yes: Yes = False,
    where: Where = HERE,
) -> Exit:
    """Delete dead letters for good. Exit code 1 if one is not a dead letter.

    Parameters
    ----------
    ids
        Ids as they were printed: queue:key, mailbox:NAME:ID, counts:CHANNEL:RECEIVER:ID, or files:CHANNEL:RECEIVER:ID.
    all_of
        Instead of ids: all present dead letters of this queue, or of what `dead ls` takes instead of a queue.
    older
        With --all QUEUE: only jobs that died longer ago than this: 90s, 15m, 12h, 7d or 2w.
    group
        With --all QUEUE: only those of this group, as `dead groups` lists it.
    yes
        Do not ask; required unless at a terminal.
    """
    queue = _queue_of_all(ids, all_of)
    _check_option("--older", older, queue)
    _check_option("--group", group, queue)
    if older is not None and group is not None:
        raise ConfigurationError("--older and --group: give one of them")
    if other := _other(queue or ids[0]):
        return Exit(other.rm(ids, queue, where, yes=yes))
    with where.open() as inspector:
        if queue is None:
            return job_actions.remove(inspector, ids, yes=yes)
        if group is not None:
            act = inspector.queues.remove_dead_group
            return _do_to_group(inspector, queue, group, "deletes {} for good", "Removed", act, yes=yes)
        done = _do_to_all(
            inspector, queue, "deletes {} for good", inspector.queues.remove_all_dead, older or 0.0, yes=yes
        )
        show(f"Removed {many(done, 'dead letter')} of {queue}.")
        return Exit.OK


def _do_to_all(
    inspector: Inspector, queue: str, what: str, act: Callable[[str, int], int], older: float = 0.0, *, yes: bool
) -> int:
    """Apply `act` to the dead letters of a queue that are older than this, after a confirmation. Returns how many."""
    dead = inspector.queues.count_dead(queue, older)
    letters = f"{many(dead.count, 'dead letter')} of queue {queue}"
    letters += f" that died more than {age(older)} ago" if older else ""
    confirm(f"This {what.format(letters)}, at {inspector.location}.", yes=yes)
    return act(queue, dead.until)


def _check_option(name: str, given: object, queue: str | None) -> None:
    """Raises ConfigurationError for an option that needs all dead letters of a queue."""
    if given is not None and (queue is None or ":" in queue):
        raise ConfigurationError(f"{name} selects dead letters of a queue: name that with --all")


def _do_to_group(
    inspector: Inspector,
    queue: str,
    group: str,
    what: str,
    done: str,
    act: Callable[[str, str], BulkProgress],
    *,
    yes: bool,
) -> Exit:
    letters = f"all dead letters of group {group} of queue {queue}"
    confirm(f"This {what.format(letters)}, at {inspector.location}.", yes=yes)
    progress = act(queue, group)
    if not progress.found:
        raise ConfigurationError(
            f"queue {queue} has no dead letter of group {group}: `penstock dead groups {queue}` lists its groups"
        )
    show(f"{done} {many(progress.done, 'dead letter')} of {queue}.")
    if progress.done < progress.found:
        note(f"{progress.found - progress.done:,} stay dead: another job holds their unique key, or they have changed")
    return Exit.OK if progress.done == progress.found else Exit.FAILED


def _queue_of_all(ids: Sequence[str], queue: str | None) -> str | None:
    """The queue of --all, or None if there are ids. Raises ConfigurationError unless there is one of the two."""
    if bool(ids) == (queue is not None):
        raise ConfigurationError("name dead letters by id, or a queue with --all, but not both")
    if len({_other(id) for id in ids}) > 1:
        raise ConfigurationError("name dead letters of queues, of mailboxes or of receivers, but not several at once")
    return queue
