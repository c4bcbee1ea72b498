"""No queue at all: an EVALSHA of a one-line script with the keys and arguments of Penstock's enqueue, by its driver."""

import msgspec

from penstock.core.scripts import Script
from work import TEXT
from work.on_penstock import app, connect, noop

__all__ = ["connect", "enqueue"]

_one = noop.shard.bindings.enqueue(noop.call(1, 2, TEXT).draft())
_bare = Script("bare", _one.script.keys, _one.script.args, (), "#!lua\nreturn 1", open_ended=_one.script.open_ended)
_trip = msgspec.structs.replace(_one, script=_bare, read=int)


def enqueue(values):
    run = app._driver.blocking.run
    for _ in values:
        run(_trip)
