"""Questions about workers: of one queue or of all, one by its name, and those of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.core.arguments import shown
from penstock.core.ids import is_gone
from penstock.core.operations import Operation, verb
from penstock.jobs.constants import NOTIFIED
from penstock.jobs.counts import WorkerInfo
from penstock.jobs.job_list import JobPage, Jobs
from penstock.jobs.listing import JobFilter
from penstock.jobs.shard_table import whole_name
from penstock.jobs.worker_requests import Registered, Word, ask_workers, registrations
from penstock.ops.answers import WorkerDetail, WorkerRequest
from penstock.ops.probe import queue_names
from penstock.ops.questioner import Questioner
from penstock.worker.processes import process_state

_PER_QUEUE = 1000

_PER_ROUND_TRIP = 500

_NOT_READ = "0"
"""The cursor of a page of a worker's jobs that ends before one of its queues: there may be more jobs."""


class WorkerQuestioner(Questioner):
    """Asks which workers there are, and what one of them does. A worker that serves several shards counts once."""

    @verb
    def all(self, queue: str | None = None, *, names: Sequence[str] | None = None) -> Operation[list[WorkerInfo]]:
        """The workers of one queue, or of every queue, at most 1000 of each; with shards, each worker once.

        Two round trips for one queue; without `queue`, the cost of `queues.all`, also with `names`.

        Raises PenstockError for a queue that was never used.
        """
        workers: list[WorkerInfo] = []
        if queue is not None:
            names = [queue]
        elif names is None:
            names = sorted({*map(whole_name, (yield from queue_names(self._prefix)))})
        for name in names:
            found: list[WorkerInfo] = []
            opened = yield from self._open_any(name) if queue is None else self._open(name)
            for shard in opened.shards.current.known:
                found += yield shard.bindings.workers(_PER_QUEUE)
            workers += joined_workers(name, found)
        return workers

    @verb
    def show(self, name: str, queue: str | None = None, *, limit: int = 50) -> Operation[WorkerDetail]:
        """One worker, and about `limit` of the jobs that it runs, in one queue or in all.

        Some round trips for each queue. Raises PenstockError if there is no such worker.
        """
        _check_name("show", name)
        if queue is not None:
            shards = (yield from self._open(queue)).shards.current.known
        else:
            shards = tuple(map(self._shard, (yield from queue_names(self._prefix))))
        known: list[WorkerInfo] = []
        for one in shards:
            known += yield one.bindings.workers(_PER_QUEUE)
        registrations = [worker for worker in known if worker.name == name and name]
        if not registrations:
            raise self._not_found("worker", name, sorted({worker.name for worker in known if worker.name}))
        page = JobPage([], None, 0, 0)
        for registration in registrations:  # a page ends with its queue
            if len(page.jobs) >= limit:
                page = replace(page, cursor=page.cursor or _NOT_READ)
                break
            jobs = Jobs([self._shard(registration.queue)], JobFilter(worker=name))
            more = yield from jobs.page_operation(limit - len(page.jobs), None)
            page = JobPage(
                page.jobs + more.jobs, more.cursor or page.cursor, page.examined + more.examined, page.of + more.of
            )
        return WorkerDetail(name, registrations, page)

    @verb
    def quiet(self, name: str) -> Operation[WorkerRequest]:
        """Ask a worker to claim no more jobs. Its running jobs finish, and it stays until it is stopped.

        Raises PenstockError if there is no such worker. Two round trips for each queue, and for each 500 workers.
        """
        return self._ask_one(name, "quiet")

    @verb
    def stop(self, name: str) -> Operation[WorkerRequest]:
        """Ask a worker to stop as after one Ctrl-C: running jobs have its `stop_timeout` to finish.

        The supervisor of `penstock worker` does not replace this process, and ends when its last process has ended. For
        a `Worker` inside an application, `run()` returns and the program continues. Raises PenstockError if there is no
        such worker. Two round trips for each queue, and for each 500 workers.
        """
        return self._ask_one(name, "stop")

    @verb
    def ask(self, names: Sequence[str], word: Word) -> Operation[list[WorkerRequest]]:
        """`quiet` or `stop` for several workers. Raises PenstockError, and asks none of them, if one does not exist.

        Two round trips for each queue, and for each 500 workers, however many names there are.
        """
        found: list[tuple[str, list[Registered]]] = []
        known = set[str]()
        for queue in sorted((yield from queue_names(self._prefix))):
            bindings, cursor, wanted = self._shard(queue).bindings, "0", list[Registered]()
            while True:
                cursor, some = yield registrations(bindings, cursor, _PER_ROUND_TRIP)
                known |= {one.name for one in some if one.name}
                wanted += [one for one in some if one.name and one.name in names]
                if cursor == "0":
                    break
            found.append((queue, wanted))
        for name in names:
            if name not in known:
                raise self._not_found("worker", name, sorted(known))
        queues: dict[str, set[str]] = {name: set() for name in names}
        notified = set[str]()
        for queue, wanted in found:
            bindings = self._shard(queue).bindings
            answers = (yield ask_workers(bindings, word, [one.incarnation for one in wanted])) if wanted else []
            for one, answer in zip(wanted, answers, strict=True):
                if answer:
                    queues[one.name].add(whole_name(queue))
                if answer == NOTIFIED:
                    notified.add(one.name)
        for name in names:
            if not queues[name]:  # it has ended meanwhile
                raise self._not_found("worker", name, sorted(known - {name}))
        return [WorkerRequest(name, sorted(queues[name]), name in notified) for name in names]

    def _ask_one(self, name: str, word: Word) -> Operation[WorkerRequest]:
        _check_name(word, name)
        (request,) = yield from self.ask.within([name], word)
        return request

    @verb
    def here(self, queue: str) -> Operation[list[str]]:
        """The workers of a queue that run on this machine, as `host:pid`, sorted; for a health check.

        A worker counts if it has a lease and its process can run, so neither a stopped process nor a zombie counts. One
        round trip for each 500 programs that hold a lease on jobs of the queue.
        """
        found: set[str] = set()
        cursor, bindings = "0", self._shard(queue).bindings
        while True:
            cursor, some = yield bindings.scan_workers(cursor, _PER_ROUND_TRIP)
            found |= {worker.name for worker in some if worker.lease > 0}
            if cursor == "0":
                return sorted(name for name in found if _runs_here(name))


