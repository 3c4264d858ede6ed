"""The networks that Coop is measured on, and the script that does it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path += [str(REPOSITORY / "benchmarks"), str(REPOSITORY / "benchmarks" / "planner")]

pytest.importorskip("monai")
pytest.importorskip("transformers")

import coop  # noqa: E402
import graphs  # noqa: E402
from _coop_networks import COOP_NETWORKS  # noqa: E402

import poet  # noqa: E402
from _data import load  # noqa: E402

# Published counts with 1,000 classes: 25,557,032 (MONAI's shortcuts have 3,840 biases besides) and,
# without the auxiliary classifier, 23,834,568.
_PARAMETERS = {
    "coop_resnet50": 25_557_032 + 3_840 - 990 * 2049,
    "coop_inception_v3": 23_834_568 - 990 * 2049,
}


def test_there_are_eight() -> None:
    assert len(COOP_NETWORKS) == 8
    assert set(COOP_NETWORKS) <= set(graphs.NAMES)


@pytest.mark.parametrize("name", COOP_NETWORKS)
def test_each_trains(name: str) -> None:
    parts = COOP_NETWORKS[name]
    torch.manual_seed(0)
    model = parts.build()
    count = sum(p.numel() for p in model.parameters())
    assert count == _PARAMETERS.get(name, count)
    loss = parts.loss(model, *next(parts.batches(torch.Generator().manual_seed(1))))
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    assert all(p.grad is not None for n, p in model.named_parameters() if "ways" not in n)


def test_a_row_has_what_each_method_needs_and_takes() -> None:
    net = torch.nn.Sequential(
        *[m for _ in range(8) for m in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
    )

    def train_step(x: torch.Tensor) -> None:
        net.zero_grad()
        net(x).square().mean().backward()

    graph = poet.trace(train_step, torch.ones(256, 32))
    fixed = 2 * sum(p.nbytes for p in net.parameters()) + graph.base_bytes
    step = graphs.TracedStep("chain", Path(), fixed, graph)
    rows = [coop.measure(step, method, 2.0) for method in ("dtr_placed", "coop", "poet")]
    for row in rows:
        assert 0 < row["least_bytes"] < row["plain_peak_bytes"]
        assert row["method"] in coop.line(row)
    extra = [row["at_0.5"]["extra_percent"] for row in rows]
    assert extra[2] is not None
    assert 0 < extra[2] <= min(each for each in extra if each is not None)
    assert coop.wins(rows) == (rows[1]["least_bytes"] <= rows[0]["least_bytes"])
    assert coop.slack_of(step.budget(0.5), step) == pytest.approx(0.5, abs=1e-3)


def test_the_page_has_the_figures_that_were_measured() -> None:
    record = load("coop")
    assert coop.PAGE.read_text(encoding="utf-8") == coop.page(record)
    by = {(row["network"], row["method"]): row for row in record["rows"]}
    placed, ours = by["coop_gpt", "dtr_placed"], by["coop_gpt", "coop"]
    assert set(COOP_NETWORKS) == {name for name, _ in by}
    free = coop.pairs([placed, ours], "at_0.5", "free_percent")
    assert free == [(placed["at_0.5"]["free_percent"], ours["at_0.5"]["free_percent"])]
    assert coop.free_ratio([placed, ours]) == free[0][1] / free[0][0]
    assert coop.pairs([placed], "least_bytes") == []
    assert coop.free_percent("fragmentation of the policy's memory: 4.8 % on average, 9 %") == 4.8
    assert coop.free_percent("") is None
