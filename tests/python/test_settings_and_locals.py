"""What a step changes under its own feet, and what it holds on to: the same bits, as planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_process import in_a_process_of_its_own
from resident import Peaks, budget_at
from torch import nn
from torch.utils.checkpoint import checkpoint
from zoo import differences

import poet

CALLS = 6


@pytest.fixture(autouse=True)
def _settings_stay() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")


class Block(nn.Module):
    """Residual, so that plain training keeps several values for each of them."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.a, self.b = nn.Linear(16, 128), nn.Linear(128, 16)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        z = self.a(h)
        if self.scale != 1:
            z = z + (z * self.scale) / self.scale  # by denormal numbers
        wide: torch.Tensor = torch.sigmoid(z)
        return h + self.b(wide)


class Dropping(nn.Sequential):
    """Keeps several values that are cheap to compute again."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))


class Case:
    """A network of blocks whose forward pass runs in a setting of its own."""

    def __init__(self, setting: str) -> None:
        torch.manual_seed(0)
        scale = 1e-39 if setting == "denormal" else 1.0
        self.net = nn.Sequential(*[Block(scale) for _ in range(4)], nn.Linear(16, 10))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.setting = setting

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(getattr(self, self.setting)(x), y)
        loss.backward()
        self.optimizer.step()

    def denormal(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_flush_denormal(True)
        out: torch.Tensor = self.net(x)
        torch.set_flush_denormal(False)
        return out

    def precision(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_float32_matmul_precision("medium")
        out: torch.Tensor = self.net(x)
        torch.set_float32_matmul_precision("highest")
        return out

    def default_dtype(self, x: torch.Tensor) -> torch.Tensor:
        whole = (x.detach() * 100).long()
        torch.set_default_dtype(torch.float64)
        wide = (whole / 7).sin() * torch.rand(x.shape)  # both of the default dtype
        torch.set_default_dtype(torch.float32)
        out: torch.Tensor = self.net((x * wide.cos()).float())
        return out


def _train(case: Case, step: Callable[..., Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(CALLS):
        batch = torch.randn(64, 16, generator=generator)
        step(batch, torch.randint(0, 10, (64,), generator=generator))
    return {**case.net.state_dict(), "generator": torch.get_rng_state()}


@pytest.mark.parametrize("setting", ["denormal", "precision", "default_dtype"])
def test_replays_run_in_the_settings_of_the_first_run(setting: str) -> None:
    plain = Case(setting)
    expected = _train(plain, plain.step)
    case = Case(setting)
    graph = poet.trace(case.step, torch.randn(64, 16), torch.randint(0, 10, (64,)))
    least = poet.solve(graph=graph, ram_budget=1, paging=False, time_limit_s=5).least_ram_budget
    assert least is not None
    budget = least + (graph.plain_peak_bytes() - least) // 4
    case = Case(setting)
    words: dict[str, Any] = {"paging": False, "background": False, "time_limit_s": 20}
    with poet.wrap(case.step, ram_budget=budget, **words) as step:
        assert differences(expected, _train(case, step)) == []
        assert step.stats.planned_recomputes > 0
        assert step.stats.departures == 0, step.stats.last_departure
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_value_made_from_what_cannot_be_made_again_stands_in_for_it(tmp_path: Path) -> None:
    """alpha_dropout's second mask reads the first one before that is scaled in place."""

    def make() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(8)])
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            h = x
            for i, layer in enumerate(layers):
                h = F.silu(layer(h))
                if i == 2:
                    h = F.alpha_dropout(h, 0.1, training=True)
            loss = F.mse_loss(h, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    batch = torch.randn(512, 64), torch.randn(512, 64)
    own = make()
    expected = [own(*batch).item() for _ in range(CALLS)]
    own = make()
    graph = poet.trace(own, *batch)
    own = make()
    words: dict[str, Any] = {"paging": False, "background": False, "cache_dir": None}
    beside = graph.base_bytes  # what other tests have left in this process
    budget = beside + (graph.plain_peak_bytes() - beside) * 7 // 10
    with poet.wrap(own, ram_budget=budget, time_limit_s=10, **words) as step:
        assert expected == [step(*batch).item() for _ in range(CALLS)]
        stats, schedule = step.stats, step.schedule
    assert schedule is not None and schedule.recomputes > 0, stats.message
    away = stats.followed_steps * schedule.recomputes
    assert stats.evictions >= away, "values that the plan frees have stayed"
    assert stats.unplanned_recomputes == 0, stats.first_unplanned


@pytest.mark.parametrize("paging", [True, False])
def test_locals_that_outlive_the_update_come_back_as_planned(paging: bool, tmp_path: Path) -> None:
    """Their recipes end where the weights change; the plan must know, and the executor too."""

    def make() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()]
        head = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        net = nn.Sequential(*layers)
        last = nn.Linear(64, 10)
        modules = nn.ModuleList([net, head, last])
        optimizer = torch.optim.SGD(modules.parameters(), 0.1)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            h = net(x) * 0.5
            k = (h * 1.5).tanh() + 0.25
            h2 = k * 3
            loss = F.cross_entropy(last(head(h2)), y) + (h2**2).sum() * 1e-4
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    batch = torch.randn(256, 32), torch.randint(0, 10, (256,))
    words: dict[str, Any] = {"page_dir": tmp_path} if paging else {"paging": False}
    own = make()
    expected = [own(*batch).item() for _ in range(CALLS)]
    own = make()
    graph = poet.trace(own, *batch)
    least = poet.solve(graph=graph, ram_budget=1, time_limit_s=5, **words).least_ram_budget
    assert least is not None
    budget = least + (graph.plain_peak_bytes() - least) // 10
    own = make()
    with poet.wrap(
        own, ram_budget=budget, background=False, time_limit_s=10, cache_dir=None, **words
    ) as step:
        assert expected == [step(*batch).item() for _ in range(CALLS)]
        stats = step.stats
    assert stats.followed_steps > 0, stats.message
    assert stats.unplanned_recomputes == stats.unplanned_page_ins == 0, stats.first_unplanned
    assert stats.skipped_page_outs == 0


