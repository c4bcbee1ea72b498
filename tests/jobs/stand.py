"""A queue for tests of its scripts: each call sends one script, the test moves the clock, and sees every key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec

from penstock.core.clock import Clock, milliseconds
from penstock.core.operations import RoundTrip
from penstock.jobs import constants
from penstock.jobs.bindings import QueueBindings, scripts
from penstock.jobs.claims import Claim, Ending, Settlement, TurnReply
from penstock.jobs.constants import DUE_IS_DATE, EXPIRES_IS_DATE, LIMITED, LIMITS, OWN_ID, UNIQUE, UNIQUE_KEY
from penstock.jobs.durable_bindings import ChildRow, StepBindings
from penstock.jobs.editing import requeue_with
from penstock.jobs.failures import Failures
from penstock.jobs.finished import read_blocks
from penstock.jobs.flow_bindings import FlowBindings, FlowRow
from penstock.jobs.keys import QUEUE, QueueKeys
from penstock.jobs.limit_bindings import LimitBindings
from penstock.jobs.limits import limit_bytes
from penstock.jobs.listing import FoundJob, JobFilter, ListingBindings
from penstock.jobs.log_lines import read_log
from penstock.jobs.output import read_after
from penstock.jobs.record import Record, draft, pack_sections
from penstock.jobs.removal import sweep
from penstock.jobs.retention import Retention
from penstock.jobs.row import read_row
from penstock.jobs.schedule import ScheduleDefinition, StoredSchedule
from penstock.jobs.schedule_bindings import ScheduleBindings, Tick
from penstock.jobs.shard_bindings import ShardBindings
from penstock.jobs.timing import Timing
from penstock.jobs.unique import unique_section
from penstock.jobs.why_bindings import WhyBindings
from penstock.jobs.worker_requests import ask_workers
from penstock.testing.audit.queues import QueueAudit

R = TypeVar("R")
Dump: TypeAlias = dict[str, Any]
Limits: TypeAlias = tuple[str, str, int, int, int, int, int]
"""Name, key, number, microseconds in which a unit comes back, burst, release, cost."""

START = 1_700_000_000_000

RESULT_START = 6
"""The bytes of a stored result that say until when it is kept."""

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
    task: str = "",
    limits: Sequence[Limits] = (),
    unique: tuple[str, str, int] | None = None,
    payload: bytes = b"null",
) -> bytes:
    """A record as a client drafts it. Times are seconds, but `at` and `expires_at` are dates in server milliseconds."""
    how = DUE_IS_DATE * (at is not None) | EXPIRES_IS_DATE * (expires_at is not None) | OWN_ID * own
    due = milliseconds(delay) if at is None else at
    limit = milliseconds(expires) if expires_at is None else expires_at
    name = tenant.encode()
    drafted = draft(
        flags=LIMITED * bool(limits) | UNIQUE * bool(unique),
        powers=LIMITS * bool(limits) | UNIQUE_KEY * bool(unique),
        how=how,
        priority=priority,
        tenant=name,
        task=task.encode(),
        delay_ms=due,
        expires_ms=limit,
        ttl_ms=milliseconds(ttl),
    )
    sections = {LIMITS: b"".join(limit_bytes(*one) for one in limits)} if limits else {}
    if unique:
        key, mode, ms = unique
        sections[UNIQUE_KEY] = unique_section(key, mode.encode(), ms)
    return drafted + pack_sections(sections) + payload


def at_most(most: int, key: str = "k", name: str = "n", release: int = 1) -> Limits:
    """A limit of concurrency."""
    return ("c:" + name, key, most, 0, 0, release, 1)


def per_second(most: int, key: str = "k", name: str = "n", release: int = 1, *, cost: int = 1) -> Limits:
    """A rate, and what a job costs in it."""
    return ("r:" + name, key, most, 1_000_000 // most, most, release, cost)


class Stand:
    """Sends the scripts of one queue through a blocking client, to a server that only the test uses."""

    def __init__(self, client: Any, queue: str = "q") -> None:
        self.client = client
        self.clock = Clock(START)
        self.bindings = QueueBindings(QueueKeys("t", queue), self.clock)
        self.base = self.bindings.keys.base
        self._loaded: set[str] = set()
        self._subscriber: Any = None
        self._messages: dict[str, list[str]] = {}

    def run(self, call: RoundTrip[R]) -> R:
        """Send a script. An error reply is raised."""
        return call.read(self.raw(call))

    def raw(self, call: RoundTrip[Any]) -> Any:
        """Send a script, and return the reply unread."""
        script = call.script
        if script.sha not in self._loaded:
            assert self.client.script_load(script.source) == hashlib.sha1(script.source.encode()).hexdigest()
            self._loaded.add(script.sha)
        return self.client.evalsha(script.sha, len(call.keys), *call.keys, *call.args)

    def advance(self, seconds: float) -> None:
        self.clock.now_ms += round(seconds * 1000)

    # --- jobs ---

    def put(self, *ids: str, **options: Any) -> list[int]:
        """Enqueue one job for each id, all with the same options of `record`."""
        drafted = record(**options)
        return self.put_drafts([(key, drafted) for key in ids])

    def put_for(self, **jobs: str) -> None:
        """Enqueue jobs of tenants, in order: `put_for(ada="a1 a2")`."""
        for tenant, names in jobs.items():
            self.put(*names.split(), tenant=tenant)

    def put_drafts(self, jobs: Iterable[tuple[str, bytes]]) -> list[int]:
        return self.run(self.bindings.enqueue([part for job in jobs for part in job]))

    def put_as(self, caller: str, number: int, *ids: str, **options: Any) -> list[int]:
        """Enqueue as a driver does, which numbers each call so that a repeated one is recognised."""
        drafted = record(**options)
        call = self.bindings.enqueue([part for key in ids for part in (key, drafted)])
        return self.run(RoundTrip(call.script, call.keys, (caller, number, *call.args[2:]), call.read))

    def job(self, key: str) -> Record:
        body = self.client.hget(self.base + "jobs", key)
        assert body is not None, f"no record of {key}"
        return Record(body)

    def state(self, key: str) -> str:
        """The letter of the job's state, or `-` for a job that is not in the queue."""
        body = self.client.hget(self.base + "jobs", key)
        if body and self.client.hexists(self.base + "owners", key):
            return RUNNING
        return Record(body).state.decode() if body else "-"

    def states(self, *keys: str) -> str:
        return "".join(self.state(key) for key in keys)

    def done(self, key: str) -> bytes | None:
        found: bytes | None = self.client.hget(self.base + "results", key)
        return found and found[RESULT_START:]

    # --- processes ---

    def start_processes(self, *names: str) -> None:
        """Subscribe to the channels of processes, whose listeners have the addresses `name/1`, `name/2` and so on.

        A process that takes a turn is started by that.
        """
        if self._subscriber is None:
            self._subscriber = self.client.connection_pool.make_connection()
            self._subscriber.connect()
            self._subscriber.send_command("SSUBSCRIBE", "")  # without any subscription the reply to PING is another
        if new := [name for name in names if name not in self._messages]:
            for name in new:
                self._messages[name] = []
                self._subscriber.send_command("SSUBSCRIBE", name)
            self._receive()

    def kill_processes(self, *names: str) -> None:
        """End processes: nobody is subscribed to their channels from now on."""
        for name in names:
            del self._messages[name]
            self._subscriber.send_command("SUNSUBSCRIBE", name)
        self._receive()

    def close(self) -> None:
        """End all processes."""
        if self._subscriber is not None:
            self._subscriber.disconnect()

    def messages(self, process: str) -> list[str]:
        """Take all messages of a process: the number of the listener, and the text."""
        self._receive()
        found = list(self._messages[process])
        self._messages[process].clear()
        return found

    def _receive(self) -> None:
        """Read what has arrived. The reply to PING comes after all messages that were sent before."""
        self._subscriber.send_command("PING")
        while (reply := self._subscriber.read_response())[0] != b"pong":
            kind, channel, data = reply
            if kind == b"smessage" and data:
                self._messages[channel.decode()].append(data.decode())

    # --- the key space ---

    def counts(self) -> str:
        """Ready, delayed, running and dead jobs, as `1 0 0 0`."""
        counts = self.run(self.bindings.counts())
        return f"{counts.ready} {counts.delayed} {counts.running} {counts.dead}"

    def names(self) -> list[str]:
        return sorted(key.decode() for key in self.client.keys("*"))

    def dump(self) -> Dump:
        """All keys with their contents. Fails for a key that `jobs/keys.py` does not list, or that has another type."""
        return readable(self.raw_dump())

    def raw_dump(self) -> Dump:
        """All keys with their contents, as stored."""
        names = self.names()
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            match self._type_of(name):
                case "HASH":
                    pipeline.hgetall(name)
                case "ZSET":
                    pipeline.zrange(name, 0, -1, withscores=True)
                case "LIST":
                    pipeline.lrange(name, 0, -1)
                case "SET":
                    pipeline.smembers(name)
                case "STREAM":
                    pipeline.xrange(name)
                case _:
                    pipeline.get(name)
        suffixes = [name.removeprefix(self.base) for name in names]
        dump = dict(zip(suffixes, pipeline.execute(), strict=True))
        return {name: sorted(held) if type_of_key(name) == "SET" else held for name, held in dump.items()}

    def _type_of(self, name: str) -> str:
        kind = type_of_key(name.removeprefix(self.base))
        return self.client.type(name).decode().upper() if kind == "any" else kind

    def change_row(self, **fields: Any) -> None:
        """Overwrite numbers of the row."""
        meta = self.base + "meta"
        row = msgspec.structs.replace(read_row(self.client.hget(meta, "row")), **fields)
        values = constants.FORMAT, self.client.exists(self.base + "intake"), row, 0, 0, 0
        self.client.hset(meta, "row", b"".join(map(msgspec.msgpack.encode, values)))

    def change_wake(self, **fields: Any) -> None:
        """Overwrite what the row has of the idle workers."""
        wake: Any = read_row(self.client.hget(self.base + "meta", "row")).wake
        self.change_row(wake=msgspec.structs.replace(wake, **fields))

    def entries(self) -> int:
        """How many entries all lanes and front lists have."""
        return sum(read_row(self.client.hget(self.base + "meta", "row")).entries().values())

    def without_ttl(self) -> list[str]:
        """The keys without a TTL, by the part of their names after `base`."""
        return [name.removeprefix(self.base) for name in self.names() if self.client.pttl(name) < 0]


