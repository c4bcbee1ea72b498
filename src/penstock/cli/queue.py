"""`penstock queue …`: queues and their jobs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.text import Text

from penstock.cli.ages import Age
from penstock.cli.owners import user_name
from penstock.cli.where import HERE, AsJson, Flag, Where, Yes, confirm
from penstock.errors import ConfigurationError
from penstock.jobs.bounds import MOST
from penstock.jobs.counts import Counts
from penstock.jobs.keys import MOST_SHARDS
from penstock.jobs.pauses import SCOPES_NAMED, PausedScope, resume_command
from penstock.jobs.retention import Retention
from penstock.ops.answers import QueueDetail
from penstock.ops.wording import age, ago, exactly, many
from penstock.terminal.tables import Kind, cell, headings, show, show_facts, show_json, show_list, show_table

Bound: TypeAlias = Annotated[int | None, Parameter(validator=Number(gte=1, lte=MOST))]
Shards: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_SHARDS))]


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List every queue with its jobs by state, and the age of its oldest ready and its oldest parked job.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        queues = inspector.queues.all()
    seldom = ["waiting"] if any(queue.counts.dependent for queue in queues) else []
    names = ("queue:name", "ready", "oldest", "delayed", "sleeping", "parked", *seldom, "running", "dead", ":name")
    columns = headings(*names)
    lines = [
        (
            *(q.name, f"{c.ready:,}", _oldest(c), f"{c.delayed:,}", f"{c.sleeping:,}", _parked(c)),
            *(f"{c.dependent:,}" for _ in seldom),
            *(f"{c.running:,}", _dead(c), _state(c)),
        )
        for q in queues
        for c in (q.counts,)
    ]
    show_list(queues, columns, lines, none="No queue was used here yet.", as_json=as_json)


def _oldest(counts: Counts) -> str:
    return age(counts.oldest) if counts.ready else ""


def _parked(counts: Counts) -> str:
    return f"{counts.parked:,} for {age(counts.oldest_parked)}" if counts.parked else "0"


def _dead(counts: Counts) -> Text:
    return cell(f"{counts.dead:,}", "red" if counts.dead else "")


def _state(counts: Counts) -> Text:
    scopes = many(counts.paused_scopes, "scope paused", "scopes paused") if counts.paused_scopes else ""
    full = "full" if counts.is_full else ""
    return cell(", ".join(filter(None, ("paused" if counts.paused else scopes, full))), "yellow")


def show_one(name: str, /, *, tenants: int = 10, where: Where = HERE, as_json: AsJson = False) -> None:
    """Show one queue: jobs by state, workers, totals, largest tenants, and jobs whose task no worker knows.

    Parameters
    ----------
    name
        The queue.
    tenants
        How many tenants to show, most waiting jobs first.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        queue = inspector.queues.show(name, tenants=tenants)
        now = inspector.now() if queue.pauses else 0.0
    if as_json:
        return show_json(queue)
    return _describe(queue, now)


