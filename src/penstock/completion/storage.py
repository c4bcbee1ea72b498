"""The names of a directory in the server, in one slot or in several shards.

In one slot, every change is one script. With shards, the first character of a tail selects the shard of its element, so
that a search by prefix reads one shard. The hash of an id selects its *registry*, the shard that has its card. A change
of an id then takes four kinds of calls, each of which may be repeated:

    begin    the registry stores the new name, and returns the names that the id had before
    add      the new name is added to its shards, with the weight and the payload of the id
    remove   the old names are removed from theirs
    end      the registry forgets the old names

If a change breaks off in between, the same change, or any other change of this id, completes it.

A call holds the server for some milliseconds at most. So names are sent in chunks of at most 64 KiB, and a script that
has done enough leaves the rest of its chunk, which is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.completion.bindings import Checked, DirectoryBindings, DirectoryRules
from penstock.completion.card import card_size
from penstock.completion.entry import FoundElement, NewName, payload_change, weight_change
from penstock.completion.keys import CompletionKeys
from penstock.completion.name_rules import OtherRules, checked
from penstock.core.operations import Operation, Parallel, Receive, RoundTrip, Send, Unanswered

T = TypeVar("T")
P = ParamSpec("P")

CHUNK = 100
"""The most names that one call sends."""

CHUNK_BYTES = 64 * 1024
"""The most bytes of their cards and elements; a single name may be larger."""


class DirectoryStorage:
    """A directory in one slot, with given rules. Each operation raises OtherRules if the stored rules differ."""

    def __init__(self, prefix: str, name: str, rules: DirectoryRules) -> None:
        self.rules = rules
        kinds = ["directory", *(f"directory/{n}" for n in range(1, rules.shards))]
        self._shards = [DirectoryBindings(CompletionKeys(prefix, kind, name), rules) for kind in kinds]

    def shards_with(self, start: bytes) -> list[DirectoryBindings]:
        """The shards that may have elements that begin with `start`."""
        return self._shards

    @property
    def _first(self) -> DirectoryBindings:
        return self._shards[0]

    def check_rules(self) -> Operation[None]:
        """Raise OtherRules if other rules are stored and the operation that follows might not notice.

        In one slot, it always notices, because the rules and the names are in the same slot.
        """
        yield from ()

    # --- change ---

    def save(self, names: Sequence[NewName], *, existing_only: bool) -> Operation[int]:
        """Add names, and give ids that exist their new names. Returns how many were written."""
        card = self.rules.card
        records = (
            (
                card(name),
                "" if id == name else id,
                b"" if id == name else card(id),
                weight_change(weight),
                payload_change(payload),
            )
            for name, id, weight, payload in names
        )

        def call(rest: Sequence[Any]) -> RoundTrip[tuple[int, int] | OtherRules]:
            return self._first.save(rest, existing_only=existing_only)

        written = 0
        ahead: tuple[list[Any], Unanswered] | None = None
        for chunk in chunks(records, lambda record: card_size(record[0], record[1]) + len(record[4])):
            if ahead is not None:
                written += yield from _finish(*ahead, call)
                ahead = None
            if len(names) > CHUNK:  # the next chunk is made while the server works on this one
                ahead = chunk, (yield Send(call(chunk)))
            else:
                written += yield from in_slices(chunk, call)
        if ahead is not None:
            written += yield from _finish(*ahead, call)
        return written

    def remove(self, ids: Sequence[str]) -> Operation[int]:
        """Remove ids. Returns how many of them were there."""
        removed = 0
        for chunk in chunks(ids, len):
            removed += yield from in_slices(chunk, self._first.remove)
        return removed

    def remove_elements(self, found: Sequence[bytes]) -> Operation[int]:
        """Remove elements that belong to no id, because they were written by hand."""
        return in_slices([(False, element) for element in found], self._first.remove_elements)

    def change_id(self, id: str, weight: str, payload: bytes) -> Operation[float | None]:
        """Change the weight and the payload of an id. Returns its weight, None if the id does not exist."""
        (changed,) = yield from checked(self._first.change_ids([(id, weight, payload)]))
        return changed

    def delete_if_empty(self) -> Operation[None]:
        """Delete the remaining keys of a directory without names."""
        yield from checked(self._first.delete_if_empty())

    # --- read ---

    def get(self, id: str) -> Operation[tuple[str, FoundElement | None] | None]:
        """The name of an id, and its first element."""
        return checked(self._first.find_id(id, self.rules.card(id)))

    def ask(
        self,
        start: bytes,
        question: Callable[Concatenate[DirectoryBindings, P], Checked[T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> Operation[list[T]]:
        """The answers of the shards that may have elements that begin with `start`; of all shards for b""."""
        calls = [question(shard, *args, **options) for shard in self.shards_with(start)]
        replies = (yield Parallel(tuple(calls))) if len(calls) > 1 else [(yield calls[0])]
        for reply in replies:
            if isinstance(reply, OtherRules):
                raise reply
        return list(replies)


def chunks(items: Any, size_of: Callable[[Any], int]) -> Iterator[list[Any]]:
    """The items in lists of at most CHUNK items and CHUNK_BYTES bytes."""
    chunk: list[Any] = []
    size = 0
    for item in items:
        more = size_of(item)
        if chunk and (len(chunk) == CHUNK or size + more > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += more
    if chunk:
        yield chunk


def _finish(
    items: Sequence[T], sent: Unanswered, call: Callable[[Sequence[T]], RoundTrip[tuple[int, int] | OtherRules]]
) -> Operation[int]:
    """Receive the reply to a call with these items, and call the script again with the items that it left."""
    reply = yield Receive(sent)
    if isinstance(reply, OtherRules):
        raise reply
    done, count = reply
    rest = yield from in_slices(items[done:], call)
    return int(count + rest)


def in_slices(
    items: Sequence[T], call: Callable[[Sequence[T]], RoundTrip[tuple[int, int] | OtherRules]]
) -> Operation[int]:
    """Call a script with the items until it has done them all. Returns the sum of its counts."""
    counted = 0
    while items:
        done, count = yield from checked(call(items))
        counted += count
        items = items[done:]
    return counted
