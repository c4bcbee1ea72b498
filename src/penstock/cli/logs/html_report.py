"""The report of `penstock logs count` as one HTML page with charts. It needs no network and no script.

The charts are SVG. The page follows the light or dark setting of the reader and fits a phone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from penstock.cli.logs.report import COUNTRY_BUCKETS, SINGULAR, TABLES, CountReport
from penstock.ops.wording import age, many, size

_WIDTH, _HEIGHT, _AXIS = 960, 240, 90
_MOST_BARS = 400
"""Bars of a chart. A longer table is summed up: a bar then stands for several of its rows."""

_MOST_NOTES = 50
"""Notes that are shown one by one: a folder may have thousands of copies."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --dim: #5d6b78; --line: #d9dfe5; --back: #f6f8fa; --card: #ffffff;
  --bar: #2a6fb8; --soft: #cfe1f3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --dim: #9aa7b3; --line: #33404d; --back: #12181f;
  --card: #1a222b; --bar: #6aa9e6; --soft: #27415c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; } h2 { font-size: 1.1rem; margin: 0 0 .75rem; }
section, .facts div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
section { padding: 1rem; margin-top: 1rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem; margin: 0; }
.facts div { padding: .6rem .9rem; } dt { color: var(--dim); font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; } svg rect { fill: var(--bar); }
svg text { fill: var(--dim); font-size: 12px; } svg line { stroke: var(--line); }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--dim); font-weight: 500; font-size: .85rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.n { text-align: right; white-space: nowrap; } .key { overflow-wrap: anywhere; min-width: 8rem; }
.key span { display: block; background: var(--soft); height: .35rem; border-radius: .2rem; margin-top: .15rem; }
ul { margin: 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
small, .dim { color: var(--dim); } summary { cursor: pointer; color: var(--dim); margin-top: .75rem; }
@media (max-width: 40rem) { svg text { font-size: 24px; } .share { display: none; } th, td { padding: .3rem .25rem; }
  .facts { grid-template-columns: 1fr 1fr; } .key { min-width: 6rem; } td { font-size: .9rem; } }
"""


def write_html(report: CountReport, path: Path) -> None:
    """Write the report. Raises OSError."""
    path.write_text(page(report), encoding="utf-8", errors="replace")


def page(report: CountReport) -> str:
    """The whole document."""
    names = [log.name for log in report.options.logs]
    title = f"Requests in {', '.join(names[:3])}" + (f" and {many(len(names) - 3, 'more file')}" if names[3:] else "")
    sections = "".join(_section(report, table) for table in TABLES if report.tables.get(table))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body><main><h1>{escape(title)}</h1>\n"
        f"{_facts(report)}{_notes(report)}{sections}{_rejected(report)}</main></body></html>\n"
    )


def _facts(report: CountReport) -> str:
    facts = {"requests": f"{report.counted:,}", "rejected lines": f"{report.rejected:,}"}
    if report.bytes is not None:
        facts["bytes"] = size(report.bytes)
    facts["host"] = report.options.source
    facts["files"] = f"{len(report.options.logs):,}"
    facts["format"] = ", ".join(format for format in report.formats if format != "any") or "unknown"
    days = sorted(report.tables.get("days", {}))
    if report.directives:
        facts["directives"] = f"{report.directives:,}"
    if report.joined:
        facts["joined pieces"] = f"{report.joined:,}"
    facts["counted in"] = age(report.seconds)
    if days:
        facts["days"] = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>'


def _notes(report: CountReport) -> str:
    """The notes that the command prints on stderr."""
    failures, remarks = list(report.failures()), list(report.remarks())
    if report.deaths:
        died = many(report.deaths, "process", "processes")
        remarks.append(f"{died} died and were restarted; the counts are exact nevertheless")
    fault = f'<section role="alert"><h2>Not complete</h2>{_list(failures)}</section>\n' if failures else ""
    return fault + (f"<section><h2>Notes</h2>{_list(remarks)}</section>\n" if remarks else "")


def _list(texts: Sequence[str]) -> str:
    shown = [f"<li>{escape(text)}</li>" for text in texts[:_MOST_NOTES]]
    if more := len(texts) - len(shown):
        shown.append(f"<li>and {many(more, 'more', 'more')}</li>")
    return f"<ul>{''.join(shown)}</ul>"


def _section(report: CountReport, table: str) -> str:
    heading = f"<h2>Requests by {escape(SINGULAR[table])}</h2>"
    if table in {"days", "hours"}:
        rows = report.whole(table)
        return f"<section>{heading}{_chart(rows)}{_details(_rows(report, table, rows))}</section>\n"
    if table == "by_day":
        return f"<section>{heading}{_details(_rows(report, table, report.whole(table)))}</section>\n"
    shown, whole = report.top(table), report.whole(table)
    more = len(whole) - len(shown)
    rest = f"<small>and {many(sum(whole.values()) - sum(shown.values()), 'request')} from {many(more, 'other')}</small>"
    return f"<section>{heading}{_rows(report, table, shown)}{rest if more else ''}</section>\n"


def _details(table: str) -> str:
    return f"<details><summary>Numbers</summary>{table}</details>"


def _rows(report: CountReport, table: str, rows: Mapping[str, int]) -> str:
    sums = report.bytes_of(table)
    most = max(rows.values(), default=1)
    bytes_head = '<th class="n">bytes</th>' if sums is not None else ""
    heads = f'<th class="n">requests</th><th class="n share">share</th>{bytes_head}'
    head = f"<tr><th>{escape(SINGULAR[table])}</th>{heads}</tr>"
    cells = "".join(_cells(report, table, rows, sums, most))
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{cells}</tbody></table></div>'


def _cells(
    report: CountReport, table: str, rows: Mapping[str, int], sums: Mapping[str, int] | None, most: int
) -> Iterator[str]:
    for key, number in rows.items():
        note = (
            f" <small>{escape(COUNTRY_BUCKETS[key])}</small>" if table == "countries" and key in COUNTRY_BUCKETS else ""
        )
        bar = f'<span style="width:{100 * number / most:.1f}%"></span>'
        bytes_cell = f'<td class="n">{sums.get(key, 0):,}</td>' if sums is not None else ""
        share = f"{number / (report.counted or 1):.1%}"
        yield (
            f'<tr><td class="key">{escape(key)}{note}{bar}</td><td class="n">{number:,}</td>'
            f'<td class="n share">{share}</td>{bytes_cell}</tr>'
        )


def _chart(rows: Mapping[str, int]) -> str:
    """Bars over time, with the highest number and the first and last key as labels."""
    bars = list(_bars(list(rows.items())))
    most = max(number for _, number in bars)
    step = (_WIDTH - _AXIS) / len(bars)
    drawn = "".join(
        f'<rect x="{_AXIS + index * step:.2f}" y="{_HEIGHT - _height(number, most):.2f}" '
        f'width="{max(step * 0.85, 0.8):.2f}" height="{_height(number, most):.2f}" rx="1">'
        f"<title>{escape(key)}: {number:,}</title></rect>"
        for index, (key, number) in enumerate(bars)
    )
    first, last = escape(bars[0][0]), escape(bars[-1][0])
    ends = f'<text x="{_WIDTH}" y="{_HEIGHT + 24}" text-anchor="end">{last}</text>' if len(bars) > 1 else ""
    return (
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {_HEIGHT + 32}" role="img" '
        f'aria-label="{len(bars)} bars from {first} to {last}, at most {most:,} requests">'
        f'<line x1="{_AXIS}" x2="{_WIDTH}" y1="10" y2="10"/>'
        f'<line x1="{_AXIS}" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>'
        f'<text x="{_AXIS - 6}" y="18" text-anchor="end">{most:,}</text>'
        f'<text x="{_AXIS - 6}" y="{_HEIGHT}" text-anchor="end">0</text>{drawn}'
        f'<text x="{_AXIS}" y="{_HEIGHT + 24}">{first}</text>{ends}</svg></div>'
    )


def _height(number: int, most: int) -> float:
    return (_HEIGHT - 10) * number / most


def _bars(rows: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The rows, or if there are too many, sums of as many neighbours as it takes."""
    together = -(-len(rows) // _MOST_BARS)
    for start in range(0, len(rows), together):
        part = rows[start : start + together]
        key = part[0][0] if len(part) == 1 else f"{part[0][0]} to {part[-1][0]}"
        yield key, sum(number for _, number in part)


def _rejected(report: CountReport) -> str:
    if not report.rejected:
        return ""
    rows = "".join(
        f'<tr><td class="key">{escape(file)}</td><td class="n">{line:,}</td><td class="key">{escape(reason)}</td></tr>'
        for file, line, reason in report.rejected_lines
    )
    head = '<tr><th>file</th><th class="n">line</th><th>reason</th></tr>'
    more = report.rejected - len(report.rejected_lines)
    rest = f"<small>and {many(more, 'more line', 'more lines')}</small>" if more > 0 else ""
    return (
        f"<section><h2>Rejected lines</h2><table><thead>{head}</thead><tbody>{rows}</tbody></table>{rest}</section>\n"
    )
