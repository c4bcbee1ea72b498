"""The actions of the pages. Each calls the inspector once, and writes one line to the log `penstock.audit`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.errors import PenstockError
from penstock.files.dead_files import DeadFiles
from penstock.jobs.pauses import SCOPES_NAMED
from penstock.ops.answers import HoldingKind
from penstock.ops.inspect import Inspector
from penstock.ops.wording import age, many, terminal_safe
from penstock.web.answers import Json, Mask, read_body, reporting_errors
from penstock.web.bulk import BulkRuns, Filter

audit = logging.getLogger("penstock.audit")

Action: TypeAlias = Callable[["Order"], Awaitable["Done"]]


class Order(msgspec.Struct):
    """An action with its arguments. `confirmed` says that the user was asked and agreed."""

    action: str
    queue: str = ""
    tenant: str | None = None
    kind: HoldingKind = "lock"
    ids: list[str] = []
    names: list[str] = []
    reason: str = ""
    text: str = ""
    """The arguments of a job, or the value of a signal, as the user typed them in JSON."""
    most: int | None = None
    per_tenant: int | None = None
    seconds: float | None = None
    weight: float = 1.0
    until: int = 0
    filter: Filter = msgspec.field(default_factory=Filter)
    to: str = ""
    confirmed: bool = False
    user: str = ""
    """The visitor that sent it, whatever the request says."""

    def two_names(self, what: str = "the names of a channel and of a receiver") -> tuple[str, str]:
        if len(self.names) != 2:
            raise ValueError(f"{self.action} needs {what}")
        return self.names[0], self.names[1]

    def only_id(self) -> str:
        if len(self.ids) != 1:
            raise ValueError(f"{self.action} needs one job, and got {len(self.ids)}")
        return self.ids[0]

    def typed(self) -> Any:
        """Decode `text` from JSON. Raises ValueError if it is not JSON."""
        try:
            return msgspec.json.decode(self.text)
        except msgspec.DecodeError as error:
            raise ValueError(f"{self.text[:60]!r} is not JSON: {error}") from None

    def typed_arguments(self) -> dict[str, Any]:
        """Decode the arguments in `text`. Raises ValueError if it is not a JSON object."""
        arguments = self.typed()
        if not isinstance(arguments, dict):
            raise ValueError("give the arguments as a JSON object, by their names")
        return arguments

    def only_name(self) -> str:
        """The name that the action is about. Raises ValueError unless there is exactly one."""
        if len(self.names) != 1:
            raise ValueError(f"{self.action} needs one name, and got {len(self.names)}")
        return self.names[0]


class Done(msgspec.Struct):
    """What an action did: in English words, and as the verb and number from which a page makes a sentence of its own.

    left  jobs that it did not change, each with the reason; or what stays paused
    """

    done: str
    verb: str
    n: int = 1
    left: list[str] = []


DESTROYS = {
    "purge",
    "cancel",
    "remove",
    "remove_all",
    "remove_group",
    "remove_files",
    "break",
    "break_barrier",
    "open_latch",
    "stop_worker",
    "reset_rate",
    "remove_contact",
    "remove_receiver",
    "bound",
    "hold_limit",
    "run_again",
    "enqueue",
    "cancel_matching",
    "remove_matching",
}
"""Actions that nothing undoes, or that refuse or stop what programs do. The page asks before it sends them."""

MOST_IDS = 1000

_BROKEN = "broken from the dashboard"
"""The reason that holders read if the user gave none."""

_BULK = {f"{action}_matching" for action in ("count", "cancel", "requeue", "remove", "move")}


class Actions:
    """The actions of one dashboard."""

    def __init__(self, inspector: Inspector, mask: Mask | None) -> None:
        self._ask = inspector
        self._actions: dict[str, Action] = {
            "pause": self.pause,
            "resume": self.resume,
            "purge": self.purge,
            "bound": self.bound,
            "hold_limit": self.hold_limit,
            "open_limit": self.open_limit,
            "weigh": self.weigh,
            "quiet_worker": self.quiet_worker,
            "stop_worker": self.stop_worker,
            "cancel": self.cancel,
            "promote": self.promote,
            "requeue": self.requeue,
            "requeue_all": self.requeue_all,
            "edit": self.edit,
            "run_again": self.run_again,
            "enqueue": self.enqueue,
            "signal": self.signal,
            "remove": self.remove,
            "remove_all": self.remove_all,
            "requeue_group": self.requeue_group,
            "remove_group": self.remove_group,
            "break": self.break_holdings,
            "break_barrier": self.break_barrier,
            "open_latch": self.open_latch,
            "limit_semaphore": self.limit_semaphore,
            "reset_rate": self.reset_rate,
            "remove_contact": self.remove_contact,
            "remove_receiver": self.remove_receiver,
            "move": self.move,
            "retry_files": self.retry_files,
            "remove_files": self.remove_files,
            "pause_schedule": self.pause_schedule,
            "resume_schedule": self.resume_schedule,
            "run_schedule": self.run_schedule,
        }
        self.runs = BulkRuns(inspector, mask)

    def routes(self) -> list[Route]:
        return [
            Route("/act", reporting_errors(self.act), methods=["POST"]),
            Route("/runs/{number:int}", reporting_errors(self.run), methods=["GET"]),
        ]

    async def run(self, request: Request) -> Response:
        """The progress of an action on all jobs that match."""
        return Json(self.runs.find(request.path_params["number"]))

    async def act(self, request: Request) -> Response:
        try:
            order = msgspec.json.decode(await read_body(request), type=Order)
        except msgspec.MsgspecError as error:
            raise ValueError(f"this is not an action: {error}") from None
        order.user = request.state.visitor.name
        action = self._actions.get(order.action)
        bulk = order.action.removesuffix("_matching") if order.action in _BULK else ""
        if (action is None and not bulk) or len(order.ids) > MOST_IDS:
            raise ValueError(
                f"no action {order.action!r}" if len(order.ids) <= MOST_IDS else f"at most {MOST_IDS} jobs at once"
            )
        if order.action in DESTROYS and not order.confirmed:
            return Json({"error": f"{order.action} destroys: ask first, and send confirmed"}, 409)
        if bulk:
            return await self._begin(bulk, order, request.state.visitor.name)
        assert action is not None
        outcome = "failed"
        try:
            done = await action(order)
            outcome = done.done
        except PenstockError as error:
            outcome = f"failed: {error}"
            raise
        finally:
            _log(request.state.visitor.name, order, outcome)
        return Json(done)

    async def _begin(self, bulk: str, order: Order, user: str) -> Response:
        """Begin an action on all jobs that match. Its audit line is written at the end; that of a count is not."""

        def end(outcome: str) -> None:
            if bulk != "count":
                _log(user, order, outcome)

        return Json({"run": await self.runs.begin(bulk, order.queue, order.filter, order.to, end)})

    async def pause(self, order: Order) -> Done:
        """Pause the whole queue, or one tenant of it."""
        queue = await self._ask.queues.open.aio(order.queue)
        await queue.pause.aio(tenant=order.tenant, by=order.user[:30] or "the dashboard")
        return Done("paused", "paused")

    async def resume(self, order: Order) -> Done:
        left = await (await self._ask.queues.open.aio(order.queue)).resume.aio(tenant=order.tenant)
        paused = [f"{one.name} stays paused" for one in left[:SCOPES_NAMED]]
        return Done("; ".join(["resumed", *paused]), "resumed", left=paused)

    async def weigh(self, order: Order) -> Done:
        if order.tenant is None:
            raise ValueError("weigh needs a tenant")
        await (await self._ask.queues.open.aio(order.queue)).tenant(order.tenant).weigh.aio(order.weight)
        return Done(f"weight {order.weight:g}", "weighed")

    async def bound(self, order: Order) -> Done:
        """Bound unfinished jobs: `most` of the queue, `per_tenant` of each tenant. Without a number, no bound."""
        queue = await self._ask.queues.open.aio(order.queue)
        await queue.bound.aio(jobs=order.most, per_tenant=order.per_tenant)
        bounds = [(order.most, "jobs"), (order.per_tenant, "of each tenant")]
        return Done("; ".join(f"up to {n:,} {of}" for n, of in bounds if n is not None) or "no bound", "bounded")

    async def hold_limit(self, order: Order) -> Done:
        """Close one key of a rate. `names` are the limit and the key."""
        name, key = order.two_names("the names of a limit and of a key")
        if order.seconds is None:
            raise ValueError("hold_limit needs seconds; open_limit opens a key")
        await (await self._ask.queues.open.aio(order.queue)).hold_limit.aio(name, key, order.seconds)
        return Done(f"closed for {age(order.seconds)}", "held")

    async def open_limit(self, order: Order) -> Done:
        name, key = order.two_names("the names of a limit and of a key")
        await (await self._ask.queues.open.aio(order.queue)).hold_limit.aio(name, key, None)
        return Done("open", "opened")

    async def quiet_worker(self, order: Order) -> Done:
        await self._ask.workers.quiet.aio(order.only_name())
        return Done(f"{order.only_name()} claims no more jobs", "asked")

    async def stop_worker(self, order: Order) -> Done:
        await self._ask.workers.stop.aio(order.only_name())
        return Done(f"{order.only_name()} stops when its jobs have finished", "asked")

    async def purge(self, order: Order) -> Done:
        most = order.most if order.most is not None else await self._ask.queues.waiting.aio(order.queue, order.tenant)
        return _counted(await self._ask.queues.purge.aio(order.queue, order.tenant, most=most), "job", "cancelled")

    async def cancel(self, order: Order) -> Done:
        return _summary(await self._ask.jobs.cancel.aio(*order.ids), "cancelled")

    async def promote(self, order: Order) -> Done:
        return _summary(await self._ask.jobs.promote.aio(*order.ids), "promoted")

    async def retry_files(self, order: Order) -> Done:
        return _counted(await self._dead_files(order).retry.aio(*order.ids), "file", "retried")

    async def remove_files(self, order: Order) -> Done:
        return _counted(await self._dead_files(order).remove.aio(*order.ids), "file", "removed")

    def _dead_files(self, order: Order) -> DeadFiles:
        """The dead files of a receiver. `names` are the channel and the receiver."""
        channel, receiver = order.two_names()
        return self._ask.files.open(channel).receiver(receiver).dead

    async def requeue(self, order: Order) -> Done:
        return _summary(await self._ask.jobs.requeue_dead.aio(*order.ids), "requeued")

    async def edit(self, order: Order) -> Done:
        """Run a dead letter again with other arguments."""
        outcome = await self._ask.jobs.repair_dead.aio(order.only_id(), order.typed_arguments())
        return _summary([outcome], "requeued")

    async def run_again(self, order: Order) -> Done:
        """Run a job that has ended again as a new one; with `text`, with other arguments."""
        arguments = order.typed_arguments() if order.text else None
        job = await self._ask.jobs.run_again.aio(order.only_id(), arguments)
        return Done(f"{order.only_id()} runs again as {job.id}", "enqueued")

    async def enqueue(self, order: Order) -> Done:
        """Enqueue a call of a task of the app. Its name is the only one of `names`."""
        arguments, tenant = order.typed_arguments(), order.tenant or ""
        job = await self._ask.jobs.enqueue.aio(order.only_name(), arguments, tenant=tenant)
        return Done(f"{job.id} enqueued", "enqueued")

    async def signal(self, order: Order) -> Done:
        await self._ask.jobs.open(order.only_id()).signal.aio(order.only_name(), order.typed())
        return Done(f"signal {order.only_name()} sent", "signalled")

    async def requeue_all(self, order: Order) -> Done:
        return _counted(await self._ask.queues.requeue_all_dead.aio(order.queue, order.until), "job", "requeued")

    async def remove(self, order: Order) -> Done:
        return _summary(await self._ask.jobs.remove_dead.aio(*order.ids), "removed")

    async def remove_all(self, order: Order) -> Done:
        return _counted(await self._ask.queues.remove_all_dead.aio(order.queue, order.until), "job", "removed")

    async def requeue_group(self, order: Order) -> Done:
        progress = await self._ask.queues.requeue_dead_group.aio(order.queue, order.only_name())
        return _counted(progress.done, "job", "requeued")

    async def remove_group(self, order: Order) -> Done:
        progress = await self._ask.queues.remove_dead_group.aio(order.queue, order.only_name())
        return _counted(progress.done, "job", "removed")

    async def move(self, order: Order) -> Done:
        return _summary(await self._ask.jobs.move.aio(*order.ids, to=order.to), "moved", f" to {order.to}")

    async def pause_schedule(self, order: Order) -> Done:
        return Done(f"{(await self._ask.schedules.pause.aio(order.only_name())).id} paused", "paused")

    async def resume_schedule(self, order: Order) -> Done:
        return Done(f"{(await self._ask.schedules.resume.aio(order.only_name())).id} resumed", "resumed")

    async def run_schedule(self, order: Order) -> Done:
        return Done(f"{(await self._ask.schedules.trigger.aio(order.only_name())).id} enqueued", "enqueued")

    async def break_holdings(self, order: Order) -> Done:
        """Take away what processes hold. `ids`: the tokens of the holders to take it from; none: from all holders."""
        found = await self._ask.coordination.holdings.aio(order.kind, [order.only_name()])
        chosen = [one for one in found if not order.ids or one.holder.token in order.ids]
        broken = await self._ask.coordination.break_holdings.aio(chosen, order.reason or _BROKEN)
        return _counted(len(broken), "lock" if order.kind == "lock" else "holding", "broken")

    async def break_barrier(self, order: Order) -> Done:
        found = await self._ask.coordination.break_barrier.aio(order.only_name(), order.reason or _BROKEN)
        return _counted(int(found.waiting > 0), "meeting", "broken")

    async def open_latch(self, order: Order) -> Done:
        await self._ask.coordination.open_latch.aio(order.only_name())
        return Done(f"{order.only_name()} is open", "open")

    async def limit_semaphore(self, order: Order) -> Done:
        """Store a limit. Without `most`, remove the stored limit, so that each program's own limit applies again."""
        await self._ask.coordination.limit_semaphore.aio(order.only_name(), order.most)
        return Done(f"limit {order.most}" if order.most is not None else "limit removed", "limited")

    async def reset_rate(self, order: Order) -> Done:
        await self._ask.coordination.reset_rate_limit.aio(order.only_name())
        return Done(f"all units of {order.only_name()} are allowed again", "reset")

    async def remove_contact(self, order: Order) -> Done:
        if len(order.names) != 2:
            raise ValueError("remove_contact needs the name of a list and a contact")
        removed = await self._ask.directories.remove_contacts.aio(order.names[0], order.names[1:])
        return _counted(removed, "contact", "removed")

    async def remove_receiver(self, order: Order) -> Done:
        channel, receiver = order.two_names()
        await self._ask.files.channel.aio(channel)
        left = await self._ask.files.open(channel).receiver(receiver).leave.aio()
        return _counted(int(left), "receiver", "removed")


def _log(user: str, order: Order, outcome: str) -> None:
    kind = order.kind if order.action == "break" else ""
    what = " ".join(filter(None, [order.queue, order.tenant, kind, ", ".join(order.ids[:5] + order.names[:5])]))
    audit.info(
        "%s: %s %s: %s",
        terminal_safe(user),
        order.action,
        terminal_safe(what),
        terminal_safe(outcome),
        extra={"user": user, "order": {**msgspec.to_builtins(order), "text": ""}},  # arguments may be secret
    )


def _counted(n: int, noun: str, verb: str, more: str = "") -> Done:
    return Done(f"{many(n, noun)} {verb}{more}", verb, n)


def _summary(outcomes: list[Any], verb: str, more: str = "") -> Done:
    left = [f"{one.id} is {one.status}" for one in outcomes if not one.done][:5]
    counted = _counted(sum(one.done for one in outcomes), "job", verb, more)
    return Done("; ".join([counted.done, *left]), verb, counted.n, left)
