"""Operations of a channel that are run effect by effect, so that a test can stop them between any two."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from penstock.core.operations import Effect, Listen, Operation, Receive, RoundTrip, RunInThread, Send, Sleep, Wait
from penstock.errors import ChannelRestarted, LeaseLost
from penstock.files import exclusive_stream
from penstock.files.channel import Channel
from penstock.files.recognition import SendRules
from penstock.files.sender import Sender, Sent
from penstock.files.settlement import CountPiece
from penstock.files.source import find_sources
from penstock.files.upload import Upload

KEYS_OF_PART = 3
"""Items that are counted in one part of a settlement."""


class Killed(BaseException):
    """Ends an operation. Round trips that it makes on its way out are not sent."""


class EagerListener:
    """Whoever waits for it is woken at once, so that a waiting operation asks again and again."""

    address = "nobody/1"

    def close(self) -> bool:
        return True


_sends: WeakKeyDictionary[Channel, Iterator[int]] = WeakKeyDictionary()
"""Numbers the calls to each channel that were sent ahead."""


class Unanswered:
    """A call that was sent, and that the server executes at once or only when its reply is received: the process may
    die in between."""

    def __init__(self, channel: Channel, round_trip: RoundTrip[Any]) -> None:
        self._outcome: Future[Any] = Future()
        self._call = partial(channel._driver.blocking.run, round_trip)
        if next(_sends.setdefault(channel, itertools.count())) % 2:
            self._execute()

    def _execute(self) -> None:
        try:
            self._outcome.set_result(self._call())
        except Exception as error:
            self._outcome.set_exception(error)

    def reply(self) -> Any:
        if not self._outcome.done():
            self._execute()
        return self._outcome.result()

    async def receive(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class ManualRun:
    """Runs an operation by hand. `answer`: its result; `error`: the exception that ended it."""

    def __init__(self, channel: Channel, operation: Operation[Any]) -> None:
        self.begun = self.ended = False
        self.answer: Any = None
        self.error: Exception | None = None
        self._channel = channel
        self._operation = operation
        self._reply: Any = None
        self._fault: BaseException | None = None

    def advance(self) -> bool:
        """Perform one more effect. Returns False if the operation has ended."""
        return self.next_effect() is not None

    def next_effect(self) -> Effect | None:
        """Perform one more effect, and return it; None if the operation has ended."""
        if self.ended:
            return None
        self.begun = True
        try:
            effect = (
                self._operation.throw(self._fault) if self._fault is not None else self._operation.send(self._reply)
            )
        except StopIteration as done:
            self.ended, self.answer = True, done.value
            return None
        except Exception as error:
            self.ended, self.error = True, error
            return None
        self._reply = self._fault = None
        try:
            self._reply = self._done(effect)
        except Exception as error:
            self._fault = error
        return effect

    def _done(self, effect: Effect) -> Any:
        match effect:
            case RunInThread():
                return effect.work()
            case Listen():
                return EagerListener()
            case Wait():
                return ["0"]
            case Sleep():
                return None
            case RoundTrip():
                return self._channel._driver.blocking.run(effect)
            case Send():
                return Unanswered(self._channel, effect.round_trip)
            case Receive(unanswered=Unanswered() as sent):
                return sent.reply()
            case _:
                raise AssertionError(f"a channel does not do {effect}")

    def run(self) -> ManualRun:
        while self.advance():
            pass
        return self

    def interrupt(self) -> None:
        """Cancel the operation: it cleans up, and ends."""
        self._fault = Killed()
        with contextlib.suppress(Killed):
            self.run()
        self.ended = True

    def kill(self) -> None:
        """Kill the process of the operation: it sends nothing more to the server."""
        self.ended = True
        for one in self._reply if isinstance(self._reply, list) else [self._reply]:
            if isinstance(one, Upload):
                one.reader.close()
        with contextlib.suppress(Killed, StopIteration):
            while True:
                self._operation.throw(Killed())


def sending(
    channel: Channel,
    paths: Sequence[Path],
    receivers: Sequence[str] = (),
    *,
    lines: bool = False,
    limit: int | None = None,
    close: bool = False,
    again: bool = False,
    **rules: Any,
) -> ManualRun:
    sender = Sender(channel.bindings, SendRules("host", lines, again, **rules))
    operation: Operation[Sent] = sender.run(find_sources(list(paths)), receivers, limit, None, close)
    return ManualRun(channel, operation)


class NoRenewer:
    def keep(self, one: Any) -> None:
        one.kept = True


class CountingReceiver:
    """A receiver that lets the server count its items in the script that settles them. So every item must be counted
    once, whatever happens. `make` makes a stream; `name` returns what to count of an item."""

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
        self._fetching: ManualRun | None = None
        self._leaving = False
        self.stream = self._make()
        self.stream.commit_with(self._take)

    def _take(self) -> list[CountPiece]:
        counts = [*self._unsettled.items()]
        self._unsettled.clear()
        parts = list[CountPiece]()
        for start in range(0, len(counts), KEYS_OF_PART):
            some = dict(counts[start : start + KEYS_OF_PART])
            packed = msgspec.msgpack.encode((sum(some.values()), 0, {"seen": ("count 0", 0, some)}, []))
            parts.append(CountPiece(packed, len(some)))
        return parts

    def advance(self) -> None:
        """Perform one effect, or take one item."""
        if self._fetching is not None:
            if self._fetching.advance():
                return
            done, self._fetching = self._fetching, None
            if done.error is not None and not (self._leaving and isinstance(done.error, LeaseLost | ChannelRestarted)):
                raise done.error
            if self._leaving:
                self.start()
                return
        stream = self.stream
        if not stream._ready and stream._error is None:
            self.ended = getattr(stream, "_ended", False)
            if not self.ended:
                self._fetching = ManualRun(self._channel, stream.fill())
            return
        try:
            item = stream._next(StopIteration)
        except Exception as error:
            self.errors.append(str(error))
        else:
            self._unsettled.update(self._name(item))

    def leave(self) -> None:
        """Leave, as at the end of a `with` block."""
        if self._fetching is None:
            self._leaving = True
            self.stream._finish(None)
            self._fetching = ManualRun(self._channel, self.stream.leave())

    def interrupt(self) -> None:
        """Cancel the wait; the same loop continues."""
        if self._fetching is not None and self._fetching.begun and not self._leaving:
            self._fetching.interrupt()
            self._fetching = None
            self._unsettled.clear()

    def kill(self) -> None:
        exclusive_stream._streams_here.pop(getattr(self.stream, "_token", ""), None)  # its process is gone
        if self._fetching is not None:
            self._fetching.kill()
        getattr(self.stream, "_discard", int)()  # closes its files
        self.start()