def _describe(queue: QueueDetail, now: float) -> None:
    counts = queue.counts
    state = "open"
    if counts.paused:
        state = "; ".join(_pause(one, now) for one in queue.pauses if one.name == "queue") + ": no job is handed out"
    if counts.due_first:
        state += "; due jobs go first"
    if counts.by_time:
        state += "; tenants share the time of the workers"
    oldest = f", the oldest for {age(counts.oldest)}" if counts.ready else ""
    parked = f", the oldest for {age(counts.oldest_parked)}" if counts.parked else ""
    due = f", the next {_due(queue.due_in)}" if counts.delayed and queue.due_in is not None else ""
    show_facts(
        {
            "queue": queue.name,
            "state": cell(state, "yellow" if counts.paused else ""),
            **_shards(queue),
            "ready": f"{counts.ready:,}{oldest}",
            "delayed": f"{counts.delayed:,}{due}",
            **({"sleeping": f"{counts.sleeping:,}"} if counts.sleeping else {}),
            "parked": f"{counts.parked:,}{parked}",
            **({"waiting": f"{counts.dependent:,}, for other jobs"} if counts.dependent else {}),
            "running": f"{counts.running:,}",
            "dead": _dead(counts),
            "workers": f"{queue.workers:,}",
            **({"bound": _bound(counts)} if counts.bound or counts.tenant_bound else {}),
            **_outbox(queue),
            "keeps": _kept(queue.kept),
            "so far": _totals(counts),
        }
    )
    if scopes := [one for one in queue.pauses if one.name != "queue"]:
        rows = [(one.name, f"{one.parked:,}", _pause(one, now)) for one in scopes]
        show("")
        show_table(headings("paused:text", "parked", ":text"), rows)
        show(f"To continue: penstock queue resume {queue.name}, with --task or --tenant and its name.")
    if queue.largest:
        lines = [
            (
                t.name or "(no tenant)",
                *(f"{n:,}" for n in (c.ready, c.delayed, c.sleeping, c.parked, c.running, c.dead)),
            )
            for t in queue.largest
            for c in (t.counts,)
        ]
        show("")
        numbers: dict[str, Kind] = dict.fromkeys(
            ("ready", "delayed", "sleeping", "parked", "running", "dead"), "number"
        )
        show_table({"tenant": "text", **numbers}, lines)
        if queue.tenants > len(queue.largest):
            all_examined = queue.tenants_examined >= queue.tenants
            among = "" if all_examined else f"; these are the largest of the {queue.tenants_examined:,} examined"
            show(f"{queue.tenants:,} tenants in all{among}.")
    if queue.unknown_task_jobs:
        lines = [(job.id, job.reason) for job in queue.unknown_task_jobs[:10]]
        show("")
        show_table(headings("handed back:name", "reason:text"), lines)
        some = many(len(queue.unknown_task_jobs), "job waits", "jobs wait")
        show(f"{some} for a worker that knows their task, of the first {queue.jobs_examined:,} delayed.")


def _outbox(queue: QueueDetail) -> dict[str, str]:
    queues = [f"{one.entries:,} to {one.queue}, the oldest for {age(one.oldest)}" for one in queue.outbox]
    return {"outbox": "; ".join(queues)} if queues else {}


def _shards(queue: QueueDetail) -> dict[str, str]:
    if queue.growing_from:
        return {"shards": f"{queue.growing_from}, and {queue.shards - queue.growing_from} more are being added"}
    spread = "".join(f"; {tenant or '(no tenant)'} uses {number}" for tenant, number in queue.spread.items())
    return {"shards": f"{queue.shards}{spread}"} if queue.shards > 1 else {}


def _due(seconds: float) -> str:
    return f"in {age(seconds)}" if seconds else "now"


def _totals(counts: Counts) -> str:
    totals = {
        "completed": counts.completed,
        "retried": counts.retried,
        "failed": counts.failed,
        "dropped": counts.dropped,
        "cancelled": counts.cancelled,
        "expired": counts.expired,
        "taken back": counts.lost,
    }
    return ", ".join(f"{number:,} {name}" for name, number in totals.items() if number) or "nothing"


def _kept(kept: Retention) -> str:
    limits = [
        f"{kept.dead_letters:,} dead letters" if kept.dead_letters is not None else "",
        f"dead letters for {exactly(kept.dead_age)}" if kept.dead_age is not None else "",
        f"{kept.results:,} results" if kept.results is not None else "",
        f"{kept.finished:,} rows of ended jobs" if kept.finished is not None else "",
        f"rows of ended jobs for {exactly(kept.finished_age)}" if kept.finished_age is not None else "",
        "arguments of ended jobs" if kept.arguments else "",
    ]
    return ", ".join(filter(None, limits)) or "all dead letters, and each result for its time"


def keep(
    name: str,
    /,
    *,
    dead_letters: int | None = None,
    dead_age: Age | None = None,
    results: int | None = None,
    finished: int | None = None,
    finished_age: Age | None = None,
    arguments: bool | None = None,
    reset: Flag = False,
    where: Where = HERE,
) -> None:
    """Limit what a queue keeps of jobs that have ended. Only what is named changes; without an option, show it.

    Parameters
    ----------
    name
        The queue.
    dead_letters
        How many dead letters; the oldest are removed first.
    dead_age
        For how long a dead letter is kept, such as 12h or 30d.
    results
        How many results; those whose time ends first are removed first.
    finished
        How many rows of ended jobs, for `penstock job ls --state ended`: usually 10,000; 0: none.
    finished_age
        For how long such a row is kept: usually a day.
    arguments
        Keep the arguments of ended jobs with their rows, so that `penstock job run-again` can run them again. Those of
        records above 4 KiB are not kept.
    reset
        First remove all limits: keep all dead letters, and rows as usual, without arguments.
    """
    named: dict[str, Any] = {
        "dead_letters": dead_letters,
        "dead_age": dead_age,
        "results": results,
        "finished": finished,
        "finished_age": finished_age,
        "arguments": arguments,
    }
    changed = {option: value for option, value in named.items() if value is not None}
    with where.open() as inspector:
        queue = inspector.queues.open(name)
        kept = replace(Retention() if reset else queue.kept(), **changed)
        if changed or reset:
            queue.keep(**asdict(kept))
    show(f"{name} keeps {_kept(kept)}.")


