"""Steps on a CUDA device: the same bits as plain training, inside the budget.

Every test here skips itself where there is no such device. Deterministic algorithms are asked for,
because two plain runs would differ without them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

# cuBLAS reads it when it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

STEPS = 7
DEVICE = "cuda:0"

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.cuda.empty_cache()


class Convolutions(nn.Module):
    """Convolutions, batch norm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for _ in range(20):  # what they keep is more than what a kernel takes meanwhile
            layers += [
                nn.Conv2d(width, 32, 3, padding=1),
                nn.BatchNorm2d(32),
                nn.ReLU(),
                nn.Dropout(0.1),
            ]
            width = 32
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class Decoder(nn.Module):
    """A small decoder: attention with dropout inside its kernel, embeddings, layer norm."""

    def __init__(self, width: int = 128, depth: int = 4, words: int = 512) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.words(x), 0.1, self.training)
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm1"](h)).chunk(3, -1)
            shape = (*h.shape[:2], 4, h.shape[2] // 4)
            q, k, v = (t.reshape(shape).transpose(1, 2) for t in (q, k, v))
            a = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
            h = h + F.dropout(block["out"](a.transpose(1, 2).flatten(2)), 0.1, self.training)
            h = h + block["down"](F.gelu(block["up"](block["norm2"](h))))
        return self.head(h)


def _batches(kind: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for _ in range(STEPS):
        if kind == "convolutions":
            x = torch.randn(32, 3, 32, 32, generator=generator)
            y = torch.randint(10, (32,), generator=generator)
        else:
            x = torch.randint(512, (8, 128), generator=generator)
            y = torch.randint(512, (8, 128), generator=generator)
        made.append((x, y))
    return made


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


OPTIMIZERS = {"sgd": _sgd, "adamw": _adamw}


class Training:
    """A model, its optimizer and a step, all from one seed."""

    def __init__(self, kind: str, optimizer: str, *, autocast: bool = False) -> None:
        torch.manual_seed(7)
        self.model = (Convolutions() if kind == "convolutions" else Decoder()).to(DEVICE)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.autocast = autocast
        torch.cuda.manual_seed(11)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.to(DEVICE), y.to(DEVICE)
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=self.autocast):
            out = self.model(x)
            loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> dict[str, torch.Tensor]:
        """On the CPU: what lies on the device beside a step counts in its budget."""
        found = {name: t.detach().cpu() for name, t in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            found[f"gradient of {name}"] = parameter.grad.detach().cpu()
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    found[f"{key} of {name}"] = value.detach().cpu()
        found["generator"] = torch.cuda.get_rng_state(DEVICE)
        return found


def _budget(training: Training, batches: list[tuple[torch.Tensor, torch.Tensor]], r: float) -> int:
    """Of slack `r`; the first two steps make the optimizer's state and libraries' workspaces."""
    for x, y in batches[:2]:
        training.step(x, y)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    largest = max(p.nbytes for p in training.model.parameters())
    torch.cuda.reset_peak_memory_stats()
    training.step(*batches[2])
    peak = torch.cuda.max_memory_allocated()
    stays = held + 2 * largest
    return int(stays + r * (peak - stays))


def _run(
    training: Training, batches: list[tuple[torch.Tensor, torch.Tensor]], step: Any
) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    losses, states = [], []
    for x, y in batches:
        losses.append(step(x, y).cpu())
        states.append(training.state())
    return losses, states


def _assert_same(
    plain: tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]],
    other: tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]],
) -> None:
    for i, (a, b) in enumerate(zip(plain[0], other[0], strict=True)):
        assert torch.equal(a, b), f"loss of step {i}: {a.item()} and {b.item()}"
    for i, (a, b) in enumerate(zip(plain[1], other[1], strict=True)):
        assert a.keys() == b.keys()
        different = [name for name in a if not torch.equal(a[name], b[name])]
        assert not different, f"after step {i}: {different}"


@pytest.mark.parametrize("slack", [0.5, 0.3])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("kind", ["convolutions", "decoder"])
def test_the_same_bits(kind: str, optimizer: str, slack: float) -> None:
    batches = _batches(kind)
    budget = _budget(Training(kind, optimizer), batches, slack)
    torch.cuda.empty_cache()
    training = Training(kind, optimizer)
    plain = _run(training, batches, training.step)
    del training
    training = Training(kind, optimizer)
    step = poet.wrap(
        training.step,
        ram_budget=budget,
        background=False,
        cache_dir=None,
        paging=False,
        time_limit_s=10,
    )
    other = _run(training, batches, step)
    _assert_same(plain, other)
    stats = step.stats
    assert step.schedule is not None and step.schedule.has_plan, stats.message
    assert stats.followed_steps >= STEPS - 4, stats
    assert stats.replayed_ops > 0, stats
    assert stats.departures == 0, stats.last_departure


