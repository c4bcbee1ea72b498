"""Questions about channels of files."""

from __future__ import annotations

import contextlib

from penstock.core.operations import Operation, verb
from penstock.counting.dead_batches import DeadBatches
from penstock.errors import ChannelError
from penstock.files.bindings import ChannelInfo
from penstock.files.channel import Channel
from penstock.messages.keys import LogKeys
from penstock.ops.probe import instance_names
from penstock.ops.questioner import Questioner


class FileQuestioner(Questioner):
    """Asks about all channels, and about one of them by its name."""

    @verb
    def channels(self) -> Operation[list[ChannelInfo]]:
        """Every channel of files, sorted by name.

        One round trip for each 1000 keys of the server, and one for each channel.
        """
        found = []
        for name in (yield from self._channel_names()):
            with contextlib.suppress(ChannelError):
                found.append((yield self._app.files(name).bindings.info()))
        return found

    @verb
    def channel(self, name: str) -> Operation[ChannelInfo]:
        """One channel: its content, and the position of each receiver. Raises PenstockError for an unknown channel."""
        try:
            info: ChannelInfo = yield self._app.files(name).bindings.info()
        except ChannelError:
            raise self._not_found("channel", name, (yield from self._channel_names())) from None
        return info

    @verb
    def names(self) -> Operation[list[str]]:
        """The names of all channels of files. One round trip for each 1000 keys of the server."""
        return self._channel_names()

    def open(self, name: str) -> Channel:
        """One channel, to send and to receive, as `app.files` returns it. No round trip."""
        return self._app.files(name)

    def dead_batches(self, channel: str, receiver: str) -> DeadBatches:
        """The batches that the aggregate which receives under this name could not count. No round trip."""
        return DeadBatches(
            self._app.files(channel).bindings, self._app.files(channel).receiver(receiver).name, self._driver
        )

    def _channel_names(self) -> Operation[list[str]]:
        names = yield from instance_names(self._prefix, "files", "state")
        return sorted(LogKeys.read(f"files:{name}")[1] for name in names)
