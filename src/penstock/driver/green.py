"""Recognises programs whose threads are replaced by gevent or eventlet, in which Penstock cannot work."""

from __future__ import annotations

import sys

from penstock.errors import ConfigurationError


def refuse_green_threads() -> None:
    """Raise ConfigurationError if gevent or eventlet has replaced this process's threads or sockets.

    Leases are renewed in a thread with an event loop of its own. Under a monkey patch that thread is a coroutine of the
    main thread: its loop looks as if it ran in every caller, and a caller that computes keeps it from renewing.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    names = ("thread", "threading", "socket", "select")
    if gevent is not None and any(gevent.is_module_patched(name) for name in names):
        library, patch = "gevent", "gevent.monkey.patch_all()"
    elif eventlet is not None and any(eventlet.is_monkey_patched(name) for name in names):
        library, patch = "eventlet", "eventlet.monkey_patch()"
    else:
        return
    raise ConfigurationError(
        f"Penstock does not work under {patch}: it renews leases in a real thread. Leave the patch out here "
        f"and use threads or asyncio; or call Penstock from a process that {library} has not patched"
    )
