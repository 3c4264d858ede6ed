"""The paper's figures and tables: what they are made of, and that the page is that of the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import poet
from paper import cells, chains, figures, page, published, run, sizes
from paper.cells import PAGE, RECOMPUTE, TOGETHER, Cell
from paper.store import Store

DATA = Path(run.__file__).parents[1] / "data" / "paper.json"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The smallest network on the m4, measured."""
    store = Store(tmp_path_factory.mktemp("paper") / "paper.json", "this build")
    for method in (RECOMPUTE, PAGE, TOGETHER, "pofo", "capuchin"):
        cell = Cell("linear", "m4", 50, 1.5, method)
        store.measured(cells.KIND, cell.key, lambda cell=cell: cells.measure(cell, 1.0, store))
    return store


def row(store: Store, method: str) -> dict[str, Any]:
    return store.measured(cells.KIND, Cell("linear", "m4", 50, 1.5, method).key, dict)


# ---- plans -------------------------------------------------------------------------------------


def test_a_row_holds_the_plan_that_its_figures_are_of(small: Store) -> None:
    found = row(small, TOGETHER)
    graph, plain = cells.step_of("linear", "m4", "paper")
    cost = poet._C.simulate(graph, cells.schedule_of(found), cells.device_of("m4", "paper"))
    assert cost.peak_bytes == found["peak_bytes"] <= found["ram_bytes"] < plain.peak_bytes
    assert cost.energy_joules == pytest.approx(found["joules"], rel=1e-8)
    assert cells.extra(found) > 0 and found["plain_joules"] == pytest.approx(plain.energy_joules)
    assert cells.line(found).startswith("linear on m4 at 50 % x1.5, poet: ")


def test_recomputing_and_paging_together_are_no_worse_than_alone(small: Store) -> None:
    together = row(small, TOGETHER)["joules"]
    for method in (RECOMPUTE, PAGE):
        alone = row(small, method)
        assert alone["joules"] >= together * (1 - 1e-8)
        paged, recomputed = alone["page_outs"], alone["recomputed_ops"]
        assert (paged == 0 < recomputed) if method == RECOMPUTE else (recomputed == 0 < paged)


def test_searches_begin_with_plans_of_poet_alone_that_are_allowed(small: Store) -> None:
    def starts(**changes: Any) -> int:
        asked = {"model": "linear", "platform": "m4", "ram": 90, "runtime": 3.0} | changes
        return len(list(cells.starts_of(Cell(**{"method": TOGETHER} | asked), small)))

    assert starts() == 3
    assert starts(method=RECOMPUTE) == starts(method=PAGE) == 1
    assert starts(method="pofo") == starts(ram=44) == starts(platform="m0") == 0
    assert starts(minimize="time") == starts(cost_model="device") == 0


def test_a_better_plan_of_another_method_is_counted(tmp_path: Path) -> None:
    store = Store(tmp_path / "paper.json", "x")

    def add(method: str, ram: int, joules: float | None) -> None:
        found = {} if joules is None else {"joules": joules}
        key = Cell("linear", "m4", ram, 1.5, method).key
        store.measured(cells.KIND, key, lambda: {"status": "feasible"} | found)

    for ram, ours, theirs in ((50, 2.0, 1.0), (60, 1.0, 1.0), (70, None, 1.0), (80, 1.0, None)):
        add(TOGETHER, ram, ours)
        add("dtr", ram, theirs)
    add(RECOMPUTE, 60, 0.5)  # poet's own
    assert [other["key"]["ram"] for _, other in run.beaten(store)] == [50, 70]
    assert run.values(tmp_path / "paper.json") == {run.BOUND: 2, run.CHAINS: 0}


def test_a_chain_on_which_revolve_is_better_is_counted() -> None:
    def row(layers: int, method: str, extra: float | None) -> dict[str, Any]:
        key = {"layers": layers, "units": 4, "method": method}
        return {"key": key} | ({} if extra is None else {"extra": extra})

    pairs = ((8, 0.3, 0.3), (16, 0.7, 0.62), (32, 1.1, 1.2), (64, None, 1.9))
    rows = [
        row(layers, method, extra)
        for layers, ours, theirs in pairs
        for method, extra in (("revolve", theirs), ("poet", ours))
    ]
    assert [other["key"]["layers"] for _, other in chains.beaten(rows)] == [16, 64]


def test_pofo_is_compared_at_its_peak_and_below() -> None:
    cell = cells.pofo_cells()[0]
    assert cells.beside_pofo({"key": cell.key, "status": "infeasible"}) is None
    pair = cells.beside_pofo({"key": cell.key, "joules": 1.0, "peak_bytes": 1_000_000})
    assert pair is not None and [each.ram for each in pair] == [917_000, 1_000_000]


def test_every_figure_has_its_cells_once() -> None:
    asked = run.plan_cells()
    assert len(asked) == len(set(asked))
    for figure in (cells.figure3(), cells.figure4(), cells.figure5(), [cells.figure2()]):
        assert set(figure) <= set(asked)
    assert len(run.plan_cells(quick=True)) < len(asked) / 5