def bound(name: str, /, *, jobs: Bound = None, per_tenant: Bound = None, where: Where = HERE) -> None:
    """Refuse new jobs beyond a number of unfinished ones. Without an option there is no such bound.

    Programs that enqueue more get the error QueueFull. Jobs that are in the queue already stay, even above a new bound.

    Parameters
    ----------
    name
        The queue.
    jobs
        How many jobs of the queue may wait or run.
    per_tenant
        How many jobs of each tenant may wait or run.
    """
    with where.open() as inspector:
        queue = inspector.queues.open(name)
        queue.bound(jobs=jobs, per_tenant=per_tenant)
        counts = queue.count()
    show(f"{name} takes {_bound(counts)}.")


def _bound(counts: Counts) -> str:
    bounds = [
        f"up to {counts.bound:,} jobs, and has {counts.unfinished:,}" if counts.bound else "",
        f"up to {counts.tenant_bound:,} of each tenant" if counts.tenant_bound else "",
        f"has refused {counts.refused:,}" if counts.refused else "",
    ]
    return "; ".join(filter(None, bounds)) or "any number of jobs"


def order(name: str, /, *, by_time: bool | None = None, due_first: bool | None = None, where: Where = HERE) -> None:
    """Choose in which order a queue hands out its jobs. An order that is not named stays as it is.

    Parameters
    ----------
    name
        The queue.
    by_time
        Let tenants share the time of the workers equally, instead of the number of jobs.
    due_first
        Let delayed jobs that are due go before the other jobs of their tenant and priority.
    """
    if by_time is None and due_first is None:
        raise ConfigurationError("name an order: --by-time, --due-first, --no-by-time or --no-due-first")
    with where.open() as inspector:
        queue = inspector.queues.open(name)
        if by_time is not None:
            queue.fair_by_time(by_time)
        if due_first is not None:
            queue.due_first(due_first)
        counts = queue.count()
    shared = "the time of the workers" if counts.by_time else "the number of jobs"
    due = "go before other jobs" if counts.due_first else "wait behind other jobs"
    show(f"{name}: tenants share {shared} equally; jobs that become due {due}.")


def pause(name: str, /, *, task: str | None = None, tenant: str | None = None, where: Where = HERE) -> None:
    """Stop handing out jobs of a queue. Running jobs continue, and new ones are accepted.

    Parameters
    ----------
    name
        The queue.
    task
        Only the jobs of this task. They are parked, and the others continue.
    tenant
        Only the jobs of this tenant.
    """
    with where.open() as inspector:
        queue = inspector.queues.open(name)
        queue.pause(task=task, tenant=tenant, by=user_name())
        counts = queue.count()
    running = many(counts.running, "running job continues", "running jobs continue")
    show(f"{_queue_or_scope(name, task, tenant)} is paused; {running}, {counts.waiting:,} wait.")


def resume(name: str, /, *, task: str | None = None, tenant: str | None = None, where: Where = HERE) -> None:
    """Hand out jobs of a queue again, and name what of it stays paused.

    Parameters
    ----------
    name
        The queue.
    task
        The jobs of this task, which was paused.
    tenant
        The jobs of this tenant, which was paused.
    """
    with where.open() as inspector:
        queue = inspector.queues.open(name)
        left = queue.resume(task=task, tenant=tenant)
        counts = queue.count()
    show(f"{_queue_or_scope(name, task, tenant)} is resumed; {many(counts.waiting, 'job waits', 'jobs wait')}.")
    for one in left[:SCOPES_NAMED]:
        what = name if one.name == "queue" else f"{name}, {one.name}"
        parked = f", with {many(one.parked, 'parked job')}" if one.parked else ""
        show(f"{what} stays paused{parked}: {resume_command(name, one)}")
    if len(left) > SCOPES_NAMED:
        show(f"{len(left) - SCOPES_NAMED:,} more stay paused: penstock queue show {name}")