def idle_workers(client: Any, base: str) -> int:
    """How many workers a queue has registered as idle: the row has a single one, else a sorted set has them."""
    row = client.hget(base + "meta", "row")
    return int(client.zcard(base + "sleepers")) + bool(row and read_row(row).alone)


def readable(dump: Dump) -> Dump:
    """The dump without history and padding, and with the numbers of the row that are not 0 as fields of `meta`."""
    if packed := dump.get("meta", {}).pop(b"row", None):
        fields = msgspec.structs.asdict(read_row(packed))
        levels = fields.pop("levels") or []
        batch, bound = fields.pop("batch") or [], fields.pop("bound") or []
        if wake := fields.pop("wake"):
            named = msgspec.structs.asdict(wake)
            dump["meta"] |= {name.encode(): str(held).encode() for name, held in named.items() if held}
            if wake.alone:
                dump["sleepers"] = [(wake.alone.encode(), float(wake.alone_until))]
        fields |= {f"batch{place}": n for place, n in enumerate(batch) if n}
        fields |= dict(zip(("bound", "tenant_bound", "refused"), bound, strict=False))
        fields |= {f"entries{int(level)}": n for level, n in zip(levels[::3], levels[1::3], strict=True)}
        fields |= {f"v{int(level)}": v for level, v in zip(levels[::3], levels[2::3], strict=True) if v}
        dump["meta"] |= {name.encode(): b"%d" % number for name, number in fields.items() if number}
    if "owners" in dump:
        dump["owners"].pop(b"")
    return {name: held for name, held in dump.items() if held and not name.startswith("history:")}


