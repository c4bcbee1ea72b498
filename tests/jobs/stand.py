"""A queue on a test stand: one script at a time, a clock moved by hand, the whole key space in view."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from penstock.core.clock import Clock, milliseconds
from penstock.core.operations import RoundTrip
from penstock.jobs import constants
from penstock.jobs.bindings import QueueBindings
from penstock.jobs.claims import Claim, Ending, Settlement, TurnReply
from penstock.jobs.constants import DUE_IS_DATE, EXPIRES_IS_DATE, OWN_ID
from penstock.jobs.keys import QUEUE, QueueKeys
from penstock.jobs.record import Record, draft

R = TypeVar("R")
Dump: TypeAlias = dict[str, Any]

START = 1_700_000_000_000

READY, DELAYED, RUNNING, DEAD = (
    state.decode() for state in (constants.READY, constants.DELAYED, constants.RUNNING, constants.DEAD)
)


def record(
    tenant: str = "",
    priority: int = 5,
    *,
    delay: float = 0,
    at: int | None = None,
    expires: float = 0,
    expires_at: int | None = None,
    ttl: float = 600,
    own: bool = False,
    payload: bytes = b"null",
) -> bytes:
    """A record as a client drafts it; seconds, but `at` and `expires_at` are dates in server milliseconds."""
    flags = DUE_IS_DATE * (at is not None) | EXPIRES_IS_DATE * (expires_at is not None) | OWN_ID * own
    due = milliseconds(delay) if at is None else at
    limit = milliseconds(expires) if expires_at is None else expires_at
    name = tenant.encode()
    drafted = draft(
        flags=flags, priority=priority, tenant=name, delay_ms=due, expires_ms=limit, ttl_ms=milliseconds(ttl)
    )
    return drafted + payload


class Stand:
    """Drives the scripts of one queue through a blocking client. The server is the test's own."""

    def __init__(self, client: Any, queue: str = "q") -> None:
        self.client = client
        self.clock = Clock(START)
        self.bindings = QueueBindings(QueueKeys("t", queue), self.clock)
        self.base = self.bindings.keys.base
        self._loaded: set[str] = set()

    def run(self, step: RoundTrip[R]) -> R:
        """One round trip; an error reply is raised."""
        return step.read(self.raw(step))

    def raw(self, step: RoundTrip[Any]) -> Any:
        script = step.script
        if script.sha not in self._loaded:
            assert self.client.script_load(script.source) == hashlib.sha1(script.source.encode()).hexdigest()
            self._loaded.add(script.sha)
        return self.client.evalsha(script.sha, len(step.keys), *step.keys, *step.args)

    def advance(self, seconds: float) -> None:
        self.clock.now_ms += round(seconds * 1000)

    # --- jobs ---

    def put(self, *ids: str, **options: Any) -> list[int]:
        """Enqueue one job for each id, all with the same options of `record`."""
        drafted = record(**options)
        return self.put_drafts([(key, drafted) for key in ids])

    def put_drafts(self, jobs: Iterable[tuple[str, bytes]]) -> list[int]:
        return self.run(self.bindings.enqueue([part for job in jobs for part in job]))

    def put_as(self, caller: str, number: int, *ids: str, **options: Any) -> list[int]:
        """As the driver does it, which numbers each call so that a second copy is recognised."""
        drafted = record(**options)
        step = self.bindings.enqueue([part for key in ids for part in (key, drafted)])
        return self.run(RoundTrip(step.script, step.keys, (caller, number, *step.args[2:]), step.read))

    def job(self, key: str) -> Record:
        body = self.client.hget(self.base + "jobs", key)
        assert body is not None, f"no record of {key}"
        return Record(body)

    def state(self, key: str) -> str:
        """Its letter, or `-` for a job that is not in the queue."""
        body = self.client.hget(self.base + "jobs", key)
        return Record(body).state.decode() if body else "-"

    def states(self, *keys: str) -> str:
        return "".join(self.state(key) for key in keys)

    def done(self, key: str) -> bytes | None:
        found: bytes | None = self.client.get(self.base + "done:" + key)
        return found

    def messages(self, process: str) -> list[str]:
        """What lies in a process's inbox; taken out."""
        found = self.client.lpop(self.base + "inbox:" + process, 1000)
        return [message.decode() for message in found or []]

    # --- the key space ---

    def counts(self) -> str:
        """Ready, delayed, running and dead jobs, as `1 0 0 0`."""
        counts = self.run(self.bindings.counts())
        return f"{counts.ready} {counts.delayed} {counts.running} {counts.dead}"

    def names(self) -> list[str]:
        return sorted(key.decode() for key in self.client.keys("*"))

    def dump(self) -> Dump:
        """All keys with all they hold. A key that `store/keys.py` does not name, or of another type, fails."""
        names = self.names()
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            match kind_of(name.removeprefix(self.base)):
                case "HASH":
                    pipeline.hgetall(name)
                case "ZSET":
                    pipeline.zrange(name, 0, -1, withscores=True)
                case "LIST":
                    pipeline.lrange(name, 0, -1)
                case "SET":
                    pipeline.sort(name, alpha=True)
                case _:
                    pipeline.get(name)
        return dict(zip((name.removeprefix(self.base) for name in names), pipeline.execute(), strict=True))

    def eternal(self) -> list[str]:
        """The keys without a TTL, less `base`."""
        return [name.removeprefix(self.base) for name in self.names() if self.client.pttl(name) < 0]


