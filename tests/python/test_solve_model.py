"""poet.solve(model=...): what a model may be; nothing of a module is changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poet
from poet._budgets import format_bytes

LABELS = torch.tensor([0, 1, 2, 3])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(8 * 36, 4),
    )  # fmt: skip


def loss(output: Tensor) -> Tensor:
    return F.cross_entropy(output, LABELS)


def bits(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[bytes]:
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    tensors += [p.grad for p in module.parameters() if p.grad is not None]
    for entries in optimizer.state.values():
        tensors += [v for v in entries.values() if isinstance(v, Tensor)]
    found = [t.detach().numpy().tobytes() for t in tensors]
    found.append(torch.get_rng_state().numpy().tobytes())
    found.append(repr(random.getstate()).encode())
    found.append(repr(np.random.get_state()[1].tolist()).encode())  # type: ignore[index]
    found.append(repr([m.training for m in module.modules()]).encode())
    found.append(repr([p.requires_grad for p in module.parameters()]).encode())
    found.append(repr(sorted(optimizer.param_groups[0].keys())).encode())
    return found


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "mid-training"])
@pytest.mark.parametrize("trainable", [None, "last"])
def test_a_module_is_left_as_it_was_bit_for_bit(warm: bool, trainable: Any) -> None:
    net = network()
    adam = torch.optim.AdamW(net.parameters())
    x = torch.randn(4, 3, 8, 8)
    if warm:
        loss(net(x)).backward()  # type: ignore[no-untyped-call]
        adam.step()
    net[3].eval()
    before, grads = bits(net, adam), [p.grad for p in net.parameters()]
    kept = {id(v) for entries in adam.state.values() for v in entries.values()}
    schedule = poet.solve(model=net, inputs=(x,), loss=loss, optimizer=adam, trainable=trainable)
    assert schedule.has_plan
    assert bits(net, adam) == before
    assert all(p.grad is g for p, g in zip(net.parameters(), grads, strict=True))
    assert {id(v) for entries in adam.state.values() for v in entries.values()} == kept


def test_a_module_that_raises_is_left_as_it_was() -> None:
    net = network()
    sgd = torch.optim.SGD(net.parameters())
    x = torch.randn(4, 3, 8, 8)
    before = bits(net, sgd)

    def bad_loss(output: Tensor) -> Tensor:
        net[1].eval()
        raise RuntimeError("labels are lost")

    with pytest.raises(poet.ArgumentError, match="labels are lost"):
        poet.solve(model=net, inputs=x, loss=bad_loss, optimizer=sgd)
    assert bits(net, sgd) == before


def test_a_model_that_cannot_run_says_why() -> None:
    with pytest.raises(poet.ArgumentError, match="Sequential cannot run on these inputs"):
        poet.solve(model=network(), inputs=torch.randn(4, 5, 8, 8), loss=loss)
    with pytest.raises(poet.ArgumentError, match="inputs: expected"):
        poet.solve(model=network(), loss=loss)
    with pytest.raises(poet.ArgumentError, match=r"loss: expected.*shape \(4, 4\)"):
        poet.solve(model=network(), inputs=torch.randn(4, 3, 8, 8))
    with pytest.raises(poet.ArgumentError, match="optimizer: expected"):
        poet.solve(model="linear", optimizer="adagrad")
    with pytest.raises(poet.ArgumentError, match="batch_size: expected None"):
        poet.solve(model=network(), inputs=torch.randn(4, 3, 8, 8), loss=loss, batch_size=3)
    with pytest.raises(poet.ArgumentError, match="cannot run on these inputs: KeyError"):
        poet.solve(model=network(), inputs=torch.randn(4, 3, 8, 8), loss=lambda y: {}["logits"])
    with pytest.raises(poet.ArgumentError, match='beside graph="paper"'):
        poet.solve(model="linear", platform="m4", graph="paper", optimizer="adam")


@pytest.mark.parametrize(
    "fails",
    [
        lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory.")),
        lambda: (_ for _ in ()).throw(MemoryError()),
        lambda: torch.empty(1 << 60),
    ],
    ids=["accelerator", "python", "cpu"],
)
def test_a_model_that_is_out_of_memory_says_so_itself(fails: Callable[[], object]) -> None:
    def own_loss(output: Tensor) -> Tensor:
        fails()
        return output.sum()

    x = torch.randn(4, 3, 8, 8)
    with pytest.raises((RuntimeError, MemoryError)) as plain:
        own_loss(network()(x))
    with pytest.raises(type(plain.value)) as told:
        poet.solve(model=network(), inputs=x, loss=own_loss)
    assert str(told.value)[:40] == str(plain.value)[:40]
    assert not isinstance(told.value, poet.PoetError)


class _OwnGenerator(nn.Module):
    """Draws from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.generator = torch.Generator().manual_seed(3)
        self.more = {"noise": [torch.Generator().manual_seed(4)]}

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=self.generator)
        return self.layer(x + noise * torch.rand(x.shape, generator=self.more["noise"][0]))


