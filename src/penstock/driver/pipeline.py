"""A script call inside a pipeline or MULTI of the user's own client, sent and answered with its other commands."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from penstock.core.operations import RoundTrip
from penstock.driver.library import add_command, is_cluster_pipeline, pipeline_commands

# Pipeline -> its list of commands, and the scripts loaded in it. A pipeline begins a new list after each execute().
_loaded: WeakKeyDictionary[Any, tuple[list[Any], set[str]]] = WeakKeyDictionary()


def add_to_pipeline(pipeline: Any, round_trip: RoundTrip[Any]) -> None:
    """Add a script call to a pipeline of valkey-py or redis-py, blocking or asyncio. Its execute() sends it.

    execute() returns one reply for the call. Before the first call of a script the pipeline gets a SCRIPT LOAD, which
    has a reply of its own. Without it, an EVALSHA of an unknown script would fail while EXEC executes the rest. On a
    cluster SCRIPT LOAD might go to other nodes, so each call carries its script instead.
    """
    words = (len(round_trip.keys), *round_trip.keys, *round_trip.args)
    if is_cluster_pipeline(pipeline):
        pipeline.execute_command("EVAL", round_trip.script.source, *words)
        return
    stack, loaded = _loaded.get(pipeline, (None, set()))
    commands = pipeline_commands(pipeline)
    if stack is not commands or not stack:
        stack, loaded = _loaded[pipeline] = commands, set()
    if round_trip.script.sha not in loaded:
        loaded.add(round_trip.script.sha)
        add_command(pipeline, "SCRIPT LOAD", round_trip.script.source)
    add_command(pipeline, "EVALSHA", round_trip.script.sha, *words)