def _check_name(verb: str, name: object) -> None:
    if not isinstance(name, str):
        raise ValueError(f"{verb}(name={shown(name)}): the name of a worker, such as 'web1:4711'")


def joined_workers(queue: str, registered: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    """The workers of a queue from their registrations in each of its shards, and its programs.

    The lease of an idle worker may have minutes left when its process is killed. If the process ran on this machine and
    is gone, the lease counts as over.
    """
    programs, workers = list[WorkerInfo](), dict[str, WorkerInfo]()
    for one in registered:
        if not one.name:
            programs.append(replace(one, queue=queue))
        elif known := workers.get(one.name):
            asked = known.asked or one.asked
            workers[one.name] = replace(
                known,
                held=known.held + one.held,
                lease=max(known.lease, one.lease),
                asked=asked,
                memory=max(filter(None, (known.memory, one.memory)), default=None),
            )
        else:
            workers[one.name] = replace(one, queue=queue)
    return [*programs, *(replace(one, lease=min(0.0, one.lease)) if _is_gone(one) else one for one in workers.values())]


def _is_gone(worker: WorkerInfo) -> bool:
    host, _, pid = worker.name.rpartition(":")
    return host == socket.gethostname() and is_gone(int(pid))


def _runs_here(worker: str) -> bool:
    host, _, pid = worker.rpartition(":")
    if host != socket.gethostname() or is_gone(int(pid)):
        return False
    state = process_state(int(pid))
    return state is None or state.can_run
