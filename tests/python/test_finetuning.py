"""The tables of fine-tuning and of claims: what they are made of."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import claims
import finetuning
import poet
import presets
from _adapters import Adapted, add_adapters


def test_adapters_change_nothing_at_first_and_are_trained_alone() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(128, 5))
    x = torch.randn(2, 3, 8, 8)
    before = net(x)
    assert add_adapters(net, 2, ()) == 1
    assert add_adapters(net, 2, ("2",)) == 1
    assert isinstance(net[0], Adapted) and isinstance(net[2], Adapted)
    assert torch.equal(net(x), before)
    graph = poet.solve(
        model=net,
        inputs=x,
        loss=lambda y: y.square().mean(),
        optimizer="sgd",
        trainable=["*.adapter_*"],
    ).traced_graph
    assert graph is not None
    written = {v for op in graph.ops if op.phase is poet.Phase.OPTIMIZER for v in op.mutates}
    sizes = sorted(graph.values[v].bytes for v in written)
    assert sizes == sorted(4 * n for n in (2 * 3 * 9, 8 * 2, 2 * 128, 5 * 2))


def test_a_row_says_what_keeping_everything_takes_and_the_least() -> None:
    graph = finetuning.recorded("linear", "whole")
    row = finetuning.measure(graph, "linear", "whole", "m4", 2.0)
    keep, least = row["keep_everything"], row["least"]
    assert row["weight_bytes"] >= 4 * 43_590
    assert 0 < least["ram_bytes"] < keep["ram_bytes"]
    assert least["joules"] >= keep["joules"] and least["seconds"] >= keep["seconds"]
    assert least["store_bytes"] > 0 and row["fits_in_ram"]
    assert "least" in finetuning.line(row)
    last = finetuning.measure(finetuning.recorded("linear", "last layer"), "linear", "", "m4", 2.0)
    assert last["keep_everything"]["joules"] < keep["joules"]


DATA = Path(finetuning.__file__).parent / "data"


def test_the_pages_are_those_of_the_data() -> None:
    rows = json.loads((DATA / "finetuning.json").read_text(encoding="utf-8"))
    cells = [json.loads(line) for line in (DATA / "presets.jsonl").open(encoding="utf-8")]
    pages = {"finetuning": finetuning.page(rows), "presets": presets.page(cells)}
    for name, page in pages.items():
        lines = [line for line in page.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
        written = DATA.parents[1] / "docs" / f"{name}.md"
        assert written.read_text(encoding="utf-8") == page
    assert "not run" not in pages["presets"]
    assert len(cells) == 8 * 5 * 5


def test_rows_that_are_known_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[tuple[str, str]] = []
    none = {"ram_bytes": None}

    def measure(graph: object, model: str, way: str, board: str, seconds: float) -> dict[str, Any]:
        measured.append((way, board))
        keep = {"ram_bytes": 1, "joules": 1.0, "seconds": 1.0}
        row = {"model": model, "way": way, "board": board, "message": "it is small"}
        row["build"] = finetuning.build()
        return row | {"keep_everything": keep, "least": none}

    monkeypatch.setattr(finetuning, "recorded", lambda model, way: way)
    monkeypatch.setattr(finetuning, "measure", measure)
    words = ["finetuning.py", "--out", str(tmp_path / "rows.json"), "--only", "bert"]
    for ways in (["whole"], ["whole", "biases"]):
        monkeypatch.setattr(sys, "argv", [*words, "--ways", *ways])
        finetuning.main()
    assert measured == [(way, b) for way in ("whole", "biases") for b in finetuning.BOARDS]
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"values": {finetuning.BOUND: 4}, "rows": 4}


def test_claims_compare_what_was_planned() -> None:
    words: dict[str, Any] = {"model": "linear", "platform": "m4", "graph": "paper"}
    roomy = claims.solved(5, **words, ram_budget="100%")
    tight = claims.solved(5, **words, ram_budget=3708)
    none = claims.solved(5, **words, ram_budget="10%")
    plain = claims.plain_of(roomy).energy_joules
    assert claims.share(roomy, "energy_joules", plain) == pytest.approx(0)
    extra = claims.share(tight, "energy_joules", plain)
    assert extra is not None and extra > 0
    assert claims.share(none, "energy_joules", plain) is None
    throughput = claims.ratio(tight, roomy)
    assert throughput is not None and throughput > 0
    assert claims.ratio(tight, none) is None
    assert claims.percent(None) == "no plan" and claims.percent(0.0123) == "+1.23 %"


def test_the_page_of_claims_is_that_of_the_data() -> None:
    data = claims.PAGE.parents[1] / "benchmarks" / "data" / "claims.json"
    rows = json.loads(data.read_text(encoding="utf-8"))
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(rows)
    assert {row["id"] for row in rows} <= {claim.__name__ for claim in claims.CLAIMS}


def test_cells_of_another_build_are_measured_again(tmp_path: Path) -> None:
    cell = {"model": "linear", "platform": "m4", "budget": "ram", "build": presets.build()}
    old = cell | {"platform": "m0", "build": "another"}
    path = tmp_path / "cells.jsonl"
    path.write_text(f'{json.dumps(cell)}\n{json.dumps(old)}\n{{"model": "li', encoding="utf-8")
    assert presets.known_cells(path) == {("linear", "m4", "ram"): cell}


def test_memory_of_training_and_of_inference() -> None:
    training, inference = claims.memory_of("linear", 2)
    assert training > 4 * 43_590 * 4 > inference > 0  # weights, gradients and Adam's two moments
    assert claims.ratio_of(10, 4)["ratio"] == 2.5
