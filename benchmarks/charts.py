"""Draws what `peers.py --out FILE` measured: one SVG per figure, light and dark, and the table, for the benchmark page.

    python benchmarks/charts.py FILE [PAGE]

PAGE is docs/reference/benchmarks.md if it is left out; the charts go into the folder `charts` beside it. The page keeps
its text outside of the two comments `peers: begin` and `peers: end`.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "benchmarks.md"
BETWEEN = re.compile(r"(<!-- peers: begin -->\n).*?(<!-- peers: end -->)", re.DOTALL)

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 720, 170, 90, 64, 18, 10


@dataclass(frozen=True)
class Theme:
    """Colours. The first of two series, and Penstock's bars where there is one series, have the accent."""

    name: str
    paper: str
    ink: str
    faint: str
    accent: str
    second: str
    muted: str


LIGHT = Theme("light", "#ffffff", "#1f2328", "#59636e", "#1f6feb", "#c2570c", "#9aa4af")
DARK = Theme("dark", "#0d1117", "#e6edf3", "#9198a1", "#58a6ff", "#f0883e", "#656e78")


@dataclass(frozen=True)
class Chart:
    """One figure: the columns of the table that it shows, stacked or side by side if there are two."""

    name: str
    title: str
    unit: str
    columns: tuple[str, ...]
    series: tuple[str, ...] = ()
    stacked: bool = False
    less_is_better: bool = False


CHARTS = (
    Chart("enqueue", "Enqueue, one job after another", "jobs/s", ("enqueue_per_s",)),
    Chart("bulk", "Enqueue many jobs", "jobs/s", ("bulk_per_s",)),
    Chart("drain", "Drain a queue with one worker process", "jobs/s", ("drain_per_s",)),
    Chart(
        "cpu",
        "CPU per 10,000 jobs while they are drained",
        "s",
        ("worker_cpu", "server_cpu_drain"),
        ("worker", "server"),
        stacked=True,
        less_is_better=True,
    ),
    Chart(
        "latency",
        "From enqueue to start, idle worker",
        "ms",
        ("latency_p50", "latency_p99"),
        ("p50", "p99"),
        less_is_better=True,
    ),
)


def draw(chart: Chart, rows: Sequence[tuple[str, bool, Sequence[float]]], theme: Theme) -> str:
    """The SVG. `rows`: title, whether it is Penstock, and a value for each series; the best row comes first."""
    one_series = len(chart.columns) == 1
    bars = 1 if one_series or chart.stacked else len(chart.columns)
    thick = BAR if bars == 1 else BAR * 0.75
    step = bars * thick + GAP
    height = round(TOP + len(rows) * step + 8)
    longest = max(sum(values) if chart.stacked else max(values) for _, _, values in rows) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(chart.title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="{theme.paper}"/>',
        text(12, 24, chart.title, theme.ink, 'font-size="16" font-weight="600"'),
        text(12, 44, f"{chart.unit}, {'less' if chart.less_is_better else 'more'} is better", theme.faint),
        *legend(chart, theme),
    ]
    for index, (title, is_ours, values) in enumerate(rows):
        top = TOP + index * step
        weight = 'font-weight="600" ' if is_ours else ""
        parts.append(text(LEFT - 10, top + bars * thick / 2 + 4, title, theme.ink, f'{weight}text-anchor="end"'))
        left = float(LEFT)
        for place, value in enumerate(values):
            colour = (theme.accent if is_ours else theme.muted) if one_series else (theme.accent, theme.second)[place]
            y, width = top + (0 if chart.stacked else place * thick), max(1.0, value * scale)
            parts.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{thick - 1:.1f}" fill="{colour}"/>'
            )
            if chart.stacked:
                left += width
            else:
                parts.append(text(LEFT + width + 6, y + thick - 4, short(value), theme.faint))
        if chart.stacked:
            parts.append(text(left + 6, top + thick - 4, short(sum(values)), theme.faint))
    return "\n".join([*parts, "</svg>\n"])


def legend(chart: Chart, theme: Theme) -> list[str]:
    parts: list[str] = []
    for place, name in enumerate(chart.series):
        x, colour = WIDTH - 170 + place * 80, (theme.accent, theme.second)[place]
        parts.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>')
        parts.append(text(x + 18, 44, name, theme.faint))
    return parts


def text(x: float, y: float, words: str, colour: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" {more}>{escape(words)}</text>'


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rows_of(chart: Chart, medians: dict[str, dict[str, float]], titles: dict[str, str]) -> list[tuple[str, bool, Any]]:
    found = [
        (titles[name], name.startswith("penstock"), [row[key] for key in chart.columns])
        for name, row in medians.items()
        if all(key in row for key in chart.columns)
    ]
    return sorted(found, key=lambda one: sum(one[2]), reverse=not chart.less_is_better)


def write(result: dict[str, Any], page: Path) -> None:
    """Write the charts beside the page, and table and charts into it."""
    from peers import medians, text_of

    folder = page.parent / "charts"
    folder.mkdir(exist_ok=True)
    lines = [text_of(result), ""]
    for chart in CHARTS:
        rows = rows_of(chart, medians(result), result["titles"])
        if not rows:
            continue
        for theme in (LIGHT, DARK):
            (folder / f"peers-{chart.name}-{theme.name}.svg").write_text(draw(chart, rows, theme))
        file = f"charts/peers-{chart.name}"
        lines += [
            "<picture>",
            f'<source media="(prefers-color-scheme: dark)" srcset="{file}-dark.svg">',
            f'<img alt="{escape(chart.title)}" src="{file}-light.svg">',
            "</picture>",
            "",
        ]
    new, found = BETWEEN.subn(lambda match: match[1] + "\n".join(lines) + match[2], page.read_text())
    if not found:
        raise SystemExit(f"{page} has no comments `peers: begin` and `peers: end`")
    page.write_text(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    options = parser.parse_args()
    write(json.loads(options.file.read_text()), options.page)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
