"""Presets: real modules of the published sizes, traced, with their batch size honoured."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch

import poet
from poet._models import ModelRequest
from poet._presets import find_preset

ORIGINALS = {"linear", "vgg16", "vgg16_cifar", "resnet18", "resnet18_cifar", "resnet50", "bert"}
ORIGINALS |= {"transformer"}
QUICK = ("linear", "resnet18_cifar", "mcunet_sized")


@pytest.mark.parametrize("name", poet.preset_names())
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    preset = find_preset(name)
    with torch.device("meta"):
        module = preset.build()
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == preset.parameters
    assert preset.paper_graph == (name in ORIGINALS)


def test_resnet18_cifar_has_the_numbers_that_the_original_counts() -> None:
    module = find_preset("resnet18_cifar").build()
    running = sum(b.numel() for name, b in module.named_buffers() if "running" in name)
    assert sum(p.numel() for p in module.parameters()) + running == 248_746


@pytest.mark.parametrize("name", QUICK)
def test_a_preset_is_traced_and_its_batch_size_counts(name: str) -> None:
    one = ModelRequest(name).graph(None)
    four = ModelRequest(name, batch_size=4).graph(None)
    assert {str(op.phase) for op in one.ops} >= {"forward", "backward", "optimizer"}
    assert one.plain_peak_bytes() < four.plain_peak_bytes()
    forward = [sum(op.flops for op in g.ops if op.phase == "forward") for g in (one, four)]
    assert forward[1] == pytest.approx(4 * forward[0], rel=0.02)


def test_flops_of_the_forward_pass_are_those_of_the_layers() -> None:
    graph = ModelRequest("linear").graph(None)
    widths = (784, 10, 120, 100, 200, 10, 10)
    products = sum(2 * a * b for a, b in itertools.pairwise(widths))
    found = sum(op.flops for op in graph.ops if op.name == "aten::addmm" and op.phase == "forward")
    assert found == products


def test_what_this_process_holds_besides_is_not_the_presets() -> None:
    alone = ModelRequest("linear").graph(None).plain_peak_bytes()
    ballast = torch.zeros(10_000_000)
    assert ModelRequest("linear").graph(None).plain_peak_bytes() == alone
    del ballast


def test_optimizers_keep_their_state() -> None:
    sgd = ModelRequest("linear").graph(None)
    adam = ModelRequest("linear", optimizer="adam").graph(None)
    state = sum(v.bytes for v in adam.values if v.kind == "optimizer_state")
    assert sum(v.bytes for v in sgd.values if v.kind == "optimizer_state") == 0
    assert state >= 2 * 4 * find_preset("linear").parameters


def test_frozen_layers_have_no_gradients() -> None:
    whole = ModelRequest("linear").graph(None)
    last = ModelRequest("linear", trainable="last").graph(None)
    assert len(last) < len(whole)
    assert last.plain_peak_bytes() < whole.plain_peak_bytes()
    with pytest.raises(poet.ArgumentError, match="trainable: expected some parameters"):
        ModelRequest("linear", trainable=["nothing.*"]).graph(None)
    with pytest.raises(poet.ArgumentError, match="trainable: expected"):
        ModelRequest("linear", trainable=3).graph(None)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "4"])
def test_a_batch_size_that_makes_no_sense(size: object) -> None:
    with pytest.raises(poet.ArgumentError, match="batch_size"):
        poet.solve(model="linear", batch_size=size)  # type: ignore[arg-type]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(poet.PoetRuntimeError, match=r"pip install 'transformers"):
        find_preset("bert").build()


@pytest.mark.nightly
@pytest.mark.parametrize("name", [n for n in poet.preset_names() if n not in QUICK])
def test_every_preset_can_be_traced(name: str) -> None:
    graph = ModelRequest(name).graph(None)
    assert {str(op.phase) for op in graph.ops} >= {"forward", "backward", "optimizer"}
    assert sum(op.flops for op in graph.ops) > 6 * find_preset(name).parameters