def test_the_allocator_sees_the_budget_kept() -> None:
    batches = _batches("decoder")
    budget = _budget(Training("decoder", "adamw"), batches, 0.5)
    torch.cuda.empty_cache()
    training = Training("decoder", "adamw")
    step = poet.wrap(
        training.step, ram_budget=budget, background=False, cache_dir=None, paging=False
    )
    for x, y in batches[:5]:
        step(x, y)
    assert step.stats.followed_steps >= 1
    torch.cuda.reset_peak_memory_stats()
    for x, y in batches[5:]:
        step(x, y)
    # Blocks are rounded up, and what is left of one that is too small to be split stays with it.
    requested = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert requested <= budget * 1.005, (requested, budget)


@pytest.mark.parametrize("kind", ["convolutions", "decoder"])
def test_paging_to_pinned_memory(kind: str) -> None:
    batches = _batches(kind)
    budget = _budget(Training(kind, "adamw"), batches, 0.4)
    torch.cuda.empty_cache()
    training = Training(kind, "adamw")
    plain = _run(training, batches, training.step)
    training = Training(kind, "adamw")
    step = poet.wrap(
        training.step,
        ram_budget=budget,
        background=False,
        cache_dir=None,
        recompute=False,
        time_limit_s=10,
    )
    _assert_same(plain, _run(training, batches, step))
    stats = step.stats
    assert step.schedule is not None and step.schedule.has_plan, stats.message
    assert stats.followed_steps >= STEPS - 4, stats
    assert stats.planned_page_outs > 0, stats
    assert stats.departures == 0, stats.last_departure


def test_pause_gives_the_memory_back_to_the_device() -> None:
    batches = _batches("decoder")
    training = Training("decoder", "adamw")
    step = poet.wrap(training.step, ram_budget="95%", background=False, cache_dir=None)
    for x, y in batches[:5]:
        step(x, y)
    before = training.state()
    held = torch.cuda.memory_allocated()
    released = step.pause()
    assert released > 0
    assert torch.cuda.memory_allocated() <= held - released
    after = training.state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_autocast() -> None:
    batches = _batches("decoder")
    budget = _budget(Training("decoder", "adamw", autocast=True), batches, 0.2)
    training = Training("decoder", "adamw", autocast=True)
    plain = _run(training, batches, training.step)
    training = Training("decoder", "adamw", autocast=True)
    step = poet.wrap(
        training.step, ram_budget=budget, background=False, cache_dir=None, paging=False
    )
    _assert_same(plain, _run(training, batches, step))
    assert step.stats.replayed_ops > 0, step.stats


def test_several_streams_are_left_alone() -> None:
    training = Training("convolutions", "sgd")
    side = torch.cuda.Stream()

    def two_streams(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            doubled = x.to(DEVICE) * 2
        torch.cuda.current_stream().wait_stream(side)
        doubled.record_stream(torch.cuda.current_stream())
        return training.step(doubled / 2, y)

    batches = _batches("convolutions")
    plain = _run(training, batches, two_streams)
    training = Training("convolutions", "sgd")
    step = poet.wrap(
        two_streams, ram_budget=1 << 20, background=False, cache_dir=None, paging=False
    )
    with pytest.warns(poet.BudgetWarning):
        other = _run(training, batches, step)
    _assert_same(plain, other)
    assert step.stats.replayed_ops == 0


def test_an_error_in_the_step_leaves_everything_readable() -> None:
    batches = _batches("convolutions")
    budget = _budget(Training("convolutions", "sgd"), batches, 0.3)
    training = Training("convolutions", "sgd")
    fails = False

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.to(DEVICE), y.to(DEVICE)
        training.optimizer.zero_grad()
        loss = F.cross_entropy(training.model(x), y)
        if fails:
            raise KeyError("of the step's own")
        loss.backward()
        training.optimizer.step()
        return loss.detach()

    wrapped = poet.wrap(step, ram_budget=budget, background=False, cache_dir=None, paging=False)
    for x, y in batches[:5]:
        wrapped(x, y)
    assert wrapped.stats.followed_steps > 0
    fails = True
    with pytest.raises(KeyError):
        wrapped(*batches[5])
    fails = False
    assert all(bool(torch.isfinite(t).all()) for t in training.model.state_dict().values())
    wrapped(*batches[6])
    assert wrapped.stats.failed_steps == 1


def test_values_come_back_with_their_bytes() -> None:
    """The debug mode compares the bytes of what is evicted with what comes back."""
    program = (
        "import sys; sys.path.insert(0, 'tests/python'); import test_gpu as t; "
        "t.torch.use_deterministic_algorithms(True); t.test_the_same_bits('decoder', 'adamw', 0.3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"POET_VERIFY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_strict_is_refused() -> None:
    training = Training("convolutions", "sgd")
    step = poet.wrap(training.step, ram_budget="90%", strict=True, cache_dir=None, paging=False)
    with pytest.raises(poet.ArgumentError, match="CPU"):
        step(*_batches("convolutions")[0])
