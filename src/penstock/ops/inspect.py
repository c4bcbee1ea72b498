"""The inspector: what the command line and tests use to query a server, and to act on its queues and jobs.

A queue, a job or a directory has methods for queries about itself. The inspector has the queries that involve several
of them, or the server. All results are frozen dataclasses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from penstock.completion.directory import Directory
from penstock.core.operations import Operation, verb
from penstock.counting.dead_batches import DeadBatches
from penstock.errors import CancelTimeout, ChannelError, ChatGone, JobNotFound
from penstock.files.bindings import ChannelInfo
from penstock.files.channel import Channel
from penstock.jobs.job import JobInfo, cancel_job, info_of
from penstock.jobs.status import Status, status_of
from penstock.locks.answers import LockInfo
from penstock.messages.bindings import default_on
from penstock.messages.dead_messages import DeadMessages
from penstock.messages.keys import LogKeys
from penstock.messages.mailbox import MailboxInfo
from penstock.ops.answers import (
    ActionOutcome,
    ChatView,
    DirectoryView,
)
from penstock.ops.checks.result import CheckResult
from penstock.ops.doctor import diagnose, prove_locks
from penstock.ops.inventory import Inventory, take_inventory
from penstock.ops.probe import (
    ServerFacts,
    instance_names,
    lock_names,
    primaries,
    read_facts,
    server_time,
)
from penstock.ops.queues import QueueInspector
from penstock.ops.schedules import ScheduleInspector


class Inspector(QueueInspector, ScheduleInspector):
    """Inspects and operates the server of an app. Making one is cheap and sends nothing."""

    @property
    def location(self) -> str:
        """The server's address, without its password, and the app's prefix."""
        return f"{self._app._driver.connector.address}, prefix {self._app.settings.prefix!r}"

    # --- locks ---

    @verb
    def locks(self) -> Operation[list[LockInfo]]:
        """The locks on this server that are held or waited for, sorted by name, those of other apps included.

        A lock that was only ever taken by other libraries is not found. One round trip for each 1000 keys of the
        server, and one for each lock that was held within the last hour: too much for a path that serves work.
        """
        found = []
        for name in (yield from lock_names()):
            info = yield self._app.lock(name, lease=1).current_info()
            if info.holder is not None or info.waiting:
                found.append(info)
        return found

    @verb
    def held_locks(
        self, names: Sequence[str] = (), *, name_prefix: str | None = None, host: str | None = None
    ) -> Operation[list[LockInfo]]:
        """The locks that are held now: those of these names, or those with a prefix and of owners on a host.

        With names, one round trip for each; otherwise those of `locks`.
        """
        found: list[LockInfo] = []
        if names:
            for name in names:
                found.append((yield self._app.lock(name).current_info()))
        else:
            found = yield from self.locks.within()
        return [
            lock
            for lock in found
            if lock.holder is not None
            and (name_prefix is None or lock.name.startswith(name_prefix))
            and (host is None or lock.holder.host == host)
        ]

    @verb
    def break_locks(self, locks: Sequence[LockInfo], reason: str) -> Operation[list[LockInfo]]:
        """Take these locks from the owners that were found. Returns those that these owners still held.

        One round trip for each.
        """
        broken: list[LockInfo] = []
        for lock in locks:
            if lock.holder is not None and (
                yield from self._app.lock(lock.name).end_holdings(reason, lock.holder.token)
            ):
                broken.append(lock)
        return broken

    # --- mailboxes ---

    @verb
    def mailboxes(self) -> Operation[list[MailboxInfo]]:
        """Every mailbox, sorted by name. One round trip for each 1000 keys of the server, and one for each mailbox."""
        infos: list[MailboxInfo] = []
        for name in (yield from self._mailbox_names()):
            infos.append((yield self._app.mailbox(name).read_info()))
        return infos

    def _mailbox_names(self) -> Operation[list[str]]:
        found = yield from instance_names(self._app.settings.prefix, "mailbox", "state")
        return [LogKeys.read(f"mailbox:{name}")[1] for name in found]

    @verb
    def mailbox(self, name: str) -> Operation[MailboxInfo]:
        """One mailbox. One round trip. Raises PenstockError for a mailbox that does not exist."""
        yield from self._check_mailbox(name)
        info: MailboxInfo = yield self._app.mailbox(name).read_info()
        return info

    def _check_mailbox(self, name: str) -> Operation[None]:
        status = yield default_on(b"GONE", self._app.mailbox(name)._log.status(""), None)
        if status is None:
            raise self._not_found("mailbox", name, (yield from self._mailbox_names()))

    @verb
    def dead_messages(self, name: str) -> Operation[DeadMessages]:
        """The dead letters of a mailbox, as an object with verbs. Raises PenstockError for a mailbox that does not
        exist. One round trip."""
        yield from self._check_mailbox(name)
        return self._app.mailbox(name).dead

    # --- chats ---

    @verb
    def chats(self) -> Operation[list[ChatView]]:
        """Every chat, sorted by id. One round trip for each 1000 keys of the server, and two for each chat."""
        views = []
        for name in (yield from instance_names(self._app.settings.prefix, "chat", "state")):
            chat = self._app.chats.get(LogKeys.read(f"chat:{name}")[1])
            with contextlib.suppress(ChatGone):
                info = yield chat.read_info()
                readers = yield chat.read_members(1)
                views.append(ChatView(info, readers[0] if readers else None))
        return views

    # --- channels of files ---

    @verb
    def channels(self) -> Operation[list[ChannelInfo]]:
        """Every channel of files, sorted by name.

        One round trip for each 1000 keys of the server, and one for each channel.
        """
        found = []
        for name in (yield from self._channel_names()):
            with contextlib.suppress(ChannelError):
                found.append((yield self.files(name).bindings.info()))
        return found

    @verb
    def channel(self, name: str) -> Operation[ChannelInfo]:
        """One channel: its content and how far each receiver has read. Raises PenstockError for an unknown channel."""
        try:
            info: ChannelInfo = yield self.files(name).bindings.info()
        except ChannelError:
            raise self._not_found("channel", name, (yield from self._channel_names())) from None
        return info

    @verb
    def channel_names(self) -> Operation[list[str]]:
        """The names of all channels of files. One round trip for each 1000 keys of the server."""
        return self._channel_names()

    def files(self, name: str) -> Channel:
        """One channel, to send and to receive, as `app.files` returns it. No round trip."""
        return self._app.files(name)

    def dead_batches(self, channel: str, receiver: str) -> DeadBatches:
        """The batches that the aggregate which receives under this name could not count. No round trip."""
        return DeadBatches(
            self._app.files(channel).bindings, self._app.files(channel).receiver(receiver).name, self._driver
        )

    def _channel_names(self) -> Operation[list[str]]:
        names = yield from instance_names(self._app.settings.prefix, "files", "state")
        return sorted(LogKeys.read(f"files:{name}")[1] for name in names)

    # --- directories ---

    @verb
    def directories(self) -> Operation[list[DirectoryView]]:
        """Every directory, sorted by name.

        One round trip for each 1000 keys of the server, two for each directory, and one for each further shard of it.
        """
        views = []
        for name in (yield from instance_names(self._app.settings.prefix, "directory")):
            views.append(DirectoryView(name, (yield from self.directory(name).current_count())))
        return views

    def directory(
        self,
        name: str,
        *,
        accents: bool | None = None,
        words: bool | None = None,
        equivalents: Mapping[str, str] | None = None,
        pinyin: bool | None = None,
        apostrophes: bool | None = None,
        initials: bool | None = None,
        shards: int | None = None,
    ) -> Directory:
        """One directory, to complete names and to change them, as `app.directory` returns it. No round trip."""
        return self._app.directory(
            name,
            accents=accents,
            words=words,
            equivalents=equivalents,
            pinyin=pinyin,
            apostrophes=apostrophes,
            initials=initials,
            shards=shards,
        )

    # --- jobs ---

    @verb
    def job(self, job_id: str) -> Operation[JobInfo]:
        """Everything that the server knows about a job. One round trip; the body may be large. Raises JobNotFound."""
        shard, key = self._split(job_id)
        info: JobInfo = yield shard.bindings.show(key).then(lambda found: info_of(job_id, found))
        if info.status is Status.UNKNOWN:
            raise JobNotFound(f"no job {job_id}: never enqueued here, or it finished and its result is gone")
        return info

    @verb
    def cancel(self, *ids: str, wait: float = 0.0) -> Operation[list[ActionOutcome]]:
        """Cancel jobs. Running ones are asked to end; with `wait`, waits so many seconds for the end of each.

        Two round trips for each, and some more for each that it waits for.
        """
        outcomes, places = [], [self._split(job_id) for job_id in ids]
        if wait:  # ask all workers before waiting for the first one
            for shard, key in places:
                yield shard.bindings.cancel([key])
        for shard, key in places:
            status = status_of((yield shard.bindings.show(key)))
            try:
                done = yield from cancel_job(shard, key, wait)
            except CancelTimeout:
                done = False
            else:
                if wait and not done:  # it has ended in another way meanwhile
                    status = status_of((yield shard.bindings.show(key)))
            outcomes.append(ActionOutcome(f"{shard.name}:{key}", done, status))
        return outcomes

    # --- the server ---

    @verb
    def now(self) -> Operation[float]:
        """Seconds since 1970 by the server's clock, which all times from the inspector use. One round trip."""
        nodes = yield from primaries()
        return (yield from server_time(nodes[0]))

    @verb
    def servers(self) -> Operation[list[ServerFacts]]:
        """The facts that each server with keys reports about itself. Two round trips for each."""
        found = []
        for node in (yield from primaries()):
            found.append((yield from read_facts(node)))
        return found

    @verb
    def inventory(self, most: int | None = None) -> Operation[Inventory]:
        """Check every key of the app (see `inventory.py`). Only reads."""
        return take_inventory(self._app.settings.prefix, most)

    @verb
    def doctor(self, topic: str | None = None, *, without: str | None = None) -> Operation[list[CheckResult]]:
        """Check whether the server is fit for Penstock, in one topic or in all but one (see `doctor.py`)."""
        return diagnose(self._app, topic, without)

    def prove_locks(self, seconds: float = 3.0) -> list[CheckResult]:
        """Test for this many seconds whether locks exclude and semaphores keep their limit on this server. Blocks."""
        return prove_locks(self._app, seconds)
