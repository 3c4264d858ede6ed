"""Pictures and traces of schedules: the clock that they are drawn by is the simulator's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_steps import chain_graph

import poet
from poet._timeline import timeline


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["blocking", "one channel", "two channels"])
def paged(request: pytest.FixtureRequest) -> poet.Schedule:
    """A plan that pages and recomputes."""
    from poet._solve import solve_on

    graph = poet.solve(model="transformer", platform="a72", graph="paper").traced_graph
    assert graph is not None
    device = poet.DeviceProfile.by_name("host").with_store(2e8, 1e8, 1e-3, 2e-3, request.param)
    schedule = solve_on(
        graph,
        device,
        ram_budget_bytes=graph.plain_peak_bytes() * 92 // 100,
        runtime_budget_seconds=None,
        minimize="energy",
        recompute=False,
        paging=True,
        away_between_steps=False,
        time_limit_s=10,
    )
    assert schedule.page_ins
    return schedule


def test_the_clock_ends_at_the_simulators_makespan(paged: poet.Schedule) -> None:
    line = timeline(paged)
    assert line.seconds == pytest.approx(paged.makespan_seconds, rel=1e-9)
    assert max(span.resident_bytes for span in line.spans) == paged.peak_bytes
    assert sum(span.kind == "page_in" for span in line.spans) == paged.page_ins


def test_a_perfetto_trace_has_a_row_for_each_kind(paged: poet.Schedule, tmp_path: Path) -> None:
    text = paged.to_perfetto(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text(encoding="utf-8") == text
    events = json.loads(text)["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    assert sum(rows[e["tid"]] == "page-in" for e in spans) == paged.page_ins
    assert max(e["ts"] + e["dur"] for e in spans) <= 1e6 * paged.makespan_seconds * (1 + 1e-9)
    memory = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    assert max(memory) == paged.peak_bytes


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_plan_is_drawn(paged: poet.Schedule, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan.{suffix}"
    figure = paged.plot(path)
    assert path.stat().st_size > 1000
    above, below = figure.axes
    labels = {text.get_text().split(" (")[0] for text in above.get_legend().get_texts()}
    assert {"compute", "page-out", "page-in"} <= labels
    assert {t.get_text() for t in below.get_legend().get_texts()} == {
        "plan",
        "plain step",
        "budget",
    }


def test_a_curve_is_drawn(tmp_path: Path) -> None:
    curve = poet.pareto(graph=chain_graph(8), points=3, time_limit_s=5)
    figure = poet.plot_pareto(curve, tmp_path / "curve.png")
    assert len(figure.axes[0].lines[0].get_xdata()) == sum(s.has_plan for s in curve)


def test_budgets_without_a_plan_are_marked_in_a_curve() -> None:
    curve = poet.pareto(graph=chain_graph(8), budgets=["20%", "70%", "100%"], time_limit_s=5)
    assert [each.has_plan for each in curve] == [False, True, True]
    (axes,) = poet.plot_pareto(curve).axes
    drawn = {line.get_label(): len(line.get_xdata()) for line in axes.lines}
    assert drawn["no plan exists"] == 1
    assert drawn["best plan found"] == 2
    assert "less of it for" in axes.get_title(loc="left")


def test_what_cannot_be_drawn_says_why(paged: poet.Schedule, tmp_path: Path) -> None:
    without = poet.solve(model="linear", graph="paper", platform="m4", ram_budget=100)
    with pytest.raises(poet.ArgumentError, match="this one is infeasible"):
        without.plot()
    paged.save(tmp_path / "plan.json")
    loaded = poet.Schedule.load(tmp_path / "plan.json")
    with pytest.raises(poet.ArgumentError, match="Pass the graph"):
        loaded.plot()
    with pytest.raises(poet.ArgumentError, match="Name the device"):
        loaded.to_perfetto(graph=paged.traced_graph)
    with pytest.raises(poet.ArgumentError, match="one with a plan"):
        poet.plot_pareto([without])
