"""The last failed attempts of a job, as the server keeps them (`failures.lua`)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock import codec
from penstock.jobs.claims import Failure
from penstock.jobs.constants import EDITED, FAILED, LOST, POSTPONED, UNREAD
from penstock.settings import Seal

AttemptOutcome: TypeAlias = Literal["failed", "postponed", "handed back", "lost", "edited"]

_OUTCOMES: Final[dict[bytes, AttemptOutcome]] = {
    FAILED: "failed",
    POSTPONED: "postponed",
    UNREAD: "handed back",
    LOST: "lost",
    EDITED: "edited",
}

_NUMBERS: Final = struct.Struct(">cH6s6s")
_HEAD: Final = 7
"""Bytes before the name of the other release."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of the last runs of a job that did not complete it, or a change of its arguments.

    number     of the attempt, from 1; a run that is not counted has the number of the one that follows
    outcome    failed; postponed (by RetryLater, or for lack of resources); handed back (the worker could not read the
               call); lost (its process died); edited (an operator changed the arguments)
    began      when the job was claimed, in seconds since 1970 by the server's clock; None: unknown
    ended      when the run ended, by the same clock
    worker     `host:pid`; "" for a program without a worker
    release    the release of the app that the worker ran
    reason     in one line
    traceback  the end of it; "" if no exception was raised
    arguments  of an edit: those until then, or the first 4 KiB of their JSON as a text
    """

    number: int
    outcome: AttemptOutcome
    began: float | None
    ended: float
    worker: str = ""
    release: str = ""
    reason: str = ""
    traceback: str = ""
    arguments: Any = None

    @property
    def duration(self) -> float | None:
        """Seconds from the claim to the end; None: unknown."""
        return None if self.began is None else max(0.0, self.ended - self.began)


@dataclass(frozen=True, slots=True)
class Failures:
    """What the server has kept of a job's failures.

    unread_since  since when workers hand the job back, because they cannot read it; None: they do not
    other         a release that had a live worker then and may read it
    attempts      the latest first
    """

    unread_since: float | None = None
    other: str = ""
    attempts: tuple[Attempt, ...] = field(default=())

    @classmethod
    def read(cls, packed: bytes | None, seal: Seal | None = None) -> Failures:
        """Never raises: what another program has written gives no attempts."""
        if not packed or len(packed) < _HEAD or len(packed) < _HEAD + packed[_HEAD - 1]:
            return cls()
        at = _HEAD + packed[_HEAD - 1]
        since = int.from_bytes(packed[: _HEAD - 1])
        other = packed[_HEAD:at].decode(errors="replace")
        return cls(since / 1000 if since else None, other, tuple(_attempts(packed[at:], seal)))

    @property
    def _last(self) -> Attempt | None:
        return next((one for one in self.attempts if one.outcome != "edited"), None)

    @property
    def reason(self) -> str:
        """Why the last run failed, in one line; "" if none did."""
        last = self._last
        if last is None:
            return ""
        if last.outcome != "handed back" or not self.other:
            return last.reason
        return f"{last.reason}; it was handed back for a worker of release {self.other}"

    @property
    def traceback(self) -> str:
        return self._last.traceback if self._last else ""

    @property
    def worker(self) -> str:
        """`host:pid` of the worker that ran it last."""
        return self._last.worker if self._last else ""


_TEXTS: Final = ("worker", "reason", "release", "traceback")
_FIELD: Final = re.compile(rb'[{,]"(\w+)":"((?:[^"\\]|\\.)*)("?)', re.DOTALL)


def beginning_of(text: bytes) -> dict[str, str]:
    """The texts in the beginning of a failure in JSON; `reason` is the text itself if it is no JSON."""
    found = {match[1].decode(): _text(match[2]) for match in _FIELD.finditer(text)} if text.startswith(b"{") else {}
    return {"reason": "" if found else text.decode(errors="replace"), **found}


def _text(inner: bytes) -> str:
    """The inside of a text in JSON. At its end an escape or a character may be cut off."""
    for shorter in range(min(7, len(inner) + 1)):
        try:
            whole: str = msgspec.json.decode(b'"' + inner[: len(inner) - shorter] + b'"', type=str)
        except ValueError:
            continue
        return whole
    return inner.decode(errors="replace")


def _attempts(packed: bytes, seal: Seal | None) -> Iterator[Attempt]:
    while len(packed) >= 2:
        size = int.from_bytes(packed[:2])
        one, packed = packed[2 : 2 + size], packed[2 + size :]
        if len(one) < max(size, _NUMBERS.size):
            return
        kind, number, *times = _NUMBERS.unpack_from(one)
        began, ended = (int.from_bytes(time) / 1000 for time in times)
        text = one[_NUMBERS.size :]
        outcome = _OUTCOMES.get(kind, "failed")
        if outcome == "edited":
            reason = "its arguments were changed"
            # The row of an ended job says only that there was a change.
            yield Attempt(
                number, outcome, None, ended, reason=reason, arguments=codec.readable(text, seal) if text else None
            )
        else:
            if text.startswith(b'{"') and not text.endswith(b"}"):  # as a row keeps it, it is cut off
                why = Failure(**{name: value for name, value in beginning_of(text).items() if name in _TEXTS})
            else:
                why = Failure.read(text, seal)
            yield Attempt(number, outcome, began or None, ended, why.worker, why.release, why.reason, why.traceback)
