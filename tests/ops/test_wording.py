"""How numbers are shown to people."""

import pytest

from penstock.ops.wording import ago, exactly, size


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.025, "0.025 s"),
        (1.0, "1 s"),
        (150.0, "150 s"),
        (600, "10 min"),
        (60 * 3600.0, "60 h"),
        (30 * 86400, "30 d"),
        (1234567.0, "1,234,567 s"),
    ],
)
def test_a_period_of_a_limit_is_not_rounded(seconds: float, text: str):
    assert exactly(seconds) == text
