"""Operations on a log that take several round trips: wait for an answer, post many messages, wake or trim in slices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from penstock.core.arguments import check_many, check_number, check_wait, check_whole
from penstock.core.keys import check_text
from penstock.core.operations import (
    Listen,
    Listener,
    Operation,
    RoundTrip,
    Wait,
    recheck_delay,
    wait_until_recheck,
)
from penstock.errors import BadCall
from penstock.messages.bindings import ChatIndexBindings, LogBindings, default_on
from penstock.messages.replies import PostReply, WakeReply
from penstock.settings import SLEEPER_TTL_FACTOR

R = TypeVar("R")

Ask: TypeAlias = Callable[[str, float], RoundTrip[R]]
"""Makes the call that asks for an answer. Arguments: an address to notify if there is no answer yet, and the seconds
for which to register it; "" and 0 register nothing."""

MAX_LIMIT = 1000
"""The most messages that one pull returns."""

MAX_TTL = 10 * 366 * 86400

REREGISTER_INTERVAL = 300.0
"""Seconds after which a waiting operation asks again and renews its registration, in case a notification was lost."""

LOCAL_RECHECK_INTERVAL = 0.5
"""Seconds between two calls of a `local_check`, which sends no command."""

WAKE_SLICE = 64
"""The least number of faces that one call of `wake` wakes, if that many wait; see `waiting.lua`."""

POST_BATCH = 500
"""Messages in one round trip of a bulk send: about two milliseconds of server time."""


def check_limit(verb: str, limit: int) -> None:
    check_whole(verb, "limit", limit, 1, MAX_LIMIT, f"1 to {MAX_LIMIT:,}")


def ask_until(
    found: Callable[[R], object],
    ask: Ask[R],
    bindings: LogBindings | ChatIndexBindings,
    wait: float | None,
    *,
    own_address: bool = False,
    shared_reader: str | None = None,
    due: Callable[[R], float | None] = lambda _: None,
    local_check: Callable[[R], Callable[[], bool] | None] = lambda _: None,
    interval: float = REREGISTER_INTERVAL,
) -> Operation[R]:
    """Ask until `found` accepts the answer or `wait` seconds are over; returns the last answer either way.

    Between two calls it sleeps until a notification arrives at the address that `ask` registered, or for `interval`
    seconds, so a lost notification costs at most that long. The last answer can shorten the sleep:

    due          returns the seconds after which to ask again, or None
    local_check  returns a function that is called about twice a second and ends the sleep with True, or None

    Operations of one face that wait for the same log share an address, which the server keeps once. With `own_address`
    this operation has its own: for an event that wakes only one of those that wait. `shared_reader`: the reader for
    which this operation is a worker.

    One round trip if `wait` is 0. Otherwise one at first and one for each wake-up; if the wait is cancelled, one more
    to deregister.
    """
    if wait == 0:
        answer: R = yield ask("", 0.0)
        return answer
    deadline = None if wait is None else time.monotonic() + wait
    listener = yield Listen(bindings.keys.base, shared=not own_address)
    try:
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                # An address with the ttl 0 is deregistered. It stays registered if other operations share it.
                answer = yield ask(listener.address if listener.close() else "", 0.0)
                return answer
            answer = yield ask(listener.address, interval * SLEEPER_TTL_FACTOR)
            if found(answer):
                return answer
            pauses = (interval, left, due(answer))
            yield from _sleep(listener, min(pause for pause in pauses if pause is not None), local_check(answer))
    except BaseException:
        if listener.close():
            yield bindings.stop_waiting(listener.address, shared_reader)
        raise
    finally:
        listener.close()


def _sleep(listener: Listener, pause: float, local_check: Callable[[], bool] | None) -> Operation[None]:
    if local_check is None:
        yield from wait_until_recheck(listener, pause, None)
        return
    until = time.monotonic() + pause
    while (left := until - time.monotonic()) > 0 and not local_check():
        for message in (yield Wait(listener, min(left, LOCAL_RECHECK_INTERVAL))):
            until = min(until, time.monotonic() + recheck_delay(message))


def wake_rest(bindings: LogBindings | ChatIndexBindings, wake: WakeReply) -> Operation[list[str]]:
    """Wake, slice by slice, those that the last script has left to wake. Returns the readers to notify.

    The processes that were woken do the same, so it usually takes few round trips even for thousands.
    """
    to_notify, left = [*wake.to_notify], wake.left
    while left > 0:
        wake = yield bindings.wake()
        to_notify += wake.to_notify
        left = min(left - WAKE_SLICE, wake.left)
    return to_notify


def trim_rest(log: LogBindings, more_to_trim: bool) -> Operation[None]:
    """If the last script had more messages to free, free them slice by slice, so that the server can serve other
    callers in between."""
    while more_to_trim:
        more_to_trim = yield log.trim()


def check_ttl(verb: str, ttl: float | None) -> float:
    """Return a time to live in seconds; 0 for None."""
    if ttl is None:
        return 0.0
    check_number(verb, "ttl", ttl, 0.001, MAX_TTL, "seconds above 0, up to ten years, or None")
    return ttl


def check_sender(sender: str) -> str:
    """Return the sender of a message in a mailbox: any text, or none."""
    return sender if sender == "" else check_text("sender", sender)


def check_post(
    verb: str, bodies: Sequence[bytes], ids: Iterable[str | None] | None, wait: float | None
) -> list[tuple[str, bytes]]:
    """Pairs of id and body, as `LogBindings.post` takes them."""
    check_wait(verb, wait)
    if ids is None:
        return [("", body) for body in bodies]
    check_many(verb, "ids", ids, letters=True)
    checked = ["" if id is None else check_text("message id", id) for id in ids]
    if len(checked) != len(bodies):
        raise BadCall(f"{verb}(ids=…): {len(checked)} ids for {len(bodies)} messages; nothing was sent")
    return list(zip(checked, bodies, strict=True))


def post_all(
    log: LogBindings,
    sender: str,
    messages: Sequence[tuple[str, bytes]],
    *,
    create: bool,
    wait: float | None,
    lifetime: float = 0.0,
) -> Operation[tuple[list[str], list[str]]]:
    """Post messages in batches of 500, and wait up to `wait` seconds for space in a full log.

    Returns the positions of the messages, and the readers to notify. Raises NoSpace, TooManyIds. One round trip for
    each batch, plus those of a wait.
    """
    if wait == 0 and len(messages) <= POST_BATCH:
        reply = yield log.post(sender, messages, create=create, lifetime=lifetime)
        if reply.positions is not None:
            return reply.positions, (yield from wake_rest(log, reply.wake))
    positions: list[str] = []
    to_notify: dict[str, None] = {}
    for start in range(0, len(messages), POST_BATCH):
        batch = messages[start : start + POST_BATCH]

        def post(address: str, ttl: float, batch: Sequence[tuple[str, bytes]] = batch) -> RoundTrip[PostReply]:
            return log.post(sender, batch, create=create, lifetime=lifetime, address=address, ttl=ttl)

        reply = PostReply(None)
        while reply.positions is None:
            reply = yield from _post(log, post, sender, wait)
        positions += reply.positions
        to_notify |= dict.fromkeys((yield from wake_rest(log, reply.wake)))
    return positions, list(to_notify)


def _post(log: LogBindings, post: Ask[PostReply], sender: str, wait: float | None) -> Operation[PostReply]:
    if wait == 0:
        reply: PostReply = yield post("", 0.0)
        return reply
    # No sender is notified of the space that messages leave when they grow too old: ask more often.
    answer = yield from ask_until(
        lambda answer: answer is not None,
        lambda address, ttl: default_on(b"FULL", post(address, ttl), None),
        log,
        wait,
        own_address=True,
        interval=log.settings.sleep,
    )
    if answer is None:
        raise log.error_for([b"FULL"], sender)
    return answer