# ---- chains and sizes --------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [8, 16])
def test_a_chain_in_its_least_memory_recomputes_a_quadratic_number_of_layers(layers: int) -> None:
    found = chains.measure(layers, 3, "poet", 5.0)
    # From the input each time; the last layer's output and the input's neighbour are there.
    assert found["recomputed_ops"] == (layers - 1) * (layers - 2) // 2
    assert found["extra"] == pytest.approx(found["recomputed_ops"] / (3 * layers))
    assert chains.measure(layers, 4, "revolve", 5.0)["extra"] < found["extra"]


def test_the_power_of_a_power_law_is_found() -> None:
    rows = [
        {"key": {"layers": n, "units": 3}, "joules": 0.1 * n**1.5, "extra": 1.0}
        for n in chains.LENGTHS
    ]
    best = chains.least_found(rows)
    assert chains.exponent(chains.series(best, lambda _: 3)) == pytest.approx(1.5)
    assert chains.last_exponent(rows) == pytest.approx(1.5)
    assert chains.series(best, lambda _: 4) == []


def test_a_chain_that_trains_replays_what_is_planned() -> None:
    found = chains.measure_live(4, 2, 1.0)
    assert found["followed_steps"] > 0
    assert found["replayed_ops"] == found["planned_ops"] > 0
    assert found["replay_seconds"] > 0


def test_a_plan_is_far_smaller_than_its_json() -> None:
    found = sizes.measure("linear", "m4", 2.0)
    assert 0 < 10 * found["plan_bytes"] < found["json_bytes"]
    assert found["share"] == sizes.SHARES[0]


# ---- data and page -----------------------------------------------------------------------------


def test_rows_are_measured_once_a_build(tmp_path: Path) -> None:
    path = tmp_path / "paper.json"
    calls: list[str] = []

    def measure() -> dict[str, Any]:
        calls.append("x")
        return {"joules": 1 / 3}

    for build in ("a", "a", "b"):
        found = Store(path, build).measured("plan", {"ram": 1}, measure)
    assert len(calls) == 2 and found["joules"] == 0.333333333
    assert json.loads(path.read_text(encoding="utf-8"))["rows"] == [found]
    drawing = Store(path, None)
    assert drawing.measured("plan", {"ram": 1}, measure) == found
    with pytest.raises(KeyError, match="not measured yet"):
        drawing.measured("plan", {"ram": 2}, measure)
    drawing.keep_only([])
    assert Store(path, "b").find("plan", {"ram": 1}) is None


def test_a_run_goes_on_where_the_last_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = [Cell("linear", "m4", 90, 1.5, method) for method in ("dtr", "pofo")]
    monkeypatch.setattr(run, "plan_cells", lambda quick: tiny)
    for module, name in ((chains, "keys"), (chains, "live_keys"), (sizes, "keys")):
        monkeypatch.setattr(module, name, lambda *_: [])
    pofo = Cell("linear", "jetsontx2", 70, None, "pofo", "time")
    monkeypatch.setattr(cells, "pofo_cells", lambda quick: [pofo])
    path = tmp_path / "paper.json"
    run.measure_all(path, 1.0)
    told = capsys.readouterr().err.splitlines()
    rows = Store(path, None).of_kind(cells.KIND)
    assert len(told) == len(rows) == 5 and told[-1].startswith("[5/5] linear on jetsontx2")
    monkeypatch.setattr(cells, "plan", None)  # nothing is planned again
    run.measure_all(path, 1.0)
    assert capsys.readouterr().err.splitlines() == told
    assert Store(path, None).of_kind(cells.KIND) == rows


def test_the_page_is_that_of_the_data() -> None:
    text = page.page(Store(DATA, None))
    assert run.PAGE.read_text(encoding="utf-8") == text
    for heading in ("Table 1", "Table 2", "Table 3", *(f"Figure {n}" for n in range(1, 6))):
        assert f"\n## {heading}\n" in text
    for start in ("- Published [", "- Here: ", "- The difference: "):
        assert text.count(f"\n{start}") == len(published.PUBLISHED)
    for claim in published.PUBLISHED.values():
        assert claim.claim in text and claim.source in published.SOURCES
    assert [name for name in poet.preset_names() if f"\n| {name} |" not in text] == []


def test_the_tables_have_as_many_columns_in_each_row() -> None:
    widths: list[set[int]] = [set()]
    for line in page.page(Store(DATA, None)).splitlines():
        if line.startswith("|"):
            widths[-1].add(line.count("|"))
        elif widths[-1]:
            widths.append(set())
    assert all(len(width) <= 1 for width in widths) and len(widths) > 8


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    paths = figures.write(Store(DATA, None), tmp_path)
    drawn = DATA.parents[1] / "figures"
    assert len(paths) == 6
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert (drawn / path.name).is_file() and f"figures/{path.name}" in run.PAGE.read_text()
