"""Each script of completion: called twice, with many ids, on a full server, and while its slot is migrated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from valkey.exceptions import ResponseError

from penstock.completion.bindings import DirectoryRules, contacts_scripts, directory_scripts
from penstock.completion.card import card, elements
from penstock.completion.keys import CompletionKeys
from penstock.completion.name_rules import FORMAT
from penstock.core.operations import RoundTrip
from penstock.driver.retrying import error_code
from tests.servers import Cluster, Server
from tests.slot_moves import SlotMove

DECLARED = CompletionKeys("t", "directory", "g").declared
BASE = DECLARED[0]
RULES = DirectoryRules().encode()
ANN = card("Ann", ["ann"])
BOB = card("Bob", ["bob"])
U1 = card("u1", ["u1"])
SCRIPTS = {**contacts_scripts().scripts, **directory_scripts().scripts}


def every_call() -> dict[str, tuple[Any, ...]]:
    """Valid arguments for each script."""
    return {
        "touch_recent": (RULES, 9, ANN),
        "touch_often": ("p", 1, RULES, 9, ANN),
        "remove_contact": ("p", 1, RULES, ANN),
        "find_contacts": (RULES, 0, 9, "", "", "", ""),
        "save": (RULES, 0, ANN, "", "", "", "=data", BOB, "u1", U1, "=5", ""),
        "remove": ("p", 1, RULES, "u1", U1, "Ann", ANN),
        "change_ids": ("p", 1, RULES, "u1", U1, "+2", "=data", "Ann", ANN, "=3", "="),
        "save_rules": (RULES,),
        "begin_changes": (RULES, "u2", BOB),
        "end_changes": (RULES, "u2", BOB),
        "add_elements": (RULES, 1, b"cy\0Cy"),
        "remove_elements": ("p", 1, RULES, 1, b"cy\0Cy"),
        "change_elements": ("p", 1, RULES, elements(ANN, "")[0], "+3", "=data"),
        "look_up": (RULES, elements(ANN, "")[0]),
        "heaviest": (RULES, 9, 0, 0, "", "", "", ""),
        "similar": (RULES, 9, 1, "a", "n", "m"),
        "find_id": (RULES, "u1", ANN),
        "page": (RULES, "[", "(\xff", 9),
        "find": (RULES, 9, "", 0, "", "a", "", "\1a", "b", "", "\1b"),
        "counts": (RULES, "", "", "", "", "a", "", ""),
        "delete_if_empty": (RULES,),
    }


def test_every_script_is_called_here():
    assert every_call().keys() == SCRIPTS.keys()


def round_trip(name: str, *args: Any) -> RoundTrip[Any]:
    return RoundTrip(SCRIPTS[name], DECLARED, args or every_call()[name], lambda reply: reply)


def run(client: Any, name: str, *args: Any) -> Any:
    call = round_trip(name, *args)
    return client.eval(call.script.source, len(call.keys), *call.keys, *call.args)


def dump(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*") if b"replay" not in key}


@pytest.fixture
def client(script_server: Server) -> Any:
    script_server.client.flushall()
    return script_server.client


# --- called twice ---


@pytest.mark.parametrize(
    "before", [[], ["save"], ["save", "change_ids", "add_elements", "touch_often", "touch_recent"]]
)
@pytest.mark.parametrize("name", sorted(every_call()))
def test_a_repeated_call_answers_the_same_and_changes_nothing(client: Any, before: list[str], name: str):
    for number, other in enumerate(before):
        args = every_call()[other]
        run(client, other, *(("q", number, *args[2:]) if args[0] == "p" else args))
    first = run(client, name)
    left = dump(client)
    again = run(client, name)
    assert dump(client) == left
    assert again == first or (name, again) == ("add_elements", 0)  # the second call adds no name


def test_a_call_with_the_next_number_is_a_new_call(client: Any):
    run(client, "save")
    assert run(client, "remove") == [2, 2]
    run(client, "save")
    assert run(client, "remove", "p", 2, *every_call()["remove"][2:]) == [2, 2]


def test_a_script_that_finds_other_rules_only_returns_them(client: Any):
    run(client, "save")
    before = dump(client)
    for name, args in every_call().items():
        other = tuple(f"{FORMAT} other=1" if arg == RULES else arg for arg in args)
        assert run(client, name, *other) == RULES.encode(), name
    assert dump(client) == before


def test_an_emptied_directory_leaves_no_key(client: Any):
    for name in ("save", "change_ids"):
        run(client, name)
    run(client, "remove", "q", 1, *every_call()["remove"][2:])
    assert dump(client) == {}


# --- many ids ---


def test_an_id_is_found_in_every_bucket(client: Any):
    for start in range(0, 3000, 100):
        fives = [part for n in range(start, start + 100) for part in (f"Name {n}", f"u{n}", f"u{n}", "", "")]
        assert run(client, "save", RULES, 0, *fives) == [100, 100], start
        assert client.hget(DECLARED[1], "ids") == str(start + 100).encode()
    for n in range(0, 3000, 7):
        found = [b"", [f"name {n}\0Name {n}\0u{n}".encode()]]
        assert run(client, "find_id", RULES, f"u{n}", "") == [f"Name {n}".encode(), found]
    sizes = [client.hlen(key) for key in client.keys("*ids:*")]
    assert (sum(sizes), len(sizes)) == (3000, 94)
    left = [f"u{n}" for n in range(2990)]
    while left:
        done, gone = run(client, "remove", "", 0, RULES, *(part for id in left for part in (id, id)))
        assert min(50, len(left)) <= done == gone
        left = left[done:]
    assert sum(client.hlen(key) for key in client.keys("*ids:*")) == 10


# --- a full server ---

ADDS = {"touch_recent", "touch_often", "save", "save_rules", "add_elements", "change_ids", "change_elements"}


@pytest.fixture(scope="module")
def small_server() -> Iterator[Server]:
    with Server("--maxmemory-policy", "noeviction") as started:
        yield started


@pytest.mark.parametrize("name", sorted(every_call()))
def test_a_full_server_refuses_new_names_and_still_removes_old_ones(small_server: Server, name: str):
    client = small_server.client
    client.flushall()
    for other in ("save", "change_ids"):
        run(client, other)
    before = dump(client)
    client.config_set("maxmemory", 1)
    try:
        if name in ADDS:
            with pytest.raises(ResponseError) as refused:
                run(client, name)
            assert error_code(refused.value) == "OOM"
            assert dump(client) == before
        else:
            run(client, name)
    finally:
        client.config_set("maxmemory", 0)


# --- a slot that is migrated ---


@pytest.fixture
def cluster(small_cluster: Cluster) -> Cluster:
    return small_cluster


@pytest.mark.parametrize("carried", [[], ["meta"], ["names", "ids:0"], ["names", "meta", "weighed"]])
def test_no_script_is_half_done_while_its_slot_is_migrated(cluster: Cluster, carried: list[str]):
    move = SlotMove.of(cluster, BASE)
    source, target = move.nodes
    for node in cluster.nodes:
        node.client.flushall()
    for name in ("save", "change_ids", "touch_often"):
        run(source.client, name)
    with move:
        move.carry(*(BASE + name for name in carried))
        before = [dump(source.client), sorted(target.client.keys())]
        for name in every_call():
            with pytest.raises(ResponseError) as refused:
                run(source.client, name)
            assert error_code(refused.value) in {"ASK", "TRYAGAIN"}, name
        assert [dump(source.client), sorted(target.client.keys())] == before
