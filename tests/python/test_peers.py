"""The readers of POET's layer graphs and of the published instances, and what is proven on them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poet._solve import worker_path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "benchmarks" / "planner"))

import _solver  # noqa: E402
import paper_graphs  # noqa: E402
import peers  # noqa: E402

RESULTS = json.loads((paper_graphs.REFERENCE / "results.json").read_text(encoding="utf-8"))


# ---- POET's layer graphs ------------------------------------------------------------------------


@pytest.mark.parametrize("record", RESULTS["plain"], ids=lambda r: f"{r['model']}-{r['platform']}")
def test_costs_are_those_of_the_original(record: dict[str, Any]) -> None:
    model = paper_graphs.layer_graph(record["model"])
    platform = paper_graphs.PLATFORMS[record["platform"]]
    ins = sum(platform.page_in_joules(size) for size in model.sizes)
    outs = sum(platform.page_out_joules(size) for size in model.sizes)
    assert model.seconds(platform) == pytest.approx(record["seconds"], rel=1e-12)
    assert model.joules(platform) == pytest.approx(record["joules"], rel=1e-12)
    assert ins == pytest.approx(record["page_in_joules"], rel=1e-12)
    assert outs == pytest.approx(record["page_out_joules"], rel=1e-12)


@pytest.mark.parametrize("name", paper_graphs.NAMES)
def test_graphs_need_what_the_original_says(name: str) -> None:
    model = paper_graphs.layer_graph(name)
    deaths = model.deaths()
    nodes = range(len(model.sizes))
    assert model.keep_all_peak == max(
        sum(model.sizes[v] for v in nodes if v <= k <= deaths[v]) for k in nodes
    )
    assert model.least == max(
        model.sizes[k] + sum(model.sizes[v] for v in set(model.inputs[k])) for k in nodes
    )


def _solve(folder: Path, record: dict[str, Any], method: str) -> dict[str, Any]:
    model = paper_graphs.layer_graph(record["model"])
    platform = paper_graphs.PLATFORMS[record["platform"]]
    graph, profile = paper_graphs.write(folder, model, platform)
    solve = _solver.run(
        graph,
        profile,
        folder / "schedule.json",
        {
            "ram-budget": record["ram_budget_bytes"],
            "runtime-budget": repr(record["runtime_multiplier"] * model.seconds(platform)),
            "time-limit": 60,
            "method": method,
        },
    )
    assert solve.schedule is not None, solve.failure
    return solve.schedule


def _quick(record: dict[str, Any]) -> bool:
    """Linear at half of its peak takes the dense program up to half a minute."""
    return record["model"] == "transformer" or (
        record["model"] == "linear" and record["ram_budget_bytes"] != 3708
    )


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(
            record,
            marks=() if _quick(record) else pytest.mark.nightly,
            id=f"{record['model']}-{record['platform']}-{record['ram_budget_bytes']}",
        )
        for record in RESULTS["optima"]
        if record["model"] in ("linear", "transformer")
    ],
)
def test_the_dense_program_has_the_verified_optimum(
    record: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POET_SOLVER", str(worker_path()))
    schedule = _solve(tmp_path, record, "poet_paper")
    if record["joules"] is None:
        assert schedule["status"] == "infeasible"
    else:
        assert schedule["energy_joules"] == pytest.approx(record["joules"], rel=1e-9)


# ---- published instances -------------------------------------------------------------------------

RANDOM_LAYERED = {
    "graph": {"order": [0, 2, 1]},
    "nodes": [
        {"name": 0, "out_cost": 5, "duration": 1},
        {"name": 1, "out_cost": 2, "duration": 0},
        {"name": 2, "out_cost": 4, "duration": 3},
    ],
    "links": [{"0": 0, "1": 2}, {"0": 2, "1": 1}, {"0": 0, "1": 1}],
}
CHECKMATE = {
    "graph": {},
    "nodes": [
        {"id": 0, "name": "conv", "cost_ram": 5, "cost_cpu": 1, "backward": False},
        {"id": 1, "name": "conv_backward", "cost_ram": 4, "cost_cpu": 3, "backward": True},
    ],
    "links": [{"source": 0, "target": 1}],
}


def test_random_layered_graphs_run_in_the_order_of_their_file() -> None:
    instance = peers.parse("RL", RANDOM_LAYERED)
    assert instance.labels == ("0", "2", "1")
    assert instance.inputs == ((), (0,), (0, 1))
    assert (instance.peak(), instance.largest_op()) == (11, 11)
    graph = instance.graph()
    assert [op["seconds"] for op in graph["ops"]] == [0.25, 0.75, 0.0]
    assert [value["death"] for value in graph["values"]] == [2, 2, 2]


def test_graphs_of_checkmate_keep_the_order_of_their_nodes() -> None:
    instance = peers.parse("VGG", CHECKMATE)
    assert instance.peak() == 9
    assert [op["phase"] for op in instance.graph()["ops"]] == ["forward", "backward"]


def test_an_instance_in_no_running_order_is_refused() -> None:
    links = [{"source": 1, "target": 0}]
    with pytest.raises(ValueError, match="node 0 runs before its input 1"):
        peers.parse("VGG", CHECKMATE | {"links": links})


def test_times_to_solution_are_those_of_the_history_and_else_the_end() -> None:
    history = [
        {"seconds": 0.1, "bound": 1.0},
        {"seconds": 0.5, "value": 1.3, "bound": 1.0},
        {"seconds": 2.0, "value": 1.2, "bound": 1.0},
        {"seconds": 3.0, "value": 1.2, "bound": 1.1},
    ]
    told = peers.plan_times({"history": history, "solve_seconds": 4.0})
    assert (told["first_plan_s"], told["best_plan_s"]) == (0.5, 2.0)
    untold = peers.plan_times({"solve_seconds": 4.0})
    assert (untold["first_plan_s"], untold["best_plan_s"]) == (4.0, 4.0)
    assert untold["plans_told"] == "at the end"


def test_rows_of_before_times_were_kept_stay_beside_newer_ones() -> None:
    old = {"instance": "RL100", "share_percent": 90, "method": "poet", "limit_s": 60.0}
    old |= {"seconds": 59.0}
    new = old | {"build": "a", "date": "2026-01-02T00:00+00:00"}
    newer = new | {"date": "2026-01-03T00:00+00:00"}
    assert peers.merged([old, newer], [new]) == [old, newer]
    assert peers.merged([old], [old | {"status": "optimal"}]) == [old | {"status": "optimal"}]
    assert len(peers.merged([new], [new | {"limit_s": 600.0}])) == 2


def test_a_search_that_others_kept_from_the_processor_takes_no_row_s_place() -> None:
    row = {"instance": "RL100", "share_percent": 90, "method": "poet", "limit_s": 60.0}
    row |= {"build": "a", "date": "2026-01-02T00:00+00:00", "seconds": 60.0, "processor_s": 55.0}
    starved = row | {"date": "2026-01-03T00:00+00:00", "processor_s": 10.0}
    assert peers.merged([row], [starved]) == peers.merged([starved], [row]) == [row]


def test_peers_says_which_variable_names_the_instances() -> None:
    done = subprocess.run(
        [sys.executable, peers.__file__],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "POET_INSTANCES"},
    )
    assert done.returncode != 0
    assert "POET_INSTANCES" in done.stderr


def test_where_another_methods_plan_is_cheaper_counts() -> None:
    def row(method: str, extra: float | None, **more: Any) -> dict[str, Any]:
        told = {} if extra is None else {"extra_percent": extra}
        whole = {"instance": "RL100", "share_percent": 90, "method": method, "limit_s": 60.0}
        return whole | {"seconds": 3.0, "processor_s": 3.0} | told | more

    ours, theirs = row("poet", 1.0), row("moccasin", 0.9, limit_s=600.0)
    assert peers.dearer([ours, theirs]) == [("RL100", 90)]
    assert peers.dearer([ours, row("moccasin", 1.0)]) == []
    assert peers.dearer([ours, row("moccasin", None), row("checkmate", None)]) == []
    assert peers.dearer([row("poet", None), theirs]) == [("RL100", 90)]
    assert peers.dearer([ours, theirs, row("poet", 0.9, date="2026-11-27")]) == []
    assert peers.dearer([row("poet", 0.8), theirs, row("poet", 1.0, date="2026-11-27")]) != []
    starved = row("poet", 9.0, date="2026-11-28", seconds=60.0, processor_s=1.0)
    assert peers.dearer([row("poet", 0.9), theirs, starved]) == []
    assert peers.dearer([row("poet", 0.9), theirs, row("poet", 0.7, limit_s=600.0)]) == []
