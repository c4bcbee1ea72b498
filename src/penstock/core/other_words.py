"""Names that other libraries have for an option: an error names what it is called here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any, Final

from penstock.errors import ConfigurationError

_WAIT: Final = {
    **dict.fromkeys(("timeout", "block", "blocking_timeout", "wait_time", "max_wait"), "wait=seconds"),
    "blocking": "wait=None to wait without a limit, wait=0 to answer at once",
}
_LEASE: Final = {
    **dict.fromkeys(("ttl", "expire", "expiry", "lock_timeout", "duration", "auto_release_time"), "lease=seconds"),
    **_WAIT,
    "timeout": "lease=seconds for how long it outlives its owner, wait=seconds for how long to wait for it",
    "blocking_timeout": "wait=seconds",
    **dict.fromkeys(("sleep", "retry_delay", "retry_interval"), "nothing, because a waiter is notified"),
    **dict.fromkeys(("retry_count", "retry_times", "tries"), "wait=seconds"),
    **dict.fromkeys(("auto_renewal", "auto_renew", "auto_extend"), "renew=True, which is the default"),
    "thread_local": "nothing, because each `with` has a token of its own",
}
_CLAIM: Final = {
    **_WAIT,
    **dict.fromkeys(("count", "limit", "size", "max_jobs", "max_messages", "batch_size"), "n=…"),
    **dict.fromkeys(("visibility_timeout", "min_idle_time"), "lease=seconds"),
}
_MAILBOX: Final = {
    **dict.fromkeys(("timeout", "block", "wait"), "pull(wait=seconds)"),
    **dict.fromkeys(("maxlen", "max_len", "max_size", "limit"), "mailbox.keep(Keep(…))"),
    **dict.fromkeys(("ttl", "expire"), "post(ttl=seconds)"),
    "lease": "claim(lease=seconds)",
}
_ADDRESS: Final = dict.fromkeys(
    ("url", "host", "port", "connection", "redis", "client", "broker"), "the address or a client as the first argument"
)
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "Penstock": {**_ADDRESS, "namespace": "prefix=…", "timeout": "settings=Settings(…)"},
    "lock": _LEASE,
    "read_write_lock": _LEASE,
    "semaphore": {**dict.fromkeys(("count", "value", "capacity", "max_leases", "size"), "limit=…"), **_LEASE},
    "election": _LEASE,
    "rate_limit": {
        **dict.fromkeys(("rate", "max_rate", "calls", "max_calls", "requests", "times"), "limit=…"),
        **dict.fromkeys(("period", "interval", "seconds", "time_period", "window"), "per=seconds"),
        "capacity": "burst=…",
        **_WAIT,
    },
    "latch": {"timeout": "wait(timeout=seconds)", "parties": "count=…"},
    "barrier": {"timeout": "wait(timeout=seconds)", **dict.fromkeys(("count", "n"), "parties=…")},
    "queue": {
        **dict.fromkeys(("maxlen", "max_size", "maxsize"), "queue.bound(jobs=…)"),
        **dict.fromkeys(("timeout", "block", "wait"), "claim(wait=seconds)"),
    },
    "contacts": dict.fromkeys(("maxlen", "max_size", "size", "count"), "limit=…"),
    "directory": {**dict.fromkeys(("fuzzy", "typos", "limit"), "complete(limit=…, typos=…)")},
    "mailbox": _MAILBOX,
    "files": {**dict.fromkeys(("limit", "patience", "max_size"), "open(limit=…, patience=…), or send(…) with these")},
    "create": {
        **dict.fromkeys(("users", "participants"), "create([…]), the members"),
        **dict.fromkeys(("user", "creator", "owner"), "sender=…"),
        **dict.fromkeys(("maxlen", "max_len", "limit", "ttl"), "keep=Keep(…)"),
        "name": "id=…",
    },
    "claim": _CLAIM,
    "pull": {**_CLAIM, **dict.fromkeys(("count", "n", "size", "max_messages", "batch_size"), "limit=…")},
}


def unknown_option_of(method: Callable[..., Any], given: Iterable[str]) -> ConfigurationError | None:
    """The error for options that a factory or a verb does not have; None: it has all that are given."""
    known = [*signature(method).parameters][1:]
    unknown = [name for name in given if name not in known]
    kind, _, name = method.__qualname__.rpartition(".")
    called = kind if name == "__init__" else name
    return unknown_option(f"{called}()", unknown, known, _WORDS.get(called, {})) if unknown else None


def unknown_option(
    where: str, unknown: Iterable[str], known: Iterable[str], words: Mapping[str, str]
) -> ConfigurationError:
    """The error for options that do not exist. `words`: what the options of other libraries are called here."""
    name = next(iter(unknown))
    if name in words:
        return ConfigurationError(f"{where} has no option {name!r}: write {words[name]}")
    options = [*known]
    near = difflib.get_close_matches(name, options, n=1)
    what = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(options)}"
    return ConfigurationError(f"{where} has no option {name!r}: {what}")
