"""How numbers are shown to people."""

import pytest

from penstock.ops.wording import ago, size


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (64 * 2**20, "64.0 MiB"),
        (2**30, "1.0 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_a_size_is_shown_in_powers_of_two(octets: int, text: str):
    assert size(octets) == text


@pytest.mark.parametrize(("at", "text"), [(1000.0, "0.0 s ago"), (820.0, "3 min ago"), (1007.0, "0.0 s ago")])
def test_a_moment_is_shown_by_its_age(at: float, text: str):
    assert ago(at, 1000.0) == text