def test_what_another_step_could_not_find_in_time_stays() -> None:
    """Numbers that Python makes for an op, and what an earlier step left and this one drops."""
    held = [torch.randn(64, 64)]
    weight = torch.randn(64, 64, requires_grad=True)

    def step() -> None:
        weight.grad = None
        loss = ((weight @ held[0]) * 1.5).tanh().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        held[0] = weight.grad.clone()  # type: ignore[union-attr]

    graph = poet.trace(step)
    outside = [value for value in graph.values if value.producer is None]
    sizes = {value.bytes: value.evictable for value in outside}
    assert sizes[8] is False  # 1.5
    assert sorted(v.evictable for v in outside if v.bytes == 64 * 64 * 4) == [False, True]


def test_a_coroutine_is_no_step() -> None:
    async def step() -> None:
        pass

    def generator() -> Iterator[int]:
        yield 1

    for function in (step, generator):
        with pytest.raises(poet.StepTypeError, match="only makes a coroutine or a generator"):
            poet.wrap(function, ram_budget="60%")


def _check_peak(step: poet.WrappedStep, schedule: poet.Schedule | None, peak_bytes: int) -> None:
    """`schedule`: the one in force when the measured call began; another one may follow it."""
    assert step.stats.followed_steps >= 2
    assert step.stats.departures == 0
    assert schedule is not None
    assert schedule.recomputes + schedule.page_outs > 0
    assert peak_bytes <= schedule.ram_budget
    assert peak_bytes == pytest.approx(schedule.peak_bytes, rel=0.005)


def _check_checkpoints_inside(use_reentrant: bool) -> None:
    """Their generator states are made where no operator shows them; the reentrant kind detaches
    the batch, whose alias must not live longer than in plain training."""
    with Peaks() as peaks:
        torch.manual_seed(0)
        net = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.Linear(32, 32), nn.GELU())
            for _ in range(6)
        )
        optimizer = torch.optim.SGD(net.parameters(), 0.01)

        def train_step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            h = x.requires_grad_()
            for layer in net:
                h = checkpoint(layer, h, use_reentrant=use_reentrant)
            loss = h.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        budget = budget_at(0.8, train_step, torch.randn(256, 32))
        step = poet.wrap(
            train_step, ram_budget=budget, background=False, cache_dir=None, time_limit_s=5
        )
        for _ in range(CALLS):
            step(torch.randn(256, 32))  # its gradient goes with it
        x = torch.randn(256, 32)
        schedule = step.schedule
        peaks.mark()
        step(x)
    _check_peak(step, schedule, peaks.bytes[-1])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_inside_keep_the_predicted_peak(use_reentrant: bool) -> None:
    in_a_process_of_its_own(_check_checkpoints_inside, use_reentrant)


