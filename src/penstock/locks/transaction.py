"""A transaction: conditions and writes on keys of one hash tag, executed atomically: all of them or none.

The transaction of a lock (`held.transaction()`) is committed only while that lock is held, so an owner that was paused
past its lease cannot write. A transaction is a list of operations; nothing is sent before `commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from penstock.core.arguments import shown
from penstock.core.idempotency import IdempotencyKey, release_key, take_key
from penstock.core.keys import check_text
from penstock.core.operations import Driver, RoundTrip, verb
from penstock.core.slots import slot
from penstock.core.writes import EXACT_BELOW, Clause, Number, Packable, Value, Writes, pack_rows, packable, write
from penstock.errors import LeaseLost, TransactionRefused
from penstock.locks.bindings import CommitReply, Comparison, Condition, TransactionBindings

MAX_OPERATIONS = 1000
"""Conditions and writes; a write of three members counts as three. The maximum takes some ms of server time."""

MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Guard:
    """Locks that must hold `token` at the commit. `loss` makes the error for a lock that does not.

    `check_process` raises in a process that was forked from the owner.
    """

    locks: tuple[str, ...]
    token: str
    check_process: Callable[[], None]
    loss: Callable[[], LeaseLost]


class Transaction(Writes):
    """Conditions, then writes: `app.transaction().require_value(…).set(…).commit()`.

    The keys are ordinary keys, which any client may use too. All must be in one slot, so they share a hash tag. A
    condition without a value or a bound checks only for existence. Values are bytes, texts (UTF-8) or numbers.
    """

    def __init__(self, driver: Driver, *, slot_key: str | None = None, guard: Guard | None = None) -> None:
        """`slot_key`: a key in the slot of the transaction; None: the first key that it uses."""
        self._driver = driver
        self._guard = guard
        self._locks = guard.locks if guard else ()
        self._bindings = TransactionBindings(self._locks, guard.token if guard else "")
        self._slot_key = guard.locks[0] if guard else slot_key
        self._slot = -1
        self._positions: dict[str, int] = {}
        self._conditions: list[Condition] = []
        self._writes: list[tuple[Any, ...]] = []
        self._condition_clauses: list[Clause] = []
        self._write_clauses: list[Clause] = []
        self._count = 0
        self._idempotency_key: IdempotencyKey | None = None
        self._is_done = False

    def __repr__(self) -> str:
        return f"<Transaction of {len(self._condition_clauses)} conditions and {len(self._write_clauses)} writes>"

    # --- conditions ---

    def require_exists(self, key: str) -> Self:
        """Commit only if the key exists, whatever its type."""
        return self._require("EXISTS", key, False, Clause("require_exists", key))

    def require_missing(self, key: str) -> Self:
        """Commit only if the key does not exist."""
        return self._require("EXISTS", key, False, Clause("require_missing", key), missing=True)

    def require_value(
        self, key: str, value: Value | None = None, *, at_least: Number | None = None, at_most: Number | None = None
    ) -> Self:
        """Commit only if the string at `key` equals `value`, or is a number within the bounds."""
        return self._require("GET", key, False, Clause("require_value", key, None, value, at_least, at_most))

    def require_field(
        self,
        key: str,
        field: Value,
        value: Value | None = None,
        *,
        at_least: Number | None = None,
        at_most: Number | None = None,
    ) -> Self:
        """Commit only if the field of a hash equals `value`, or is a number within the bounds."""
        clause = Clause("require_field", key, field, value, at_least, at_most)
        return self._require("HGET", key, packable(field), clause)

    def require_no_field(self, key: str, field: Value) -> Self:
        """Commit only if the hash does not have the field, or does not exist."""
        return self._require("HEXISTS", key, packable(field), Clause("require_no_field", key, field), missing=True)

    def require_score(
        self,
        key: str,
        member: Value,
        score: Number | None = None,
        *,
        at_least: Number | None = None,
        at_most: Number | None = None,
    ) -> Self:
        """Commit only if the score of a member of a sorted set equals `score`, or is within the bounds."""
        clause = Clause("require_score", key, member, score, at_least, at_most)
        return self._require("ZSCORE", key, packable(member), clause, equality="number")

    def require_no_score(self, key: str, member: Value) -> Self:
        """Commit only if the sorted set does not have the member, or does not exist."""
        return self._require("ZSCORE", key, packable(member), Clause("require_no_score", key, member), missing=True)

    def require_member(self, key: str, member: Value) -> Self:
        """Commit only if the set contains the member."""
        return self._require("SISMEMBER", key, packable(member), Clause("require_member", key, member))

    def require_no_member(self, key: str, member: Value) -> Self:
        """Commit only if the set does not contain the member, or does not exist."""
        return self._require("SISMEMBER", key, packable(member), Clause("require_no_member", key, member), missing=True)

    def _require(
        self,
        command: str,
        key: str,
        member: Packable | Literal[False],
        clause: Clause,
        *,
        equality: Literal["text", "number"] = "text",
        missing: bool = False,
    ) -> Self:
        if clause.at_least is clause.at_most is None and clause.value is None:
            return self._condition(clause, command, key, member, "missing" if missing else "there", "")
        if clause.value is not None:
            self._condition(clause, command, key, member, equality, clause.value)
        if clause.at_least is not None:
            self._condition(clause, command, key, member, "at least", clause.at_least)
        if clause.at_most is not None:
            self._condition(clause, command, key, member, "at most", clause.at_most)
        return self

    def _condition(
        self,
        clause: Clause,
        command: str,
        key: str,
        member: Packable | Literal[False],
        comparison: Comparison,
        wanted: Value,
    ) -> Self:
        if comparison in {"number", "at least", "at most"} and isinstance(wanted, str | bytes):
            raise ValueError(f"{clause}: {shown(wanted)} is compared as a number; pass an int or a float")
        if comparison != "text" and isinstance(wanted, int) and abs(wanted) >= EXACT_BELOW:
            raise ValueError(f"{clause}: {wanted} cannot be compared exactly; from -2**53 to 2**53, exclusive")
        value = packable(wanted)
        position = self._position(clause, key, 1)
        compared = value if comparison == "text" else wanted
        self._conditions.append(Condition(command, position, member, comparison, compared))
        self._condition_clauses.append(clause)
        return self

    def _add(self, clause: Clause, command: str, values: Sequence[Packable], count: int) -> None:
        if clause.key in self._locks:
            raise ValueError(f"{clause}: that is the lock itself; release() gives it back")
        position = self._position(clause, clause.key, count)
        self._writes.append(write(command, position, values))
        self._write_clauses.append(clause)

    # --- writes, and both ---

    def _position(self, clause: Clause, key: str, count: int) -> int:
        """The position of the key in KEYS. `count`: how many operations the clause counts as."""
        if self._idempotency_key is not None or self._is_done:
            raise ValueError(f"{clause}: this transaction was sent; make another one")
        self._count += count
        if self._count > MAX_OPERATIONS:
            raise ValueError(
                f"{clause}: a transaction has at most {MAX_OPERATIONS:,} conditions and writes; make several"
            )
        position = self._positions.get(key)
        if position is None:
            check_text("key", key)
            if self._slot_key is None:
                self._slot_key = key
            if self._slot < 0:
                self._slot = slot(self._slot_key)
            if slot(key) != self._slot:
                raise ValueError(
                    f"{clause}: its slot is not that of {self._slot_key!r}; give all keys one hash tag, such as "
                    "{tag}:a and {tag}:b"
                )
            position = self._positions[key] = self._bindings.position(len(self._positions))
        return position

    @verb
    def commit(self) -> RoundTrip[tuple[int | float, ...]]:
        """Check everything, then write everything.

        Returns the reply to each write, in order: how many things it added or removed, or the new number.

        Raises LeaseLost if the lock is no longer held, and TransactionRefused with the first condition that does not
        hold; nothing is written in either case. After ServerUnavailable the outcome is unknown: if you call `commit`
        again within a minute, the transaction is executed exactly once. One round trip.
        """
        if self._guard is not None:
            self._guard.check_process()
        if not self._conditions and not self._writes:
            raise ValueError("commit(): there is nothing in this transaction; add conditions or writes")
        if self._is_done:
            raise ValueError("commit(): this transaction was committed; make another one")
        assert self._slot_key is not None
        conditions, writes = pack_rows(self._conditions), pack_rows(self._writes)
        if len(conditions) + len(writes) > MAX_BYTES:
            raise ValueError(f"commit(): {len(conditions) + len(writes):,} bytes, at most {MAX_BYTES:,}; make several")
        key = self._idempotency_key = self._idempotency_key or take_key()
        sent = self._bindings.commit(self._slot_key, tuple(self._positions), key, conditions, writes)
        return sent.then(self._results)

    def _results(self, reply: CommitReply) -> tuple[int | float, ...]:
        if self._idempotency_key is not None:
            release_key(self._idempotency_key)
            self._idempotency_key = None
        if reply.outcome == "done":
            self._is_done = True
            return reply.results
        if reply.outcome == "not held":
            assert self._guard is not None
            raise self._guard.loss()
        is_condition = reply.outcome == "unmet"
        clause = (self._condition_clauses if is_condition else self._write_clauses)[reply.index]
        there = "nothing" if reply.found is None else reply.found[:100].decode(errors="replace")
        raise TransactionRefused(
            f"{clause} {'does not hold' if is_condition else 'cannot be done'}: there is {there}; nothing was written",
            condition=str(clause),
            found=reply.found,
        )
