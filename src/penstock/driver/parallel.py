"""Sends many script calls together, in one pipeline to each node.

A node that does not answer should not delay the calls to the others. On asyncio, all nodes are served side by side. A
blocking caller serves one after another: nodes that were silent lately, and nodes that have to be looked up, come last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from penstock.core.idempotency import IdempotencyKey, KeyPool
from penstock.core.operations import RoundTrip
from penstock.core.slots import Node
from penstock.driver.connector import Command
from penstock.driver.face import Face
from penstock.driver.first_attempt import numbered_arguments
from penstock.driver.retrying import NOSCRIPT, error_code
from penstock.driver.route import Route

R = TypeVar("R")


def number_calls(
    round_trips: Sequence[RoundTrip[Any]], pool: KeyPool
) -> tuple[list[RoundTrip[Any]], list[IdempotencyKey]]:
    """The calls with idempotency keys, and these keys. A call that is sent again alone keeps its key."""
    calls, keys = list[RoundTrip[Any]](), list[IdempotencyKey]()
    for one in round_trips:
        args, key = numbered_arguments(one, pool)
        calls.append(one if key is None else msgspec.structs.replace(one, args=args))
        if key is not None:
            keys.append(key)
    return calls, keys


async def send_pipelines(face: Face, route: Route, round_trips: Sequence[RoundTrip[Any]]) -> dict[int, Any]:
    """The replies to the round trips, by index. A round trip that its node did not answer is missing."""
    by_node: dict[Node, list[int]] = {}
    unknown: list[int] = []
    for index, round_trip in enumerate(round_trips):
        node = route.node(round_trip.keys[0])
        (unknown if node is None else by_node.setdefault(node, [])).append(index)
    works = [_send_to_node(face, node, round_trips, by_node[node]) for node in sorted(by_node, key=route.hung_up_at)]
    if unknown:
        works.append(_look_up_and_send(face, round_trips, unknown))
    return _union(await face.gather(works))


async def _look_up_and_send(
    face: Face, round_trips: Sequence[RoundTrip[Any]], indexes: Sequence[int]
) -> dict[int, Any]:
    by_node: dict[Node, list[int]] = {}
    with contextlib.suppress(Exception):
        for index in indexes:
            by_node.setdefault(await face.find_node(round_trips[index].keys[0]), []).append(index)
    return _union(await face.gather([_send_to_node(face, node, round_trips, by_node[node]) for node in by_node]))


async def _send_to_node(
    face: Face, node: Node, round_trips: Sequence[RoundTrip[Any]], indexes: Sequence[int]
) -> dict[int, Any]:
    replies: dict[int, Any] = {}
    try:
        replies |= await _send_pipeline(face, node, round_trips, indexes)
        if unknown := [index for index in indexes if error_code(replies[index]) == NOSCRIPT]:
            replies |= await _send_pipeline(face, node, round_trips, unknown, load=True)
    except Exception as error:
        await face.recover(error, round_trips[indexes[0]].keys[0], 0, node)
    return replies


async def _send_pipeline(
    face: Face, node: Node, round_trips: Sequence[RoundTrip[Any]], indexes: Sequence[int], *, load: bool = False
) -> dict[int, Any]:
    """The replies to the round trips at `indexes`. `load`: send the source of each script once."""
    commands, loaded = list[Command](), set[str]()
    for one in (round_trips[index] for index in indexes):
        with_source = load and one.script.sha not in loaded
        loaded.add(one.script.sha)
        name, text = ("EVAL", one.script.source) if with_source else ("EVALSHA", one.script.sha)
        commands.append((name, text, len(one.keys), *one.keys, *one.args))
    return dict(zip(indexes, await face.exchange(node, *commands), strict=True))


def _union(some: Sequence[dict[int, Any]]) -> dict[int, Any]:
    return {index: reply for replies in some for index, reply in replies.items()}
