"""Parties of a barrier are killed and frozen while they wait, before the last one arrives and after."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Barrier, Penstock
from penstock.errors import BarrierBroken
from tests.servers import Server, eventually
from tests.speed import scaled

PROCESS = Path(__file__).with_name("barrier_process.py")
LEASE = 2.0

Party = subprocess.Popen[str]
Start = Callable[..., Party]


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def app(start: Callable[..., Server]) -> Iterator[Penstock]:
    with Penstock(start().address) as made:
        yield made


@pytest.fixture
def party(app: Penstock, face: str) -> Iterator[Start]:
    """Starts a party in a process of its own, and returns when it waits."""
    running: list[Party] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def begin(parties: int, rounds: int = 2) -> Party:
        waiting = app.barrier("chaos", parties=parties).info().waiting
        words = [face, str(app._driver.connector.address), str(parties), str(LEASE), str(rounds)]
        running.append(
            subprocess.Popen([sys.executable, str(PROCESS), *words], env=environment, stdout=subprocess.PIPE, text=True)
        )
        eventually(lambda: app.barrier("chaos", parties=parties).info().waiting > waiting)
        return running[-1]

    yield begin
    for one in running:
        one.kill()
        one.communicate()


def report(party: Party) -> str:
    """How the present meeting of a party ends."""
    assert party.stdout is not None
    return party.stdout.readline().strip()


def barrier_of(app: Penstock, parties: int) -> Barrier:
    return app.barrier("chaos", parties=parties, lease=LEASE)


def test_a_killed_party_breaks_the_meeting_of_those_that_wait(app: Penstock, party: Start):
    others, killed = [party(4) for _ in range(2)], party(4)
    began = time.monotonic()
    killed.kill()
    expected = f"broken barrier 'chaos' is broken: process {killed.pid} on "
    for other in others:
        assert report(other).startswith(expected)
    # The others look after half a lease. Then the party has five seconds, in case it has only lost its connection.
    assert time.monotonic() - began < scaled(LEASE + 6)
    eventually(lambda: barrier_of(app, 4).info().waiting == 2)  # they wait again


def test_a_frozen_party_breaks_the_meeting_and_hears_of_it_when_it_is_thawed(app: Penstock, party: Start):
    other, frozen = party(3), party(3)
    frozen.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    expected = f"broken barrier 'chaos' is broken: process {frozen.pid} on "
    assert report(other).startswith(expected)
    assert time.monotonic() - began < scaled(2 * LEASE + 3)
    frozen.send_signal(signal.SIGCONT)
    assert report(frozen).startswith(expected)
    eventually(lambda: barrier_of(app, 3).info().waiting == 2)
    assert barrier_of(app, 3).wait(scaled(10)).index == 2
    assert sorted([report(other), report(frozen)]) == ["passed 0", "passed 1"]


def test_nobody_passes_if_a_party_has_died_when_the_last_arrives(app: Penstock, party: Start):
    other, killed = party(3), party(3)
    killed.kill()
    killed.wait()
    began = time.monotonic()
    with pytest.raises(BarrierBroken, match=f"process {killed.pid} on .+ died"):
        barrier_of(app, 3).wait()
    assert "died" in report(other)
    assert time.monotonic() - began < scaled(7)


def test_a_party_that_is_frozen_for_less_than_its_lease_passes_with_the_others(app: Penstock, party: Start):
    other, frozen = party(3), party(3)
    frozen.send_signal(signal.SIGSTOP)
    passed = barrier_of(app, 3).wait(scaled(10))
    assert (passed.index, report(other)) == (2, "passed 0")
    time.sleep(2 * LEASE)  # the others are in the next meeting
    frozen.send_signal(signal.SIGCONT)
    assert report(frozen) == "passed 1"


def test_a_party_whose_replacement_comes_in_time_breaks_one_meeting_only(app: Penstock, party: Start):
    other, killed = party(3), party(3)
    killed.kill()
    killed.wait()
    replacement = party(3)
    assert "died" in report(other)
    if "died" not in report(replacement):
        pytest.fail("the replacement passed a meeting in which a party had died")
    eventually(lambda: barrier_of(app, 3).info().waiting == 2)
    assert barrier_of(app, 3).wait(scaled(10)).index == 2
    assert sorted([report(other), report(replacement)]) == ["passed 0", "passed 1"]