def test_generators_of_the_modules_own_are_left_as_they_were() -> None:
    net = _OwnGenerator()
    states = [net.generator.get_state(), net.more["noise"][0].get_state()]
    poet.solve(model=net, inputs=torch.ones(4, 8), loss=lambda y: y.square().mean())
    assert torch.equal(net.generator.get_state(), states[0])
    assert torch.equal(net.more["noise"][0].get_state(), states[1])


def test_a_device_file_without_a_store_needs_no_word_about_paging(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "profiles" / "m4.toml").read_text(encoding="utf-8")
    before, _, rest = text.partition("[store]")
    rest = rest.partition("\n[")[2]
    (tmp_path / "bare.toml").write_text(before + ("[" + rest if rest else ""), encoding="utf-8")
    found = poet.solve(model="linear", platform=tmp_path / "bare.toml", time_limit_s=5)
    assert found.device is not None and not found.device.has_store
    assert found.energy_source == found.device.energy_source
    with pytest.raises(poet.ArgumentError, match="has no store"):
        poet.solve(model="linear", platform=tmp_path / "bare.toml", paging=True)


def test_the_originals_arguments_keep_their_places_and_meanings() -> None:
    old: dict[str, Any] = {"paging": 1, "remat": 1, "solver": None, "solve_threads": None}
    found = poet.solve("linear", "m4", 3708, 1.5, **old, graph="paper")
    same = poet.solve(
        model="linear", platform="m4", ram_budget=3708, runtime_budget=1.5, graph="paper"
    )
    assert found.energy_joules == same.energy_joules
    none = poet.solve("linear", "m4", "50%", paging=0, remat=0, graph="paper", time_limit_s=5)
    assert not none.has_plan, "nothing makes room"
    with pytest.raises(TypeError, match="Did you mean 'method'"):
        poet.solve("linear", "m4", methd="rotor")
    with pytest.raises(poet.ArgumentError, match="remat: expected True or False"):
        poet.solve("linear", "m4", remat=5)


def test_names_of_devices_in_another_case() -> None:
    found = poet.solve(model="linear", platform="M4", time_limit_s=5)
    assert found.device is not None and found.device.name == "m4"
    here = poet.solve(model="linear", platform="HOST", time_limit_s=5)
    assert here.device is not None and here.device.name == "host"


def test_the_least_peak_is_that_of_every_schedule_with_whatever_is_away() -> None:
    asked: dict[str, Any] = {"model": "linear", "platform": "m4", "slices": False}
    least = poet.solve(**asked, minimize="memory", time_limit_s=20)
    assert least.has_plan
    assert least.away_between_steps
    tight = poet.solve(**asked, ram_budget=least.peak_bytes - 1, time_limit_s=20)
    if least.status is poet.Status.OPTIMAL:
        assert not tight.has_plan, "a proof that is none"


def test_what_model_may_be(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 8, 8)
    net = network()
    graph = poet.solve(model=net, inputs=x, loss=loss, optimizer="sgd").traced_graph
    assert graph is not None
    graph.save(tmp_path / "step.json")
    for model in (graph, str(tmp_path / "step.json"), tmp_path / "step.json"):
        found = poet.solve(model=model)  # type: ignore[arg-type]
        assert found.traced_graph == graph
    sgd = torch.optim.SGD(net.parameters())

    def step(batch: Tensor) -> None:
        sgd.zero_grad()
        loss(net(batch)).backward()  # type: ignore[no-untyped-call]
        sgd.step()

    wrapped = poet.wrap(step, ram_budget="90%", cache_dir=None)
    with pytest.raises(poet.ArgumentError, match="has not"):
        poet.solve(model=wrapped)
    wrapped(x)
    assert poet.solve(model=wrapped).has_plan
    for nonsense in (None, 3, [net]):
        with pytest.raises(poet.ArgumentError, match="model: expected"):
            poet.solve(model=nonsense)
    makers = ((nn.Linear, "the class Linear. Make one of it"), (network, "the function network"))
    for maker, says in makers:
        with pytest.raises(poet.ArgumentError, match=f"^model: expected .*got {says}"):
            poet.solve(model=maker, inputs=(x,))
    with pytest.raises(poet.ArgumentError, match="'resnet18_cifar'"):
        poet.solve(model="resnet18cifar")


