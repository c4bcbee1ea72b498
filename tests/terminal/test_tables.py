"""Tables on a terminal of some width."""

import io

import pytest
from rich.console import Console

from penstock.terminal import tables

REASON = "ValueError: the card was refused by the bank, which says that it has expired"
COLUMNS = tables.headings("job:name", "task:text", "died", "reason:text")
JOB = "mail:01M8AFT4FWA13GSP3M8Q2ZNE2R"


def printed(monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, markup=False, highlight=False)
    monkeypatch.setattr(tables, "_console", lambda: console)
    tables.show_table(COLUMNS, [(JOB, "shop.charge", "3 min", REASON), (JOB, "shop.charge", "4 min", "")])
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_text_that_would_be_cut_to_a_few_words_is_below_its_row(monkeypatch: pytest.MonkeyPatch):
    head, _, first, reason, second = printed(monkeypatch, 80)
    assert head.split() == ["job", "task", "died"]
    assert first.split() == [JOB, "shop.charge", "3", "min"]
    assert (reason, second.split()[-2:]) == (f"  {REASON}", ["4", "min"])


def test_a_text_that_fits_is_in_its_column(monkeypatch: pytest.MonkeyPatch):
    head, _, first, _ = printed(monkeypatch, 160)
    assert (head.split()[-1], first.endswith(REASON)) == ("reason", True)


def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch):
    assert max(map(len, printed(monkeypatch, 60))) <= 60


def test_a_table_that_is_too_wide_is_names_with_their_values_below(monkeypatch: pytest.MonkeyPatch):
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system=None, markup=False, highlight=False)
    monkeypatch.setattr(tables, "_console", lambda: console)
    columns = tables.headings("queue:name", "ready", "oldest", "delayed", "parked", "running", "dead")
    tables.show_table(columns, [("订单", 1, "2 h", "", 4, 5, 6), ("mail", 0, "", 0, 0, 0, 0)])
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "订单",
        "  ready 1  oldest 2 h  parked 4",
        "  running 5  dead 6",
        "mail",
        "  ready 0  delayed 0  parked 0",
        "  running 0  dead 0",
    ]
