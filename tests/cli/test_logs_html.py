"""`penstock logs count --html` writes one page that is complete in itself."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from penstock.cli.exits import Exit
from penstock.cli.logs.html_report import page
from penstock.cli.logs.log_files import LogFile
from penstock.cli.logs.report import CountOptions, CountReport
from penstock.terminal.made_up_log import generate
from tests.command_line import Run
from tests.counting.test_formats import COMBINED

ALL = "day,hour,country,host,url,status,agent,bytes"
VOID = {"meta", "line", "br"}


class Page(HTMLParser):
    """Collects the texts of a page, and fails if an element is not closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


def test_the_report_has_a_chart_or_table_for_each_table(run: Run, tmp_path: Path):
    hostile = COMBINED.replace("curl/8.5", "<script>alert(1)</script>&amp;").replace("/docs/?q=1", "/<img/src=x>")
    (tmp_path / "a<b>.log").write_text("\n".join([*generate(400), *[hostile] * 200, "no request", ""]))
    done = run("logs", "count", "a<b>.log", "--by", ALL, "--html", "report.html")
    assert (done.returncode, done.stderr) == (Exit.OK, "penstock: report written to report.html\n")
    source = (tmp_path / "report.html").read_text()
    page = Page(source)
    headings = [f"Requests by {name}" for name in ("day", "hour", "country", "host", "url", "status", "agent")]
    assert {*headings, "Requests by day and country", "Rejected lines"} <= set(page.texts)
    for expected in ("600", "<script>alert(1)</script>&amp;", "/<img/src=x>", "a<b>.log", "not in the format combined"):
        assert expected in page.texts, expected
    assert "Requests in a<b>.log" in page.texts
    bars = [attributes for tag, attributes in page.tags if tag == "rect"]
    assert len(bars) == 4 + len(set(re.findall(r"\d\d/Mar/2026:\d\d", (tmp_path / "a<b>.log").read_text())))
    # Nothing is fetched, and nothing runs.
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}
    assert not re.search(r"(?:src|href|url)\s*[=(]", re.sub(r"<td.*?</td>", "", source))
    assert "prefers-color-scheme: dark" in source
    assert "width=device-width" in source


def test_a_report_that_cannot_be_written_is_a_usage_error(run: Run, tmp_path: Path):
    (tmp_path / "a.log").write_text("\n".join(generate(20)))
    done = run("logs", "count", "a.log", "--html", "gone/report.html")
    assert (done.returncode, "gone/report.html cannot be written: No such file" in done.stderr) == (Exit.USAGE, True)


def test_a_long_chart_is_summed_up():
    hours = {f"2026-{n // 24 // 28 + 1:02}-{n // 24 % 28 + 1:02} {n % 24:02}": n for n in range(5000)}
    options = CountOptions((LogFile(Path("a.log"), "a.log", format="combined"),), by=("hour",))
    source = page(CountReport(options, lines=sum(hours.values()), tables={"hours": hours}))
    titles = re.findall(r"<title>[^<]*: ([\d,]+)</title>", source)
    assert len(titles) <= 400
    assert sum(int(title.replace(",", "")) for title in titles) == sum(hours.values())


def test_an_empty_report_is_a_page():
    options = CountOptions((LogFile(Path("a.log"), "a.log", format="any"),))
    Page(page(CountReport(options, tables={"days": {}}, fault="a.log is damaged")))


def test_the_report_has_the_notes_that_the_command_prints(run: Run, tmp_path: Path):
    requests = [*generate(50)]
    (tmp_path / "a.log").write_text("\n".join([*requests, ""]))
    (tmp_path / "b.log").write_text("\n".join([*(f"2026-03-02T10:05:03Z stdout F {line}" for line in requests), ""]))
    (tmp_path / "error.log").write_text("broken\n" * 3)
    done = run("logs", "count", ".", "--html", "report.html")
    notes = ["error.log: all 3 lines rejected", "b.log is in the format cri+combined, and 1 other file in combined"]
    assert done.stderr.splitlines()[1:] == [f"penstock: {text}" for text in notes]
    texts = Page((tmp_path / "report.html").read_text()).texts
    assert {"Notes", *notes} <= set(texts)


def test_the_report_names_copies_unfinished_lines_directives_and_deaths():
    options = CountOptions((LogFile(Path("a.log"), "a.log", format="combined"),), by=("day",))
    report = CountReport(
        options,
        lines=5,
        directives=2,
        tables={"days": {"2026-03-02": 3}},
        deaths=2,
        seconds=4.0,
        copies={f"<{n}>.log": "a.log" for n in range(60)},
        held_back={"a.log": 7},
    )
    texts = Page(page(report)).texts
    assert "same content as a.log: <0>.log not counted again" in texts
    assert "and 12 more" in texts
    few = Page(page(replace(report, copies={}))).texts
    assert "a.log: 7 bytes of an unfinished line not counted (--final)" in few
    assert "2 processes died and were restarted; the counts are exact nevertheless" in few
    assert few[few.index("directives") + 1] == "2"
    assert few[few.index("counted in") + 1] == "4.0 s"
    assert "Not complete" in Page(page(replace(report, fault="a.log is damaged"))).texts
    empty = replace(report, lines=2, directives=0, copies={}, tables={})
    assert "no line is in a format that is known: see --format" not in Page(page(empty)).texts
    assert "no line is in a format that is known: see --format" in Page(page(replace(empty, rejected=2))).texts
