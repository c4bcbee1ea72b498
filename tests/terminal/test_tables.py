"""Tables on a terminal of some width."""

import io

import pytest
from rich.cells import cell_len
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


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, markup=False, highlight=False)
    monkeypatch.setattr(tables, "_console", lambda: console)
    return out


def lines_of(out: io.StringIO) -> list[str]:
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_an_error_of_several_lines_is_one_text_and_a_name_is_escaped(monkeypatch: pytest.MonkeyPatch):
    out = on_a_terminal(monkeypatch, 100)
    tables.show_table(tables.headings("job:name", "reason:text"), [("a\nb", "no such\r\n  part\n"), ("c", "a\x1bb")])
    assert lines_of(out)[2:] == ["a\\nb  no such part", "c     a\\x1bb"]


def test_a_long_text_below_its_row_has_two_lines(monkeypatch: pytest.MonkeyPatch):
    out = on_a_terminal(monkeypatch, 50)
    tables.show_table(tables.headings("job:name", "reason:text"), [(JOB, f"{REASON}; {REASON}")])
    assert lines_of(out)[3:] == [
        "  ValueError: the card was refused by the bank,",
        "  which says that it has expired; ValueError: …",
    ]


def test_a_column_without_values_is_left_out_where_the_table_would_not_fit(monkeypatch: pytest.MonkeyPatch):
    columns = tables.headings("job:name", "tenant:text", "worker:name", "attempts")
    for width, headings in ((80, "job  tenant  worker  attempts"), (25, "job  tenant  attempts")):
        out = on_a_terminal(monkeypatch, width)
        tables.show_table(columns, [("a", "acme", "", 1), ("b", "", "", 2)])
        assert lines_of(out)[0] == headings


def test_a_value_that_is_too_long_for_its_line_is_wrapped_between_words(monkeypatch: pytest.MonkeyPatch):
    out = on_a_terminal(monkeypatch, 40)
    columns = tables.headings("job:name", "task:name", "worker:name", "died", "reason:text")
    tables.show_table(columns, [(JOB, "shop.charge", "host-17.example.net:17", "3 min", REASON)])
    assert lines_of(out) == [
        JOB,
        "  task shop.charge",
        "  worker host-17.example.net:17",
        "  died 3 min",
        "  reason ValueError: the card was",
        "         refused by the bank, which says",
        "         that it has expired",
    ]


def test_facts_are_wrapped_between_words_and_what_is_copied_is_not(monkeypatch: pytest.MonkeyPatch):
    out = on_a_terminal(monkeypatch, 40)
    body = '{"words": "one two three four five six seven"}'
    tables.show_facts({"reason": "one\ntwo " + "three " * 6, "body": tables.cell(body)})
    assert lines_of(out) == [
        "reason  one",
        "        two three three three three",
        "        three three",
        f"body    {body}",
    ]


def test_the_line_end_in_a_name_begins_no_line(monkeypatch: pytest.MonkeyPatch):
    out = on_a_terminal(monkeypatch, 40)
    tables.show_facts({"status": "dead", "tenant": "acme\nstatus  completed"})
    assert lines_of(out)[1].startswith("tenant  acme\\nstatus")


def test_chinese_texts_are_wrapped_by_the_cells_that_they_take(monkeypatch: pytest.MonkeyPatch):
    refused = "订单被拒绝" * 12
    out = on_a_terminal(monkeypatch, 40)
    tables.show_facts({"reason": f"ValueError: {refused}"})
    tables.show_sentence(refused)
    tables.show_table(tables.headings("job:name", "reason:text"), [(JOB, refused)])
    assert max(map(cell_len, lines_of(out))) <= 40
    assert lines_of(out)[-2:] == ["  " + refused[:19], "  " + refused[19:37] + " …"]


def test_a_long_text_of_one_word_fills_two_lines(monkeypatch: pytest.MonkeyPatch):
    out = on_a_terminal(monkeypatch, 40)
    tables.show_table(tables.headings("job:name", "reason:text"), [(JOB, "x" * 90)])
    assert lines_of(out)[-2:] == ["  " + "x" * 38, "  " + "x" * 36 + " …"]


def test_facts_of_a_pipe_are_one_line_each(monkeypatch: pytest.MonkeyPatch):
    out = io.StringIO()
    monkeypatch.setattr(tables, "_console", lambda: Console(file=out, width=40, highlight=False))
    tables.show_facts({"reason": "one\ntwo " + "three " * 9})
    assert out.getvalue() == "reason  one\\ntwo " + "three " * 9 + "\n"


def test_a_sentence_is_wrapped_between_words_and_an_id_stays_whole(monkeypatch: pytest.MonkeyPatch):
    out = on_a_terminal(monkeypatch, 36)
    tables.show_sentence(f"  running  part  {JOB}  (1 of 3 have ended)")
    assert lines_of(out) == ["  running  part", f"    {JOB}", "    (1 of 3 have ended)"]