def test_the_ram_of_the_device_is_the_budget_and_what_does_not_fit_says_so() -> None:
    schedule = poet.solve(model="resnet18_cifar", platform="m4", time_limit_s=10)
    assert schedule.ram_budget == 256 * 1024
    assert schedule.status == "infeasible"
    assert schedule.traced_graph is not None and schedule.least_ram_op is not None
    # The update of the largest weight runs in slices, so the next obstacle is named: its backward
    # op, whose weight and weight's gradient are 147,456 bytes each.
    assert "slices" in schedule.message
    values = schedule.traced_graph.values
    op = schedule.traced_graph.ops[schedule.least_ram_op]
    assert op.phase is poet.Phase.BACKWARD
    whole: dict[int, int] = {}
    for v in {*op.inputs, *op.outputs}:
        sliced = values[v].slice
        assert sliced is not None
        whole[sliced[0]] = whole.get(sliced[0], 0) + values[v].bytes
    assert list(whole.values()).count(147_456) == 2
    assert any("trainable=" in each for each in schedule.advice)
    assert all(each in str(schedule) for each in schedule.advice)


def test_the_originals_documented_call_finds_a_plan() -> None:
    schedule = poet.solve(
        model="resnet18_cifar",
        platform="m4",
        ram_budget=737719,
        runtime_budget=1.5,
        time_limit_s=20,
        solve_threads=2,
    )
    assert schedule.has_plan
    assert schedule.peak_bytes <= 737719
    assert schedule.page_ins > 0 and schedule.away_between_steps
    assert schedule.traced_graph is not None
    assert schedule.makespan_seconds <= 1.5 * schedule.traced_graph.plain_seconds


@pytest.mark.parametrize("budget", [0, "0", "0%", -1])
def test_a_budget_of_nothing_is_refused_before_anything_is_recorded(budget: Any) -> None:
    with pytest.raises(poet.ArgumentError, match="ram_budget"):
        poet.solve(model="bert", ram_budget=budget)


def test_count_and_cost_model_are_checked() -> None:
    with pytest.raises(poet.ArgumentError, match='count: expected "all" or "activations"'):
        poet.solve(model="linear", count="some")
    with pytest.raises(poet.ArgumentError, match="cost_model"):
        poet.solve(model="linear", cost_model="guess")
    everything = poet.solve(model="linear", platform="m4").traced_graph
    activations = poet.solve(model="linear", platform="m4", count="activations").traced_graph
    assert everything is not None and activations is not None
    assert activations.plain_peak_bytes() < everything.plain_peak_bytes()
    assert activations.signature == everything.signature


def test_advice_to_take_sgd_counts_state_and_not_what_an_update_drops_again() -> None:
    net = nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    step(torch.ones(4, 256))
    graph = poet.trace(step, torch.ones(4, 256))
    # Far below what lies beside the step as well, other tests' tensors, say.
    found = poet.solve(graph=graph, ram_budget=net.weight.nbytes, paging=False, time_limit_s=20)
    assert found.status is poet.Status.INFEASIBLE
    advised = [each for each in found.advice if "keeps no state" in each]
    state = format_bytes(2 * net.weight.nbytes + 4)  # and the count of steps
    assert [state in each for each in advised] == [True], found.advice


def test_a_few_bytes_of_the_least_budget_are_no_work_for_a_minute() -> None:
    found = poet.solve(model="linear", ram_budget="60%", paging=False, time_limit_s=60)
    assert found.status is poet.Status.INFEASIBLE
    least = found.least_ram_budget
    assert least is not None and found.solve_seconds < 30  # 3; the proof of 40 bytes took all 60
    at_least = poet.solve(model="linear", ram_budget=least, paging=False, time_limit_s=60)
    assert at_least.has_plan and at_least.peak_bytes <= least


def test_a_module_without_data_is_refused() -> None:
    with torch.device("meta"):
        net = network()
    with pytest.raises(poet.ArgumentError, match=r"model: .*\(8, 3, 3, 3\) on the meta device"):
        poet.solve(model=net, inputs=(torch.randn(4, 3, 8, 8),), loss=loss)
    with pytest.raises(poet.ArgumentError, match=r"inputs: .*meta device"):
        poet.solve(model=network(), inputs=(torch.empty(4, 3, 8, 8, device="meta"),), loss=loss)


def test_where_no_plan_keeps_a_deadline_the_least_budget_is_the_plain_steps_at_most() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    words = {
        "model": net,
        "inputs": (torch.randn(64, 256),),
        "loss": lambda out: out.square().mean(),
        "optimizer": "adamw",
        "platform": "raspberrypi5",
        "runtime_budget": 1.05,
        "time_limit_s": 3,
    }
    for budget in (1000, "5MiB"):
        schedule = poet.solve(ram_budget=budget, **words)
        assert not schedule.has_plan
        assert schedule.traced_graph is not None
        assert schedule.least_ram_budget is not None
        assert schedule.least_ram_budget <= schedule.traced_graph.plain_peak_bytes()