def _check_storages_that_grow(slack: float, paging: bool) -> None:
    """An out= argument that is too small, and resize_() of a batch."""
    with Peaks() as peaks:
        torch.manual_seed(0)
        layers = [m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU())]
        net = nn.Sequential(*layers)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)

        def train_step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            buffer = torch.empty(0)
            torch.mul(x, 2, out=buffer)
            loss = net(x + 1).square().mean() + buffer.mean()
            x.resize_(600, 64)
            loss.backward()
            optimizer.step()
            return loss.detach()

        # A batch can be resized once only, and what records the step runs it twice.
        budget = budget_at(slack, lambda: train_step(torch.randn(256, 64)))
        step = poet.wrap(
            train_step,
            ram_budget=budget,
            paging=paging,
            background=False,
            cache_dir=None,
            time_limit_s=5,
        )
        for _ in range(CALLS):
            step(torch.randn(256, 64))
        x = torch.randn(256, 64)
        schedule = step.schedule
        peaks.mark()
        step(x)
    _check_peak(step, schedule, peaks.bytes[-1])


# At 0.8, without paging, a value is away when it dies, and so does what it would be made from.
@pytest.mark.parametrize(("slack", "paging"), [(0.85, True), (0.8, False)])
def test_storages_that_grow_inside_the_step_keep_the_predicted_peak(
    slack: float, paging: bool
) -> None:
    in_a_process_of_its_own(_check_storages_that_grow, slack, paging)


@pytest.mark.parametrize("paging", [False, True])
def test_batches_that_are_slices_of_one_tensor_share_a_plan(paging: bool, tmp_path: Path) -> None:
    """Of rows, as `data[i : i + 64]`, and of one sequence, where targets lie one further on."""

    def build() -> tuple[Callable[..., torch.Tensor], list[tuple[torch.Tensor, ...]], nn.Module]:
        torch.manual_seed(0)
        embedding, net = nn.Embedding(50, 32), nn.Sequential(*[Dropping(32) for _ in range(4)])
        head = nn.Linear(32, 50)
        modules = nn.ModuleList([embedding, net, head])
        optimizer = torch.optim.AdamW(modules.parameters(), 1e-3)
        text, noise = torch.randint(0, 50, (4000,)), torch.randn(1000, 32)

        def train_step(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            # what is made of z alone is computed again from where this call has z
            h = net(embedding(x) * torch.sigmoid(z.mul(2)))
            loss = F.cross_entropy(head(h), y) + (z * h).tanh().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        tokens = [slice(i * 256, i * 256 + 256) for i in range(10)]
        targets = [slice(s.start + 1, s.stop + 1) for s in tokens]
        rows = [slice(i * 64, i * 64 + 256) for i in range(10)]
        batches = [
            (text[s], text[t], noise[r]) for s, t, r in zip(tokens, targets, rows, strict=True)
        ]
        return train_step, batches, modules

    def state(modules: nn.Module) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in modules.named_parameters()}

    train_step, batches, modules = build()
    losses = [train_step(*batch).item() for batch in batches]
    expected = state(modules)
    train_step, batches, _ = build()
    budget = budget_at(0.75, train_step, *batches[0])
    train_step, batches, modules = build()
    step = poet.wrap(
        train_step,
        ram_budget=budget,
        background=False,
        cache_dir=None,
        time_limit_s=5,
        paging=paging,
        page_dir=tmp_path if paging else None,
    )
    assert [step(*batch).item() for batch in batches] == losses
    assert differences(expected, state(modules)) == []
    assert step.stats.variants <= 2  # without and with the optimizer's state
    assert step.stats.followed_steps >= 6
    assert step.stats.departures == 0
    assert step.stats.replayed_ops > 0 or paging
