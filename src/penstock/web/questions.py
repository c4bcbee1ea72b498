"""The questions of the pages. Each calls the inspector."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.errors import JobNotFound
from penstock.jobs.dead_letters import DeadLetter
from penstock.jobs.failures import Attempt
from penstock.jobs.finished import ENDED
from penstock.jobs.flow_tree import FlowNode
from penstock.jobs.history import Interval
from penstock.ops.inspect import Inspector
from penstock.sealing import Sealed
from penstock.web.answers import MOST_SHOWN, Json, Mask, arguments_text, body_text, fields, reporting_errors, said
from penstock.web.bulk import read_filter
from penstock.web.output import FOLLOWED, output_of
from penstock.web.sampler import Sampler, history_of

PAGE = 50
"""Dead letters on a page."""

MOST_TENANTS = 50

MOST_DEAD_FILES = 200

MOST_LISTS = 100
"""Lists of contacts on their page."""

MOST_SEARCHED = 5000
"""Jobs that one search examines, so that its page takes at most 200 ms."""

MOST_ROWS = 10_000
"""Rows of ended jobs from which the page of tasks is made, so that it takes at most 200 ms."""

COMPLETIONS = 20

MOST_OF_FLOW = 60
"""Jobs of a flow on the page of a job, in each direction."""


def read_offset(request: Request) -> int:
    """How many rows the page skips. Raises ValueError for what is not a number from 0."""
    text = request.query_params.get("offset", "0")
    if not text.isdecimal():
        raise ValueError(f"offset={text}: a number from 0")
    return int(text)


def _is_sealed(body: Any) -> bool:
    """Whether this program cannot open a value, or the arguments of a call."""
    return isinstance(body[1] if isinstance(body, list) and len(body) == 2 else body, Sealed)


class Questions:
    """The questions of one dashboard."""

    def __init__(self, inspector: Inspector, sampler: Sampler, mask: Mask | None) -> None:
        self._ask = inspector
        self._sampler = sampler
        self._mask = mask

    def routes(self) -> list[Route]:
        questions = {
            "/overview": self.overview,
            "/live": self.live,
            "/sparks": self.sparks,
            "/history/{queue:path}": self.history,
            "/queues/{queue:path}": self.queue,
            "/dead/{queue:path}": self.dead,
            "/dead-groups/{queue:path}": self.dead_groups,
            "/jobs/{id:path}": self.job,
            "/output/{id:path}": self.output,
            "/log/{id:path}": self.log,
            "/tasks": self.tasks,
            "/workers": self.workers,
            "/locks": self.locks,
            "/rates": self.rates,
            "/messages": self.messages,
            "/chats/{id:path}": self.chat,
            "/mailboxes/{name:path}": self.mailbox,
            "/contacts": self.contacts,
            "/contacts/{name:path}": self.contacts_of,
            "/files": self.files,
            "/dead-files": self.dead_files,
            "/directories": self.directories,
            "/complete/{name:path}": self.complete,
            "/doctor": self.doctor,
            "/find": self.find,
            "/schedules": self.schedules,
            "/limits/{queue:path}": self.limits,
        }
        return [Route(path, reporting_errors(ask), methods=["GET"]) for path, ask in questions.items()]

    async def overview(self, request: Request) -> Response:
        visitor = request.state.visitor
        more = {"may_act": visitor.may_act, "user": visitor.name, "session": visitor.session}
        return Json({**await self._sampler.document(), **more})

    async def sparks(self, request: Request) -> Response:
        """For each queue, the jobs that were completed per second in the last ten minutes."""
        await self._sampler.document()
        return Json(self._sampler.sparks)

    async def health(self, request: Request) -> Response:
        """For monitors: 200 with the findings that the overview shows, or 502 if the server does not answer."""
        findings = (await self._sampler.document())["findings"]
        return Json({"level": "warn" if findings else "ok", "findings": findings})

    async def live(self, request: Request) -> Response:
        """Server-sent events: a new overview every two seconds."""

        async def events() -> AsyncIterator[str]:
            yield "retry: 2000\n\n"
            async for document in self._sampler.documents():
                if await request.is_disconnected():
                    return
                yield f"data: {msgspec.json.encode(document).decode()}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def queue(self, request: Request) -> Response:
        detail = await self._ask.queues.show.aio(request.path_params["queue"], tenants=MOST_TENANTS)
        unknown = [fields(one, reason=self._said(one.reason)) for one in detail.unknown_task_jobs]
        workers = await self._ask.workers.all.aio(detail.name)
        return Json(fields(detail, workers=workers, unknown_task_jobs=unknown))

    def _said(self, text: str) -> str:
        return said(text, self._mask)

    def _tags(self, tags: Sequence[str]) -> list[str]:
        """Tags, masked: a tag may have an argument in it."""
        return [self._said(tag) for tag in tags]

    async def history(self, request: Request) -> Response:
        interval: Interval = 60 if request.query_params.get("interval") == "60" else 10
        return Json({"points": await history_of(self._ask, request.path_params["queue"], interval)})

    async def dead(self, request: Request) -> Response:
        offset = read_offset(request)
        page = await self._ask.queues.list_dead.aio(request.path_params["queue"], PAGE, offset)
        letters = [self._letter(letter) for letter in page.letters]
        return Json(
            {"total": page.total, "offset": offset, "page": PAGE, "letters": letters, "now": await self._ask.now.aio()}
        )

    async def dead_groups(self, request: Request) -> Response:
        found = await self._ask.queues.dead_groups.aio(request.path_params["queue"], MOST_SEARCHED)
        groups = [fields(one, error=self._said(one.error), reason=self._said(one.reason)) for one in found.groups]
        return Json(fields(found, groups=groups, now=await self._ask.now.aio()))

    def _letter(self, letter: DeadLetter) -> dict[str, Any]:
        body = arguments_text(letter.body, letter.task, self._mask)
        return fields(
            letter,
            body=body,
            reason=self._said(letter.reason),
            traceback=self._said(letter.traceback),
            failures=self._attempts(letter.failures, letter.task),
            tags=self._tags(letter.tags),
        )

    def _attempts(self, attempts: Sequence[Attempt], task: str) -> list[dict[str, Any]]:
        return [
            fields(
                one,
                duration=one.duration,
                reason=self._said(one.reason),
                traceback=self._said(one.traceback),
                arguments=None if one.arguments is None else arguments_text([task, one.arguments], task, self._mask),
            )
            for one in attempts
        ]

    async def job(self, request: Request) -> Response:
        info = await self._ask.jobs.show.aio(request.path_params["id"])
        result = body_text(info.result, self._mask) if info.result is not None else None
        body = arguments_text(info.body, info.task, self._mask) if info.body is not None else None
        steps = await self._ask.jobs.open(info.id).steps.aio()
        shown = fields(
            info,
            body=body,
            result=result,
            reason=self._said(info.reason),
            traceback=self._said(info.traceback),
            failures=self._attempts(info.failures, info.task),
            tags=self._tags(info.tags),
            log=[fields(line, text=self._said(line.text)) for line in info.log],
            progress=info.progress and fields(info.progress, text=self._said(info.progress.text)),
            now=await self._ask.now.aio(),
            steps=[fields(one, step=self._said(one.step), does=self._said(one.does)) for one in steps],
            flow=await self._flow(info.id),
            why=await self._why(info.id),
            may_edit=self._mask is None and body is not None and len(body) <= MOST_SHOWN and not _is_sealed(info.body),
        )
        return Json(shown)

    async def output(self, request: Request) -> Response:
        """The output of a job; with `follow`, the answer waits some seconds for more."""
        query = request.query_params
        job_id, after, before = request.path_params["id"], query.get("after"), query.get("before")
        follows = "follow" in query
        return Json(await output_of(self._ask, job_id, self._mask, after=after, before=before, follows=follows))

    async def log(self, request: Request) -> Response:
        """The log of a job after the line `after`; with `follow`, the answer waits some seconds for the first line."""
        query = request.query_params
        stream = self._ask.jobs.log(request.path_params["id"], after=query.get("after"))
        lines = await stream.fetch.aio(FOLLOWED if "follow" in query else 0.0)
        return Json({"parts": [fields(line, text=self._said(line.text)) for line in lines], "ended": stream.has_ended})

    async def _why(self, job_id: str) -> dict[str, Any] | None:
        """Why a job does not run; None if it has ended in the meantime and its result is gone."""
        try:
            answer = await self._ask.jobs.why.aio(job_id)
        except JobNotFound:
            return None
        if not answer.reason:
            return fields(answer)
        shown = self._said(answer.reason)
        return fields(answer, sentence=answer.sentence.replace(answer.reason, shown), reason=shown)

    async def _flow(self, job_id: str) -> FlowNode | None:
        """The jobs that a job waits or waited for, and those that wait for it, or None without any."""
        try:
            root = await self._ask.jobs.open(job_id).tree.aio(MOST_OF_FLOW)
        except JobNotFound:  # its result is gone since
            return None
        return root if root.total or root.awaited_by else None

    async def find(self, request: Request) -> Response:
        """Jobs that match the filter in the query; see `Queue.jobs`. Without a state, the first page also has the
        latest that have ended."""
        query = dict(request.query_params)
        queue, cursor = query.pop("queue", None), query.pop("cursor", None)
        chosen = read_filter(query)
        chosen.check(self._mask)
        wanted = chosen.wanted()
        page = await self._ask.jobs.find.aio(queue, limit=PAGE, cursor=cursor, most=MOST_SEARCHED, **wanted)
        has_more = False
        if chosen.state is None and cursor is None and not chosen.older_than and not chosen.text:
            wanted["state"] = ENDED
            ended = await self._ask.jobs.find.aio(queue, limit=PAGE, most=MOST_SEARCHED, **wanted)
            known = {one.id for one in page.jobs}  # a dead letter has a row as well
            more = [one for one in ended.jobs if one.id not in known]
            page = replace(page, jobs=page.jobs + more, examined=page.examined + ended.examined, of=page.of + ended.of)
            has_more = ended.cursor is not None
        jobs = [fields(one, reason=self._said(one.reason), tags=self._tags(one.tags)) for one in page.jobs]
        return Json(fields(page, jobs=jobs, more_ended=has_more, now=await self._ask.now.aio()))

    async def schedules(self, request: Request) -> Response:
        found = [
            fields(one, task=one.body[0], body=body_text(one.body, self._mask))
            for one in await self._ask.schedules.all.aio()
        ]
        return Json({"schedules": found, "now": await self._ask.now.aio()})

    async def limits(self, request: Request) -> Response:
        queue = await self._ask.queues.open.aio(request.path_params["queue"])
        return Json({"limits": await queue.limits.aio()})

    async def tasks(self, request: Request) -> Response:
        """Counts and times of each task, from all rows that are kept or from the last `since` seconds.

        `declared`: the tasks of the app of this dashboard, of which it can enqueue calls.
        """
        text = request.query_params.get("since")
        if text is not None and not text.isdecimal():
            raise ValueError(f"since={text}: seconds")
        report = await self._ask.tasks.all.aio(since=None if text is None else float(text), most=MOST_ROWS)
        return Json(fields(report, declared=self._ask.tasks.declared()))

    async def workers(self, request: Request) -> Response:
        workers = await self._ask.workers.all.aio(names=await self._sampler.names())
        return Json({"workers": workers, "now": await self._ask.now.aio()})

    async def locks(self, request: Request) -> Response:
        ask = self._ask
        return Json(
            {
                "locks": await ask.coordination.locks.aio(),
                "semaphores": await ask.coordination.semaphores.aio(),
                "rwlocks": await ask.coordination.read_write_locks.aio(),
                "elections": await ask.coordination.elections.aio(),
                "latches": await ask.coordination.latches.aio(),
                "barriers": await ask.coordination.barriers.aio(),
            }
        )

    async def rates(self, request: Request) -> Response:
        ask = self._ask
        return Json({"limits": await ask.coordination.rate_limits.aio(), "queues": await ask.queues.rates.aio()})

    async def messages(self, request: Request) -> Response:
        ask = self._ask
        return Json(
            {
                "mailboxes": await ask.messages.mailboxes.aio(),
                "chats": await ask.messages.chats.aio(),
                "now": await ask.now.aio(),
            }
        )

    async def chat(self, request: Request) -> Response:
        """A chat, its latest messages, and its readers: a message is read by those that have come to its number."""
        found = await self._ask.messages.chat.aio(request.path_params["id"], messages=PAGE)
        messages = [fields(one, body=body_text(one.body, self._mask)) for one in found.messages]
        return Json(fields(found, messages=messages, now=await self._ask.now.aio()))

    async def mailbox(self, request: Request) -> Response:
        """A mailbox and its latest messages, with those that its owner has read."""
        found = await self._ask.messages.mailbox.aio(request.path_params["name"], messages=PAGE)
        messages = [fields(one, body=body_text(one.body, self._mask)) for one in found.messages]
        return Json(fields(found, messages=messages, now=await self._ask.now.aio()))

    async def contacts(self, request: Request) -> Response:
        """The lists of contacts whose names contain the text `q`."""
        text = request.query_params.get("q", "").casefold()
        names = [name for name in await self._ask.directories.contacts_names.aio() if text in name.casefold()]
        return Json({"names": names[:MOST_LISTS], "total": len(names)})

    async def contacts_of(self, request: Request) -> Response:
        text = request.query_params.get("q", "")
        return Json(await self._ask.directories.contacts.aio(request.path_params["name"], text, PAGE))

    async def files(self, request: Request) -> Response:
        return Json({"channels": await self._ask.files.channels.aio(), "now": await self._ask.now.aio()})

    async def dead_files(self, request: Request) -> Response:
        """The files that a receiver could not save, the latest first."""
        channel, receiver = (request.query_params.get(name, "") for name in ("channel", "receiver"))
        await self._ask.files.channel.aio(channel)
        found = await self._ask.files.open(channel).receiver(receiver).dead.list.aio()
        return Json(
            {"files": found[: -MOST_DEAD_FILES - 1 : -1], "total": len(found), "now": await self._ask.now.aio()}
        )

    async def directories(self, request: Request) -> Response:
        return Json({"directories": await self._ask.directories.all.aio()})

    async def complete(self, request: Request) -> Response:
        directory = self._ask.directories.open(request.path_params["name"])
        entries = await directory.complete.aio(request.query_params.get("q", ""), limit=COMPLETIONS)
        return Json({"entries": [{"name": entry.name, "id": entry.id} for entry in entries]})

    async def doctor(self, request: Request) -> Response:
        topics = request.query_params
        checks = await self._ask.doctor.aio(topics.get("topic"), without=topics.get("without"))
        return Json({"checks": checks})