def problems_in(dump: Dump) -> list[str]:
    """What the audit finds in a dump of a queue as stored. The user's own keys are left out."""
    keys = {name: held for name, held in dump.items() if held and not name.startswith("user:")}
    scores = {name for name, held in keys.items() if isinstance(held, list) and isinstance(held[0], tuple)}
    return [*QueueAudit({name: dict(held) if name in scores else held for name, held in keys.items()}).problems()]


def type_of_key(suffix: str) -> str:
    """The type of a key by the table of `jobs/keys.py`."""
    family = suffix.partition(":")[0] + ":" * (":" in suffix)
    assert family in QUEUE, f"{suffix} is not in jobs/keys.py"
    return QUEUE[family][0]


def difference(before: Dump, after: Dump) -> Dump:
    """The keys that changed, and their contents now; None for a deleted key. Of `meta` only the changed fields."""
    changed = {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if "meta" in changed:
        old, new = before.get("meta", {}), after["meta"]
        fields = {name.decode(): new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        changed["meta"] = {name: held and held.decode() for name, held in fields.items()}
    return changed


@dataclass
class FakeWorker:
    """One incarnation of a worker, as the server sees it. It numbers its turns and can repeat the last one."""

    stand: Stand
    incarnation: str
    lease: float = 10.0
    number: int = 0
    last: RoundTrip[TurnReply] | None = field(default=None, repr=False)

    def turn(self, want: int = 0, *settlements: Settlement, **options: Any) -> TurnReply:
        self.number += 1
        options.setdefault("lease", self.lease)
        options.setdefault("trial", "")
        if address := options.get("address"):
            self.stand.start_processes(address.partition("/")[0])
        self.last = self.stand.bindings.turn(
            self.incarnation, self.number, want=want, settlements=settlements, **options
        )
        return self.stand.run(self.last)

    def repeat_turn(self) -> TurnReply:
        """Send the last turn again, as after a lost reply."""
        assert self.last is not None
        return self.stand.run(self.last)

    def take_all(self, want: int) -> list[TurnReply]:
        """Take turns until one reports that there are no more jobs."""
        turns = [self.turn(want)]
        while turns[-1].more and len(turns) < 20:
            turns.append(self.turn(want))
        return turns

    def claim(self, want: int = 1) -> list[Claim]:
        turn = self.turn(want)
        assert turn.alive
        return turn.claims

    def settle(self, *claims: Claim, ending: Ending | None = None, delay: float = 0.0, text: str = "") -> bool:
        """Settle in a turn that claims nothing. False: some claims were stale, or the incarnation has ended."""
        turn = self.turn(0, *(settlement(claim, ending, delay, text) for claim in claims))
        return turn.alive and not turn.stale

    def settle_alone(self, claim: Claim, ending: Ending | None = None, delay: float = 0.0, text: str = "") -> bool:
        """Settle outside of a turn, as a program without a worker does."""
        return self.stand.run(self.stand.bindings.settle(self.incarnation, settlement(claim, ending, delay, text)))

    def heartbeat(self) -> bool:
        return self.stand.run(self.stand.bindings.heartbeat(self.incarnation, self.lease)) is not None


def without_history(dump: Dump) -> dict[str, Any]:
    """A raw dump without what the first script of each ten seconds writes, even if it changes nothing else."""
    rest = {name: held for name, held in dump.items() if not name.startswith("history:")}
    if row := rest.get("meta", {}).get(b"row"):
        rest["meta"] = {**rest["meta"], b"row": read_row(row)}
    return rest


OF_QUEUE = sorted(set(scripts().scripts) - {"beat"})
"""The scripts that work on a queue. The key of `beat` belongs to no queue."""


def every_script(bindings: QueueBindings) -> dict[str, RoundTrip[Any]]:
    """A call of each script of the queue, with valid arguments."""
    schedules = ScheduleBindings(bindings)
    listing, shard = ListingBindings(bindings), ShardBindings(bindings)
    found = FoundJob("dead", b"", Record(record("ada")), "")
    definition = ScheduleDefinition("s", Timing(every=60), record("ada"))
    stored = StoredSchedule("s", 1, START, b"a", 0, 0, 0, 0, definition.timing, definition.draft)
    token, address = b"\0\0\0\0\0\1j", bindings.keys.base + "p/1"
    return {
        "take_in": bindings.take_in("new", record("ada")),
        "enqueue": bindings.enqueue(["new", record("ada")]),
        "turn": bindings.turn("w", 1, lease=10, want=5, settlements=[Settlement(token)], address=address, sleep=50),
        "settle": bindings.settle("w", Settlement(token)),
        "heartbeat": bindings.heartbeat("w", 10),
        "abandon": bindings.abandon("w"),
        "deliver": bindings.deliver("other", [b"1", b"enqueue", b"new", record("ada")]),
        "delivered": bindings.delivered("other", 1),
        "load_steps": StepBindings(bindings).load("w", token),
        "record_step": StepBindings(bindings).record("w", token, "1", "f", b"1"),
        "receive_signal": StepBindings(bindings).receive("w", token, "1", "go"),
        "run_children": StepBindings(bindings).run_children(
            "w", token, [ChildRow("1", "", "child", "f", record("ada"))], durable=False
        ),
        "signal": StepBindings(bindings).signal("j", "go", b"1"),
        "show_steps": StepBindings(bindings).show("j"),
        "why": WhyBindings(bindings).facts("j"),
        "failures": bindings._call("failures", ("dead",), list),
        "remove_queue": bindings._call("remove_queue", (bindings.clock.now_ms,), list),
        "sweep_queue": sweep(bindings, [b"rate:c:n=k"]),
        "enqueue_flow": FlowBindings(bindings).enqueue([FlowRow("job", "newer", record("ada"))], durable=False),
        "predecessors": FlowBindings(bindings).related("predecessors", "j", 0, 10),
        "dependents": FlowBindings(bindings).related("dependents", "j", 0, 10),
        "flow_jobs": FlowBindings(bindings).jobs(["j"]),
        "give_up_open": FlowBindings(bindings).give_up_open(),
        "cancel": bindings.cancel(["j"]),
        "edit": bindings.edit("j", due=5, priority=1, payload=b"1"),
        "purge": bindings.purge(None, 0, 100),
        "show": bindings.show("j"),
        "read_output": read_after(bindings, "j", "1-5", address, register=True),
        "read_log": read_log(bindings, "j", "", address, register=True),
        "result": bindings.result("j", address),
        "forget": bindings.forget("j", address),
        "list_dead": bindings.list_dead(0, 10),
        "count_dead": bindings.count_dead(0),
        "dead_until": bindings.dead_until(0, 10),
        "requeue": bindings.requeue(["dead"]),
        "requeue_edited": requeue_with(bindings, "dead", record("ada")),
        "remove_dead": bindings.remove_dead(["dead"]),
        "take_in_shard": shard.take_in("newer", record("ada"), "1 2 0"),
        "enqueue_in_shard": shard.enqueue(["newest", record("ada")], "1 2 0"),
        "shards": shard.table(2),
        "change_shards": shard.change("", "1 2 0"),
        "adopt_shards": shard.adopt("1 2 0"),
        "scan_weights": shard.scan_weights("0"),
        "scan_windows": shard.scan_windows("0"),
        "list_jobs": listing.page("records", b"", 10, JobFilter()),
        "change_jobs": listing.change("cancel", [found]),
        "hold_jobs": listing.hold(60, [found]),
        "requeue_jobs": listing.change("requeue", [found]),
        "set_switch": bindings.set_switch("paused", True),
        "pause_scope": bindings.pause_scope("p:tenant=ada", True),
        "show_pauses": bindings.pauses(),
        "set_limit": LimitBindings(bindings).set_limit("c:n", 2, 0, 0),
        "hold_limit": LimitBindings(bindings).hold_limit("c:n=k", 1000, is_date=False),
        "used": LimitBindings(bindings).used("w", token, "r:n=k", 7),
        "hold": LimitBindings(bindings).hold("w", token, "r:n=k", 1000),
        "show_limits": LimitBindings(bindings).limits(10),
        "purge_parked": bindings.purge_parked(None, 0, 100),
        "set_retention": Retention(dead_letters=1).store(bindings),
        "show_retention": Retention.of(bindings),
        "set_bound": bindings._call("set_bound", (bindings.clock.now_ms, 5, 5), int),
        "set_weight": bindings.set_weight("ada", 3),
        "accept": bindings._call("accept", (bindings.clock.now_ms, bytes(8), 0, "kept", record("ada")), bytes),
        "forget_receipts": bindings._call("forget_receipts", (bindings.clock.now_ms, bytes(8)), str),
        "scan_workers": bindings.workers(10),
        "ask_workers": ask_workers(bindings, "quiet", [b"w"]),
        "read_finished": read_blocks(bindings, "finished", 0),
        "read_kept_record": bindings._call("read_kept_record", (1, "j"), Record.read),
        "counts": bindings.counts(),
        "overview": bindings.overview(10),
        "history": bindings.history(10, 360),
        "entries_and_counters": bindings.entries_and_counters(),
        "scan_tenants": bindings.scan_tenants("0", 10),
        "tenant_counts": bindings.tenant_counts("ada"),
        "define_schedules": schedules.define("put", [(definition, START + 60_000)]),
        "tick": schedules.tick([Tick(stored, [START], [("new", record("ada"))], START + 60_000)]),
        "show_schedule": schedules.show("s"),
        "scan_schedules": schedules.scan("0"),
        "switch_schedule": schedules.pause("s"),
        "remove_schedule": schedules.remove("s"),
    }


def settlement(claim: Claim, ending: Ending | None = None, delay: float = 0.0, text: str = "") -> Settlement:
    """A settlement of the claim. `text`: a result as JSON, or a reason."""
    return Settlement(claim.token, (text or "null" * (ending is None)).encode(), ending, delay)


def entry(generation: int, key: str, *, more: bool = False) -> bytes:
    """The entry of a record of up to 1 KiB; `more`: the first one of a lane that has others."""
    return generation.to_bytes(6) + bytes([128 * more]) + key.encode()


def reasons(stand: Stand) -> dict[bytes, str]:
    """Why each job that has failed did so last."""
    return {id: Failures.read(packed).reason for id, packed in stand.dump().get("failures", {}).items()}


def ids(claims: Iterable[Claim]) -> list[str]:
    return [claim.id for claim in claims]
