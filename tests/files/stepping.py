"""An operation of a channel, driven effect by effect, so that a test can stop it between any two."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.operations import Effect, Listen, Operation, RoundTrip, RunInThread, Wait
from penstock.errors import LeaseLost
from penstock.files import exclusive_stream
from penstock.files.channel import Channel
from penstock.files.sender import Sender, Sent
from penstock.files.source import find_sources
from penstock.files.upload import Upload


class Killed(BaseException):
    """Ends an operation; what it says as a farewell is not sent."""


class Nobody:
    """A waiter who is never told anything, so that who waits asks again and again."""

    address = "nobody/1"
    post = "nobody/1"

    def close(self) -> None:
        pass


class Stepping:
    """`answer`: what the operation returned; `error`: what it raised."""

    def __init__(self, channel: Channel, steps: Operation[Any]) -> None:
        self.begun = self.ended = False
        self.answer: Any = None
        self.error: Exception | None = None
        self._channel = channel
        self._steps = steps
        self._reply: Any = None
        self._fault: BaseException | None = None

    def go(self) -> bool:
        """One effect more; False: there was none."""
        if self.ended:
            return False
        self.begun = True
        try:
            effect = self._steps.throw(self._fault) if self._fault is not None else self._steps.send(self._reply)
        except StopIteration as done:
            self.ended, self.answer = True, done.value
            return False
        except Exception as error:
            self.ended, self.error = True, error
            return False
        self._reply = self._fault = None
        try:
            self._reply = self._done(effect)
        except Exception as error:
            self._fault = error
        return True

    def _done(self, effect: Effect) -> Any:
        match effect:
            case RunInThread():
                return effect.work()
            case Listen():
                return Nobody()
            case Wait():
                return []
            case RoundTrip():
                return self._channel._driver.blocking.run(effect)
            case _:
                raise AssertionError(f"a channel does not do {effect}")

    def run(self) -> Stepping:
        while self.go():
            pass
        return self

    def interrupt(self) -> None:
        """As a cancellation does: it says its farewell, and ends."""
        self._fault = Killed()
        with contextlib.suppress(Killed):
            self.run()
        self.ended = True

    def kill(self) -> None:
        """It does no more: what it would still say to the server is not said."""
        self.ended = True
        if isinstance(self._reply, Upload):
            self._reply.reader.close()
        with contextlib.suppress(Killed, StopIteration):
            while True:
                self._steps.throw(Killed())


def sending(
    channel: Channel, paths: Sequence[Path], receivers: Sequence[str] = (), *, lines: bool = False,
    limit: int | None = None, close: bool = False, again: bool = False,
) -> Stepping:  # fmt: skip
    sender = Sender(channel.bindings, lines=lines, again=again, host="host", report=None)
    steps: Operation[Sent] = sender.run(find_sources(list(paths)), receivers, limit, None, close)
    return Stepping(channel, steps)


class NoRenewer:
    def keep(self, one: Any, asked: float) -> None:
        one.kept = True


class Counting:
    """One who receives, and has the server count what it was given in the step that settles it: what was done with is
    then counted once, whatever befalls it. `make` makes a stream; `name` what to count of an item."""

    def __init__(self, channel: Channel, make: Any, name: Any) -> None:
        self.errors: list[str] = []
        self.ended = False
        self._channel = channel
        self._make = make
        self._name = name
        self._unsettled = Counter[str]()
        self.start()

    def start(self) -> None:
        self._unsettled.clear()
        self._fetching: Stepping | None = None
        self._leaving = False
        self.stream = self._make()
        self.stream.commit_with(self._take)

    def _take(self) -> bytes:
        counts = dict(self._unsettled)
        self._unsettled.clear()
        packed: bytes = msgspec.msgpack.encode((sum(counts.values()), 0, {"seen": counts}, [])) if counts else b""
        return packed

    def go(self) -> None:
        """An effect, or an item."""
        if self._fetching is not None:
            if self._fetching.go():
                return
            done, self._fetching = self._fetching, None
            if done.error is not None and not (self._leaving and isinstance(done.error, LeaseLost)):
                raise done.error
            if self._leaving:
                self.start()
                return
        stream = self.stream
        if not stream._ready and stream._error is None:
            self.ended = getattr(stream, "_ended", False)
            if not self.ended:
                self._fetching = Stepping(self._channel, stream.fill())
            return
        try:
            item = stream._next(StopIteration)
        except Exception as error:
            self.errors.append(str(error))
        else:
            self._unsettled.update(self._name(item))

    def leave(self) -> None:
        """As at the end of `with`."""
        if self._fetching is None:
            self._leaving = True
            self.stream._finish(None)
            self._fetching = Stepping(self._channel, self.stream.leave())

    def interrupt(self) -> None:
        """The wait is cancelled, and the same loop goes on."""
        if self._fetching is not None and self._fetching.begun and not self._leaving:
            self._fetching.interrupt()
            self._fetching = None
            self._unsettled.clear()

    def kill(self) -> None:
        exclusive_stream._streams_here.pop(getattr(self.stream, "_token", ""), None)  # its process is gone
        if self._fetching is not None:
            self._fetching.kill()
        self.start()
