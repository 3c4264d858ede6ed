"""Random training steps of modules, in-place ops, views, dropout and hooks: the same bits.

The generator knows nothing of poet; each step is trained plainly and under a random plan, with or
without paging, or under the online policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_plans import STORE_DEVICE, random_plan
from torch import nn
from zoo import Case, differences

from poet import _C
from poet._live import run_step
from poet._store import page_folder

pytestmark = pytest.mark.usefixtures("old_objects_aside")

_CI, _NIGHTLY = 600, 20_000  # examples
_WIDTH = 8


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * grads[0] + 0 * x


def _added_in_place(h: torch.Tensor) -> torch.Tensor:
    h = h.clone()
    h[:, 1:] += 0.5 * h[:, :-1].detach()
    return h


def _parts_swapped(h: torch.Tensor) -> torch.Tensor:
    a, b = h.chunk(2, dim=1)
    return torch.cat([b, a], 1)


def _rows_chosen(h: torch.Tensor) -> torch.Tensor:
    return h[h.detach().sum(1).argsort()] + h


# What takes rows of _WIDTH numbers and gives as many.
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu_": lambda h: torch.relu_(h.clone()),
    "tanh": torch.tanh,
    "dropout": lambda h: F.dropout(h, 0.3),
    "dropout_": lambda h: F.dropout(h * 1.0, 0.3, inplace=True),
    "noise": lambda h: h + 0.1 * torch.randn_like(h),
    "transposed": lambda h: h.t().contiguous().t() * 1.5,
    "expanded": lambda h: h + h.mean(0, keepdim=True).expand_as(h),
    "strided": lambda h: (
        torch.as_strided(h, (h.shape[0], _WIDTH), (1, h.shape[0])).sin()
        if h.is_contiguous()
        else h.cos()
    ),
    "in place": _added_in_place,
    "swapped": _parts_swapped,
    "rows": _rows_chosen,
    "detached": lambda h: h * h.detach().sigmoid(),
    "spectrum": lambda h: torch.fft.irfft(torch.fft.rfft(h), n=_WIDTH),
    "no grad": lambda h: h + torch.no_grad()(torch.tanh)(h),
    "half": lambda h: h.to(torch.bfloat16).mul(3).to(torch.float32),
    "function": _Doubled.apply,
    "hook": lambda h: (
        (h.register_hook(lambda g: g * 0.5), h.exp().clamp(max=3))[1] if h.requires_grad else h
    ),
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(_WIDTH, _WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(_WIDTH),
    "layer norm": lambda: nn.LayerNorm(_WIDTH),
    "gelu": nn.GELU,
    "relu in place": lambda: nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(inplace=True)),
    "frozen": lambda: nn.Linear(_WIDTH, _WIDTH).requires_grad_(False),
}

_layer = st.sampled_from([*FUNCTIONS, *MODULES])


class _Net(nn.Module):
    def __init__(self, layers: list[str], skips: list[int]) -> None:
        super().__init__()
        self._layers = layers
        self._skips = skips  # layer i adds what skips[i] layers before made
        self.parts = nn.ModuleDict(
            {str(i): MODULES[name]() for i, name in enumerate(layers) if name in MODULES}
        )
        self.first, self.last = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [self.first(x)]
        for i, name in enumerate(self._layers):
            part = self.parts[str(i)] if name in MODULES else FUNCTIONS[name]
            h = part(made[-1])
            skip = self._skips[i]
            made.append(h + made[-skip] if 0 < skip <= len(made) else h)
        return self.last(made[-1])


def _case(
    layers: list[str], skips: list[int], rows: int, optimizer: str, shapes: bool = False
) -> Case:
    torch.manual_seed(0)
    net = _Net(layers, skips)
    chosen: torch.optim.Optimizer
    if optimizer == "sgd":
        chosen = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, foreach=False)
    else:
        chosen = torch.optim.AdamW(net.parameters(), foreach=optimizer == "adamw-foreach")
    x, y = torch.randn(rows, _WIDTH), torch.randint(0, 3, (rows,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chosen.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        chosen.step()
        return loss.detach()

    def batch(i: int) -> tuple[torch.Tensor, ...]:
        fewer = rows - rows // 3 if shapes and i % 5 >= 3 else rows
        return x[:fewer], y[:fewer]

    torch.manual_seed(1)
    return Case(step, batch, [net], [chosen])


# How a step is made to do without memory: planned, or by the online policy in a budget of one byte.
_WAYS = ("plan", "plan, paging", "online", "online, paging", "banishing", "banishing, paging")


class _Pressed:
    """The step of a case, without memory in one of these ways."""

    def __init__(self, case: Case, way: str, seed: int, eagerness: float) -> None:
        self._case, self._seed, self._eagerness = case, seed, eagerness
        self.session = _C.Session(verify=False)
        self._paging = "paging" in way
        if self._paging:
            self.session.set_store(page_folder(None))
        if "plan" not in way:
            method = "dtr_banish" if "banishing" in way else "poet"
            self.session.set_budget(1, True, self._paging, STORE_DEVICE, "never", method)

    def __call__(self, *args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor
        result, report = run_step(self.session, self._case.step, args, {})
        if report["newly_stable"] and not self.session.is_policed():
            words: dict[str, Any] = {}
            if self._paging:
                words = {"paging": self._eagerness / 3, "away_between": True}
            graph = self.session.graph_of(report["variant"])
            plan = random_plan(graph, self._seed, self._eagerness, **words)
            self.session.set_plan(report["variant"], plan, STORE_DEVICE)
            self.session.move_out()
        return result


def _train(case: Case, step: Callable[..., torch.Tensor], calls: int) -> dict[str, Any]:
    return {f"loss {i}": step(*case.batches(i)) for i in range(calls)} | case.state()


def _check(example: dict[str, Any], way: str, threads: int, seed: int, eagerness: float) -> int:
    """Trains the step plainly and pressed; returns how many values were evicted."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if threads > 1:  # so large that operators are shared out
            example = example | {"rows": 200 * example["rows"]}
        calls = (
            (10 if example["shapes"] else 6) if "plan" in way else (5 if example["shapes"] else 3)
        )
        plain = _case(**example)
        wanted = _train(plain, plain.step, calls)
        case = _case(**example)
        pressed = _Pressed(case, way, seed, eagerness)
        assert differences(wanted, _train(case, pressed, calls)) == []
        counters = pressed.session.counters()
        assert counters["failed_steps"] == 0
        if "plan" in way:
            # At least: autograd accumulates in place or not by use counts, which a plan may change.
            assert counters["followed_steps"] >= 1, counters["last_departure"]
        return int(counters["evictions" if "plan" in way else "online_evictions"])
    finally:
        torch.set_num_threads(before)


