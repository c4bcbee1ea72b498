"""Checks whether the connected user may send every command, and use every key and channel, that Penstock needs.

The check uses `ACL DRYRUN`, which executes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.keys import WAKE_CHANNELS
from penstock.core.operations import Operation
from penstock.core.slots import Node
from penstock.jobs.bindings import scripts
from penstock.jobs.keys import QueueKeys
from penstock.ops.checks.result import Verdict
from penstock.ops.probe import ask

EXAMPLE_QUEUE = "doctor"
"""A queue whose keys are tried if the app has no queue yet."""

_ALWAYS_NEEDED = ("PING", "INFO", "EVAL", "EVALSHA", "SSUBSCRIBE", "SUNSUBSCRIBE")

_NEEDED_FOR = {
    "SCRIPT": "enqueueing inside a pipeline",
    "WAIT": "durable=True by a replica",
    "WAITAOF": "durable=True by the disk",
}
"""Command -> the only feature that does not work without it."""

_CALLED_BY_SCRIPT = re.compile(r'(?:redis\.p?call|batch_write)\(\s*"([A-Z]+)"')


@dataclass(frozen=True, slots=True)
class MissingRights:
    """The rights that a user lacks."""

    user: str
    commands: list[str]
    """Commands that the user may not send for any key."""

    queues: list[str]
    """Queues that have keys which the user may not use."""

    channels: bool
    """Whether there are channels of wake-ups that the user may not use."""


def needed_commands() -> list[str]:
    """The commands that producers, workers and their scripts send."""
    called = {name for script in scripts().scripts.values() for name in _CALLED_BY_SCRIPT.findall(script.source)}
    return [*_ALWAYS_NEEDED, *sorted(called), *_NEEDED_FOR]


def lacking_commands(node: Node, commands: Sequence[str]) -> Operation[list[str] | None]:
    """The commands that the server itself does not have; None if the user may not ask. One round trip."""
    descriptions = yield from ask(node, *(("COMMAND", "INFO", name) for name in commands))
    if None in descriptions:
        return None
    return [name for name, found in zip(commands, descriptions, strict=True) if not found[0]]


def missing_rights(node: Node, commands: Sequence[str], queues: Sequence[QueueKeys]) -> Operation[MissingRights | None]:
    """The commands and queues that the connected user may not use; None if the user may not run `ACL DRYRUN`.

    One round trip for each queue, and one more.
    """
    user, *descriptions = yield from ask(node, ("ACL", "WHOAMI"), *(("COMMAND", "INFO", name) for name in commands))
    if user is None or None in descriptions:
        return None
    known = [(name, found[0]) for name, found in zip(commands, descriptions, strict=True) if found[0]]
    forbidden: dict[str, None] = {}
    closed, channels = [], False
    for keys in queues:
        examples = (_example(name, description, keys) for name, description in known)
        answers = yield from ask(node, *(("ACL", "DRYRUN", user, *example) for example in examples))
        if None in answers:
            return None
        refused = {name: answer for (name, _), answer in zip(known, answers, strict=True) if answer != b"OK"}
        forbidden |= {name: None for name, answer in refused.items() if not answer.endswith((b" key", b" channel"))}
        channels |= any(answer.endswith(b" channel") for answer in refused.values())
        if any(answer.endswith(b" key") for answer in refused.values()):
            closed.append(keys.queue)
    return MissingRights(user.decode(errors="backslashreplace"), list(forbidden), closed, channels)


def _example(name: str, description: Sequence[Any], keys: QueueKeys) -> tuple[str, ...]:
    """A sample call of this command: the right number of arguments, and keys of this queue."""
    special = {
        "EVAL": ("", "2", *keys.declared),
        "EVALSHA": ("", "2", *keys.declared),
        "SPUBLISH": (WAKE_CHANNELS, ""),
        "SSUBSCRIBE": (WAKE_CHANNELS,),
        "SUNSUBSCRIBE": (WAKE_CHANNELS,),
        "OBJECT": ("ENCODING", keys.declared[1]),
        "RENAME": (keys.declared[1], keys.declared[1]),
        "SCRIPT": ("LOAD", "return 1"),
    }
    if name in special:
        return (name, *special[name])
    words = ["1"] * (abs(description[1]) - 1)
    if description[3] > 0:
        words[description[3] - 1] = keys.declared[1]
    return (name, *words)


def check_commands(lacking: Sequence[str], runs_scripts: bool) -> Iterator[Verdict]:
    """Name each command that the server lacks, and what it costs."""
    if needed := [name for name in lacking if name not in _NEEDED_FOR]:
        advice = "Valkey 7.2 and Redis 7.0 have them: look for `rename-command`, or for a proxy in front of it"
        yield "fail", f"it lacks {', '.join(needed)}: Penstock cannot work with it", advice
    for name in lacking:
        if name in _NEEDED_FOR:
            yield "ok", f"it lacks {name}: no {_NEEDED_FOR[name]}", "if you need it: Valkey 7.2, Redis 7.2, or newer"
    if not runs_scripts and "EVAL" not in lacking:
        advice = "use a server with Lua; if this one has it, see `penstock doctor rights`"
        yield "fail", "it runs no script: Penstock cannot work with it", advice
    if runs_scripts and not needed:
        yield "ok", "it runs scripts, and has sharded messages and every command that Penstock cannot do without", ""


def check_rights(missing: MissingRights | None, prefix: str) -> Iterator[Verdict]:
    """Name each missing right, with the ACL command that grants it."""
    if missing is None:
        advice = "to find out, run the doctor as a user with +acl +command"
        yield "ok", "this user may not ask which commands it may send", advice
        return
    user, refused, closed = missing.user, set(missing.commands), missing.queues
    if denied := sorted(refused - set(_NEEDED_FOR)):
        yield "fail", f"user {user!r} may not send {', '.join(denied)}", _allow(user, denied)
    for name in sorted(refused & set(_NEEDED_FOR)):
        yield "warn", f"user {user!r} may not send {name}: no {_NEEDED_FOR[name]}", _allow(user, [name])
    if closed:
        names = f"{', '.join(closed[:3])}{', …' if len(closed) > 3 else ''}"
        which = f"a queue, such as one named {names}" if closed == [EXAMPLE_QUEUE] else names
        pattern = QueueKeys(prefix, "*").base
        yield "fail", f"user {user!r} may not use all keys of {which}", f"ACL SETUSER {user} ~{pattern}*"
    if missing.channels:
        yield "fail", f"user {user!r} may not use the channels of wake-ups", f"ACL SETUSER {user} &{WAKE_CHANNELS}*"
    if not refused and not closed and not missing.channels:
        yield "ok", f"user {user!r} may send everything that Penstock sends", ""


def _allow(user: str, commands: Iterable[str]) -> str:
    return " ".join([f"ACL SETUSER {user}", *(f"+{command.lower()}" for command in commands)])
