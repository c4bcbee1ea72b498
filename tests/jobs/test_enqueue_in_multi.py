"""An enqueue in a MULTI of the user. NOSCRIPT does not stop EXEC, so the script is loaded inside the same MULTI."""

from __future__ import annotations

from typing import Any

import pytest
from valkey.exceptions import ResponseError, WatchError

from tests.jobs.stand import Stand, record


def queue_up(pipeline: Any, stand: Stand, *, load: bool) -> None:
    """Send the commands that a driver adds to a transaction for one enqueue."""
    call = stand.bindings.enqueue(["j", record()])
    if load:
        pipeline.execute_command("SCRIPT LOAD", call.script.source)
    pipeline.execute_command("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)


def test_a_transaction_on_a_server_without_the_script_writes_everything(stand: Stand):
    stand.client.script_flush()
    with stand.client.pipeline(transaction=True) as pipeline:
        pipeline.set(stand.bindings.keys.user("mine"), 1)
        queue_up(pipeline, stand, load=True)
        pipeline.execute()
    assert stand.client.get(stand.base + "user:mine") == b"1"
    assert stand.counts() == "1 0 0 0"


def test_a_transaction_that_is_not_executed_writes_nothing(stand: Stand):
    stand.client.script_flush()
    mine = stand.bindings.keys.user("mine")
    with stand.client.pipeline(transaction=True) as pipeline:
        pipeline.watch(mine)
        stand.client.set(mine, 0)
        pipeline.multi()
        queue_up(pipeline, stand, load=True)
        with pytest.raises(WatchError):
            pipeline.execute()
    assert stand.dump() == {"user:mine": b"0"}


def test_without_the_load_half_of_the_transaction_would_be_written(stand: Stand):
    """Shows why the script is loaded: a bare EVALSHA fails, and the rest is written."""
    stand.client.script_flush()
    with stand.client.pipeline(transaction=True) as pipeline:
        pipeline.set(stand.bindings.keys.user("mine"), 1)
        queue_up(pipeline, stand, load=False)
        with pytest.raises(ResponseError, match=r"NOSCRIPT|No matching script"):
            pipeline.execute()
    assert stand.dump() == {"user:mine": b"1"}


def test_a_full_server_refuses_the_whole_transaction(stand: Stand):
    stand.client.config_set("maxmemory", 1)
    try:
        with stand.client.pipeline(transaction=True) as pipeline:
            queue_up(pipeline, stand, load=True)
            with pytest.raises(ResponseError, match=r"OOM|maxmemory"):
                pipeline.execute()
    finally:
        stand.client.config_set("maxmemory", 0)
    assert stand.dump() == {}