_example = st.lists(_layer, min_size=2, max_size=8).flatmap(
    lambda layers: st.fixed_dictionaries(
        {
            "layers": st.just(layers),
            "skips": st.lists(st.integers(0, 3), min_size=len(layers), max_size=len(layers)),
            "rows": st.integers(2, 40),
            "optimizer": st.sampled_from(["sgd", "adamw", "adamw-foreach"]),
            "shapes": st.booleans(),
        }
    )
)
_settings = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def _check_many(examples: int, seeds: int, eagerness: Any, *, derandomize: bool) -> None:
    evicting, pressed = Counter[str](), Counter[str]()

    @settings(_settings, max_examples=examples, derandomize=derandomize)
    @given(
        example=_example,
        way=st.sampled_from(_WAYS),
        threads=st.sampled_from([1] * 24 + [2]),
        seed=st.integers(0, seeds),
        eagerness=eagerness,
    )
    def check(example: dict[str, Any], way: str, threads: int, seed: int, eagerness: float) -> None:
        evictions = _check(example, way, threads, seed, eagerness)
        pressed[way] += 1
        evicting[way] += evictions > 0

    check()
    for way in _WAYS:  # the shortest steps and laziest plans evict nothing
        assert evicting[way] >= 10, pressed


def test_random_steps_keep_every_bit() -> None:
    _check_many(_CI, 1000, st.sampled_from([0.1, 0.5]), derandomize=True)


@pytest.mark.nightly
def test_many_random_steps_keep_every_bit() -> None:
    _check_many(_NIGHTLY, 100_000, st.floats(0.02, 0.9), derandomize=False)
