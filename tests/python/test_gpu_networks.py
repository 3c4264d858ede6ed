"""Models of packages on a CUDA device: the bits of plain training, inside the budget, by a plan.

The networks are those of package_zoo.py, which knows of no device: what they and their batches are
made by puts them where PyTorch's default device is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from package_zoo import MODELS, seeded
from test_gpu import DEVICE
from zoo import Case, slack_budget

import poet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

_CALLS = 7
_SHARE = 0.5
_SECONDS = 4.0
# TorchScript makes one kernel of several operators, on a device, and that reads memory unannounced.
_FUSED = ("DeBERTa v2",)


@pytest.fixture(autouse=True)
def _on_the_device() -> Iterator[None]:
    torch.set_default_device(DEVICE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_default_device("cpu")
    torch.cuda.empty_cache()


def _train(case: Case, step: Any) -> dict[str, Any]:
    results = [step(*case.batches(i)) for i in range(_CALLS)]
    state = {f"result {i}": r for i, r in enumerate(results)} | case.state()
    state["generator of the device"] = torch.cuda.get_rng_state(DEVICE)
    return {k: v.detach().cpu() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


def _different(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if not _same(a[name], b[name])]


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return x.dtype == y.dtype and torch.equal(x.nan_to_num(1e9), y.nan_to_num(1e9))
    return bool(x == y)


def _plain(name: str) -> dict[str, Any]:
    try:
        case = seeded(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed where the device is")
    try:
        return _train(case, case.step)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        pytest.skip(f"{name} does not train on a device by itself: {error}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_to_the_same_bits(name: str) -> None:
    wanted = _plain(name)
    repeats = not _different(wanted, _plain(name))
    probe = seeded(name)
    graph = poet.trace(probe.step, *probe.batches(0))
    budget = slack_budget(graph, _SHARE) + 4096
    words: dict[str, Any] = {"paging": False, "time_limit_s": _SECONDS, "cache_dir": None}
    least = poet.solve(graph=graph, ram_budget=1, **words).least_ram_budget
    if least is not None:
        budget = max(budget, least + (graph.plain_peak_bytes() - least) // 10)
    del probe, graph
    case = seeded(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", poet.BudgetWarning)
        step = poet.wrap(case.step, ram_budget=budget, background=False, **words)
        if name in _FUSED:
            with pytest.raises(RuntimeError, match=r"poet\.keep"):
                _train(case, step)
            return
        found = _train(case, step)
    assert not repeats or _different(wanted, found) == []
    stats = step.stats
    assert stats.failed_steps == 0
    if not MODELS[name].unplanned:
        assert stats.followed_steps >= 1, (stats.message, stats.last_departure)
    if stats.followed_steps == 0 or stats.departures or stats.steps_over_budget:
        return
    torch.cuda.reset_peak_memory_stats()
    step(*case.batches(_CALLS))
    requested = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert requested <= budget * 1.005, (requested, budget, str(step.schedule))
