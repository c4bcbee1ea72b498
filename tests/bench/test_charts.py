"""The charts of `make bench-peers`, drawn from made-up measurements."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The modules `charts` and `peers`, which are no part of the package."""
    monkeypatch.syspath_prepend(FOLDER)
    import charts  # type: ignore[import-not-found]
    import peers  # type: ignore[import-not-found]

    yield charts, peers
    for name in ("charts", "peers"):
        sys.modules.pop(name)


def made_up() -> dict[str, Any]:
    def runs(*drains: float, **more: float) -> list[dict[str, float]]:
        common = {"enqueue_per_s": 10.0, "producer_cpu": 1.0, "server_cpu_enqueue": 1.0, "bytes_per_job": 200.0}
        loops = {"loop_before": 7.0, "loop_after": 7.5}
        cpu = {"worker_cpu": 0.25, "server_cpu_drain": 0.5}
        return [{**common, **loops, **cpu, **more, "drain_per_s": drain} for drain in drains]

    rows = {"penstock": runs(300, 100, 200, bulk_per_s=5.0), "other": runs(20, 40, 30)}
    return {
        "date": "2030-01-02",
        "pin": "split",
        "jobs": 1000,
        "rounds": 3,
        "load": [0.5, 1.0],
        "machine": "2 CPUs",
        "software": "Python 3.11",
        "versions": {"penstock": "1.0", "other": "2.0"},
        "titles": {"penstock": "penstock", "other": "o<th>er"},
        "rows": rows,
    }


def test_the_table_shows_medians_conditions_and_the_calibration(tools: Any):
    _, peers = tools
    text = peers.text_of(made_up())
    ours, theirs = (line for line in text.splitlines() if line.startswith(("| penstock", "| o<th>er")))
    assert "| 200 |" in ours
    assert "| 30.00 |" in theirs
    assert "| 5.00 |" in ours
    assert "2030-01-02, --pin split, 1,000 jobs, medians of 3; 2 CPUs, Python 3.11" in text
    assert "7.0 to 7.5 ms" in text


def test_a_row_has_the_version_of_its_library_and_the_yardstick_has_none(tools: Any):
    _, peers = tools
    titles = {"evalsha": "bare EVALSHA", "penstock_threads": "penstock, threads"}
    result = {"titles": titles, "versions": dict.fromkeys(titles, "1.0")}
    assert [peers.label(result, name) for name in titles] == ["bare EVALSHA", "penstock 1.0, threads"]


def test_each_figure_that_was_measured_gets_a_chart_in_both_themes(tools: Any, tmp_path: Path):
    charts, _ = tools
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers: begin -->\nold\n<!-- peers: end -->\nafter\n")
    for _ in range(2):  # a second run replaces the first
        charts.write(made_up(), page)
    text = page.read_text()
    assert text.startswith("before\n<!-- peers: begin -->\n2030-01-02")
    assert text.endswith("<!-- peers: end -->\nafter\n")
    assert "old" not in text
    files = {file.name for file in (tmp_path / "charts").iterdir()}
    names = ("enqueue", "bulk", "drain", "cpu")
    assert files == {f"peers-{name}-{theme}.svg" for name in names for theme in ("light", "dark")}
    assert all(f"charts/{file}" in text for file in files)
    for file in files:
        svg = ElementTree.fromstring((tmp_path / "charts" / file).read_text())
        assert float(svg.get("height") or 0) > 0


def test_the_best_row_comes_first_and_bars_have_the_lengths_of_their_values(tools: Any):
    charts, peers = tools
    by_name = {chart.name: chart for chart in charts.CHARTS}
    result = made_up()
    rows = charts.rows_of(by_name["drain"], peers.medians(result), result["titles"])
    assert rows == [("penstock", True, [200.0]), ("o<th>er", False, [30.0])]
    svg = ElementTree.fromstring(charts.draw(by_name["drain"], rows, charts.DARK))
    space = "{http://www.w3.org/2000/svg}"
    _, long, short = svg.findall(f"{space}rect")
    assert float(short.get("width") or 0) / float(long.get("width") or 1) == pytest.approx(0.15, abs=0.01)
    assert [one.text for one in svg.findall(f"{space}text")][-2:] == ["o<th>er", "30"]


def test_a_page_without_the_comments_is_left_alone(tools: Any, tmp_path: Path):
    charts, _ = tools
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(SystemExit, match="has no comments"):
        charts.write(made_up(), page)
    assert page.read_text() == "nothing here\n"


def test_a_row_during_which_the_machine_changed_is_measured_again(tools: Any, monkeypatch: pytest.MonkeyPatch):
    _, peers = tools
    loops = iter([10.0, 15.0, 10.0, 11.0])
    monkeypatch.setattr(peers, "calibrate", lambda: next(loops))
    rows = iter([{"a": 1.0}, {"a": 2.0}])
    assert peers.steady(lambda: next(rows)) == {"a": 2.0, "loop_before": 10.0, "loop_after": 11.0}
    assert json.dumps(made_up())
