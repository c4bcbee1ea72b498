"""A step inside a pipeline or MULTI of the user's own client: it is sent, and answered, with what else is in there."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from penstock.core.operations import RoundTrip

# Pipeline -> its list of commands, and the scripts loaded in it. Pipelines begin a new list after each execute().
_loaded: WeakKeyDictionary[Any, tuple[list[Any], set[str]]] = WeakKeyDictionary()


def add_to_pipeline(pipe: Any, step: RoundTrip[Any]) -> None:
    """Put a step into a pipeline of valkey-py or redis-py, of either face; nothing is sent before its execute().

    The replies of execute() are the user's: a step adds one, and the first use of a script one more before it,
    of SCRIPT LOAD. In a MULTI a bare EVALSHA of a script the server forgot would fail alone, and EXEC do the rest.
    On a cluster, where the load would go to other nodes, each step carries its script.
    """
    args = step.args
    if step.script.args[:2] == ("producer", "number"):
        args = ("", 0, *args[2:])  # the user's own MULTI: whether to send it again is the user's to decide
    call = (len(step.keys), *step.keys, *args)
    if any(kind.__name__ == "ClusterPipeline" for kind in type(pipe).__mro__):
        pipe.execute_command("EVAL", step.script.source, *call)
        return
    stack, loaded = _loaded.get(pipe, (None, set()))
    if stack is not pipe.command_stack or not stack:
        stack, loaded = _loaded[pipe] = pipe.command_stack, set()
    # Not execute_command: after a WATCH that would send at once.
    if step.script.sha not in loaded:
        loaded.add(step.script.sha)
        pipe.pipeline_execute_command("SCRIPT LOAD", step.script.source)
    pipe.pipeline_execute_command("EVALSHA", step.script.sha, *call)
