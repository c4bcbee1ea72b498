"""Ids sort by time, and none is made twice: not within a millisecond, and not while the clock goes back."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.ids import _Minter, packed_id, text_of_id


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Milliseconds since 1970, in a list of one."""
    now = [1_772_445_903_000]
    monkeypatch.setattr("penstock.core.ids.time.time_ns", lambda: now[0] * 1_000_000)
    return now


def test_ids_rise_within_a_millisecond_and_while_the_clock_goes_back(clock: list[int]):
    mint = _Minter()
    ids = [mint() for _ in range(3000)]
    clock[0] -= 1000
    ids += [mint() for _ in range(3000)]
    clock[0] += 1001
    ids += [mint() for _ in range(3000)]
    assert ids == sorted(set(ids))
    assert {len(one) for one in ids} == {26}
    assert [text_of_id(packed) for one in ids if isinstance(packed := packed_id(one), bytes)] == ids


def test_ids_rise_when_a_millisecond_has_no_more(clock: list[int]):
    mint = _Minter()
    ids = [mint()]
    mint._low = (1 << 20) - 3
    ids += [mint() for _ in range(6)]
    clock[0] += 1
    ids += [mint() for _ in range(6)]
    assert ids == sorted(set(ids))


def test_threads_make_different_ids(clock: list[int]):
    mint = _Minter()
    with ThreadPoolExecutor(8) as threads:
        ids = [one for made in threads.map(lambda _: [mint() for _ in range(500)], range(8)) for one in made]
    assert len(set(ids)) == len(ids)


def test_a_forked_child_makes_other_ids_in_the_same_millisecond():
    code = """if True:
        import os, time
        from penstock.core.ids import mint_id
        time.time_ns = lambda: 1_772_445_903_000_000_000
        mint_id()
        child = os.fork()
        made = mint_id()
        if child:
            os.waitpid(child, 0)
        print(made, flush=True)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.split()
    assert first != second