def _queue_or_scope(name: str, task: str | None, tenant: str | None) -> str:
    if task is None and tenant is None:
        return name
    return f"{name}, {f'task {task}' if task is not None else f'tenant {tenant!r}'}"


def _pause(pause: PausedScope, now: float) -> str:
    return f"{'paused' if pause.paused else 'resumed'} {ago(pause.since, now)} by {pause.by}"


def split(name: str, /, *, shards: Shards, where: Where = HERE) -> None:
    """Give a queue more shards, each in a cluster slot of its own, while programs use it. This cannot be undone.

    Jobs stay where they are. A tenant whose shard changes moves when its old shard has no job of it, dead letters
    included. All programs that enqueue into the queue must name its shards in their code or settings.

    Parameters
    ----------
    name
        The queue.
    shards
        How many shards it has afterwards, up to 32.
    """
    with where.open() as inspector:
        is_closed = inspector.queues.split(name, shards)
    rest = "" if is_closed else " Tenants with jobs move when these are done; penstock queue show says when all have."
    show(f"{name} has {shards} shards.{rest}")


def weigh(name: str, /, *, tenant: str, weight: float, where: Where = HERE) -> None:
    """Serve one tenant of a queue more or less often than the others.

    Parameters
    ----------
    name
        The queue.
    tenant
        The tenant.
    weight
        How many of its jobs are served for each job of a tenant with weight 1, the default. From 0.001 to 1000.
    """
    if not 0.001 <= weight <= 1000:
        raise ConfigurationError(f"--weight {weight:g}: a weight is from 0.001 to 1000")
    with where.open() as inspector:
        inspector.queues.open(name).tenant(tenant).weigh(weight)
    show(f"{tenant} of {name} has the weight {weight:g}.")


def spread(name: str, /, *, tenant: str, shards: Shards, where: Where = HERE) -> None:
    """Spread the new jobs of one tenant over several shards, because one shard cannot handle its jobs.

    From then on they are served in no particular order. Unique jobs, and jobs with limits, in flows or in batches, stay
    in one shard.

    Parameters
    ----------
    name
        The queue.
    tenant
        The tenant. An empty name means jobs without a tenant.
    shards
        How many shards it uses. 1 ends the spreading of new jobs.
    """
    with where.open() as inspector:
        inspector.queues.open(name).tenant(tenant).spread(shards)
    show(f"New jobs of {tenant or '(no tenant)'} go to {many(shards, 'shard', 'shards')} of {name}.")


def purge(name: str, /, *, tenant: str | None = None, yes: Yes = False, where: Where = HERE) -> None:
    """Cancel all waiting jobs of a queue. Running jobs continue, and dead letters remain.

    Parameters
    ----------
    name
        The queue.
    tenant
        Cancel only jobs of this tenant.
    yes
        Do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        waiting = inspector.queues.waiting(name, tenant)
        whose = f"queue {name}" + (f", tenant {tenant!r}" if tenant is not None else "")
        confirm(f"This cancels {many(waiting, 'waiting job')} of {whose}, at {inspector.location}.", yes=yes)
        cancelled = inspector.queues.purge(name, tenant, most=waiting)
    show(f"Cancelled {many(cancelled, 'job')} of {whose}.")


def rm(name: str, /, *, yes: Yes = False, where: Where = HERE) -> None:
    """Remove an empty queue with its settings, totals, history and kept results.

    It is refused, with counts, if the queue has a job in any state, a schedule, or a live worker.

    Parameters
    ----------
    name
        The queue.
    yes
        Do not ask; required unless at a terminal.
    """
    with where.open() as inspector:
        inspector.queues.open(name)  # an unknown name is refused before the question
        confirm(f"This removes queue {name} with its settings, totals and results, at {inspector.location}.", yes=yes)
        inspector.queues.remove(name)
    show(f"Removed {name}.")