def kind_of(suffix: str) -> str:
    """The type of a key by the table of `store/keys.py`."""
    family = suffix.partition(":")[0] + ":" * (":" in suffix)
    assert family in QUEUE, f"{suffix} is not in store/keys.py"
    return QUEUE[family][0]


def difference(before: Dump, after: Dump) -> Dump:
    """The keys that changed, with what they hold now; None for those that are gone. Of `meta` only what changed."""
    changed = {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if "meta" in changed:
        old, new = before.get("meta", {}), after["meta"]
        fields = {name.decode(): new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        changed["meta"] = {name: held and held.decode() for name, held in fields.items()}
    return changed


@dataclass
class Hand:
    """One incarnation of a worker as the server sees it: it counts its turns and can repeat the last."""

    stand: Stand
    me: str
    lease: float = 10.0
    number: int = 0
    last: RoundTrip[TurnReply] | None = field(default=None, repr=False)

    def turn(self, want: int = 0, *settlements: Settlement, **options: Any) -> TurnReply:
        self.number += 1
        options.setdefault("lease", self.lease)
        options.setdefault("trial", "beside")
        self.last = self.stand.bindings.turn(self.me, self.number, want=want, settlements=settlements, **options)
        return self.stand.run(self.last)

    def again(self) -> TurnReply:
        """The last turn once more, as after a lost reply."""
        assert self.last is not None
        return self.stand.run(self.last)

    def claim(self, want: int = 1) -> list[Claim]:
        turn = self.turn(want)
        assert turn.alive
        return turn.claims

    def settle(self, *claims: Claim, ending: Ending | None = None, delay: float = 0.0, text: str = "") -> bool:
        """In a turn that claims nothing; False: some were stale, or the incarnation has ended."""
        turn = self.turn(0, *(settlement(claim, ending, delay, text) for claim in claims))
        return turn.alive and not turn.stale

    def settle_alone(self, claim: Claim, ending: Ending | None = None, delay: float = 0.0, text: str = "") -> bool:
        """By a script of its own, as a program without a worker does."""
        return self.stand.run(self.stand.bindings.settle(self.me, settlement(claim, ending, delay, text)))

    def beat(self) -> bool:
        return self.stand.run(self.stand.bindings.heartbeat(self.me, self.lease))


def every_step(move: QueueBindings) -> dict[str, RoundTrip[Any]]:
    """One step for each script of the queue, with arguments that make sense."""
    token = b"000000000001j"
    return {
        "enqueue": move.enqueue(["new", record("ada")]),
        "turn": move.turn("w", 1, lease=10, want=5, settlements=[Settlement(token)], address="p/1", sleep=50),
        "settle": move.settle("w", Settlement(token)),
        "heartbeat": move.heartbeat("w", 10),
        "abandon": move.abandon("w"),
        "cancel": move.cancel(["j"]),
        "purge": move.purge(None, 0, 100),
        "show": move.show("j"),
        "result": move.result("j", "p/1"),
        "forget": move.forget("j", "p/1"),
        "list_dead": move.list_dead(0, 10),
        "dead_until": move.dead_until(0, 10),
        "requeue": move.requeue(["dead"]),
        "remove_dead": move.remove_dead(["dead"]),
        "set_switch": move.set_switch("paused", True),
        "set_weight": move.set_weight("ada", 3),
        "scan_workers": move.workers(10),
        "counts": move.counts(),
        "overview": move.overview(10),
        "counted_and_kept": move.counted_and_kept(),
        "scan_tenants": move.scan_tenants("0", 10),
        "tenant_counts": move.tenant_counts("ada"),
    }


def settlement(claim: Claim, ending: Ending | None = None, delay: float = 0.0, text: str = "") -> Settlement:
    """`text`: a result as JSON, or a reason."""
    return Settlement(claim.token, (text or "null" * (ending is None)).encode(), ending, delay)


def ids(claims: Iterable[Claim]) -> list[str]:
    return [claim.id for claim in claims]
