"""Options that select jobs by what they are, for `penstock job ls` and for actions on many jobs."""

from __future__ import annotations

from dataclasses import dataclass

from cyclopts import Group, Parameter

from penstock.cli.ages import Age
from penstock.errors import ConfigurationError
from penstock.jobs.job_list import Wanted
from penstock.ops.wording import age


@Parameter(name="*", group=Group("Which jobs", sort_key=1))
@dataclass(frozen=True)
class Matching:
    """A filter for jobs. Several options select the jobs that match all of them.

    Parameters
    ----------
    queue
        The queue.
    state
        delayed, sleeping, ready, parked, running, waiting or dead.
    task
        The name of their task; "" for bare values.
    tenant
        Their tenant; "" for none.
    worker
        The worker that runs them, as `penstock worker ls` prints it: host:pid.
    id_prefix
        How their ids begin.
    tag
        One of their tags.
    text
        A text within a name or a value of their arguments. Not of jobs that have ended.
    older_than
        In their state for longer than this: 90s, 15m, 12h, 7d or 2w. Of delayed and sleeping jobs: enqueued longer ago.
    """

    queue: str | None = None
    state: str | None = None
    task: str | None = None
    tenant: str | None = None
    worker: str | None = None
    id_prefix: str | None = None
    tag: str | None = None
    text: str | None = None
    older_than: Age | None = None

    def wanted(self) -> Wanted:
        return Wanted(
            state=self.state,
            task=self.task,
            tenant=self.tenant,
            worker=self.worker,
            id_prefix=self.id_prefix or "",
            older_than=self.older_than or 0.0,
            tag=self.tag,
            text=self.text or "",
        )

    def needed_queue(self) -> str:
        """The queue. Raises ConfigurationError without one."""
        if self.queue is None:
            raise ConfigurationError("name the queue of the jobs: --queue NAME")
        return self.queue

    def words(self) -> str:
        """The filter in words: `state dead, task 'send_email'`."""
        said = [
            f"{name} {value!r}"
            for name, value in (
                ("task", self.task),
                ("tenant", self.tenant),
                ("worker", self.worker),
                ("id prefix", self.id_prefix),
                ("tag", self.tag),
                ("text", self.text),
            )
            if value is not None
        ]
        if self.state is not None:
            said.insert(0, f"state {self.state}")
        if self.older_than is not None:
            said.append(f"older than {age(self.older_than)}")
        return ", ".join(said)


@Parameter(name="*", group=Group("Which jobs", sort_key=1))
@dataclass(frozen=True)
class Listed(Matching):
    """A filter for jobs, including those that have ended.

    Parameters
    ----------
    queue
        The queue.
    state
        delayed, sleeping, ready, parked, running, waiting or dead. Of jobs that have ended: completed, cancelled,
        expired, dropped, failed (became a dead letter), or ended for all of them.
    task
        The name of their task; "" for bare values.
    tenant
        Their tenant; "" for none.
    worker
        The worker that runs them, or has run them, as `penstock worker ls` prints it: host:pid.
    id_prefix
        How their ids begin.
    tag
        One of their tags.
    text
        A text within a name or a value of their arguments. Not of jobs that have ended.
    older_than
        In their state for longer than this: 90s, 15m, 12h, 7d or 2w. Of delayed and sleeping jobs: enqueued longer ago.
    since
        Of ended jobs: only those that ended in the last 90s, 15m, 12h, 7d or 2w.
    longer_than
        Of ended jobs: only those whose last run took longer than this.
    """

    since: Age | None = None
    longer_than: Age | None = None

    def wanted(self) -> Wanted:
        return {**super().wanted(), "since": self.since, "longer_than": self.longer_than or 0.0}


ANY = Matching()
EVERY = Listed()
