"""What a call without a plan says and counts: errors, warnings, figures."""

from __future__ import annotations

import gc
import re
import warnings
from typing import Any

import pytest
import torch
from resident import budget_at, resident_bytes
from small_steps import square_step
from torch import nn
from zoo import Case, differences

import poet

pytestmark = pytest.mark.usefixtures("one_thread")

_QUICK: dict[str, Any] = {"paging": False, "cache_dir": None, "time_limit_s": 5}


def _deep(rows: int = 512) -> Case:
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(32, 32), nn.Tanh())])
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)
    x = torch.randn(rows, 32)
    step = square_step(net, optimizer)
    return Case(step, lambda _: (x,), [net], [optimizer])


@pytest.mark.parametrize("background", [False, True], ids=["waits", "background"])
def test_an_infeasible_plan_leaves_the_policy_in_place_and_is_told_of_once(
    background: bool,
) -> None:
    calls = 8
    reference = _deep()
    wanted = [reference.step(*reference.batches(i)) for i in range(calls)]
    probe = _deep()
    # More than the batch and the parameters, less than any plan: calls make room, and go above.
    budget = budget_at(0.2, probe.step, *probe.batches(0))
    case = _deep()
    step = poet.wrap(case.step, ram_budget=budget, strict=False, background=background, **_QUICK)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got = []
        for i in range(calls):
            before = step.stats
            got.append(step(*case.batches(i)))
            assert step.wait_for_plan(60)
            after = step.stats
            assert after.online_steps == before.online_steps + 1
            assert after.online_evictions > before.online_evictions
    assert got == wanted
    assert differences(reference.state(), case.state()) == []
    stats = step.stats
    assert (stats.plans, stats.followed_steps, stats.planning) == (0, 0, False)
    assert step.schedule is not None and step.schedule.status == "infeasible"
    assert "cannot be met" in stats.message
    assert f"{step.schedule.least_ram_budget} bytes" in stats.message
    texts = [str(w.message) for w in told if issubclass(w.category, poet.BudgetWarning)]
    assert len([text for text in texts if "found no plan within" in text]) == 1, texts
    assert len([text for text in texts if "went above its budget" in text]) == 1, texts
    assert len(texts) == 2


@pytest.mark.parametrize(("paging", "strict"), [(False, None), (False, True), (True, None)])
def test_a_budget_error_has_the_op_its_need_what_was_resident_and_the_least_known(
    paging: bool, strict: bool | None
) -> None:
    gc.collect()
    weight, x = torch.randn(64, 256, requires_grad=True), torch.randn(1024, 64)

    def own(x: torch.Tensor) -> None:
        h = x @ weight  # 1 MiB
        torch.cat([h] * 4, 1).square().mean().backward()

    beside = resident_bytes()
    step = poet.wrap(
        own, ram_budget=beside + (3 << 20), strict=strict, **_QUICK | {"paging": paging}
    )
    with pytest.raises(poet.BudgetError) as caught:
        step(x)
    found = re.search(
        r"op (\d+) \((\S+)\) needs (\d+) bytes \(.*?\) more, (\d+) bytes \(.*?\) were resident, "
        r".* No plan could do with less than (\d+) bytes",
        str(caught.value),
    )
    assert found is not None, caught.value
    op, name, needs, resident, least = found.groups()
    assert (op, name) == ("1", "aten::cat")
    assert int(needs) == 4 << 20
    if paging:
        # In the store nothing of ours need lie beside what the op works on. Of other tests', what
        # is too small to be paged, or not of PyTorch's allocator, stays.
        others = beside - weight.nbytes - x.nbytes
        assert 0 <= int(resident) - (1 << 20) <= others
        # Those may leave for a plan: what the op works on and makes may not.
        assert 5 << 20 <= int(least) <= int(resident) + int(needs)
    else:
        assert int(resident) == (1 << 20) + beside
        assert int(least) == int(resident) + int(needs)


@pytest.mark.parametrize("strict", [None, True])
def test_state_of_an_optimizer_that_does_not_fit_is_no_error(strict: bool | None) -> None:
    """Its operators have begun by then, whose work nobody can undo: above the budget, and told."""

    def build() -> Case:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
        optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
        x = torch.randn(8, 256)
        step = square_step(net, optimizer)
        return Case(step, lambda _: (x,), [net], [optimizer])

    reference = build()
    wanted = reference.step(*reference.batches(0))
    gc.collect()
    case = build()
    of_parameters = sum(p.nbytes for p in case.modules[0].parameters())
    # Room for gradients and a quarter of the state, which is twice the parameters.
    budget = resident_bytes() + 3 * of_parameters // 2
    step = poet.wrap(case.step, ram_budget=budget, strict=strict, background=False, **_QUICK)
    with pytest.warns(poet.BudgetWarning, match="went above its budget"):
        got = step(*case.batches(0))
    assert got == wanted
    assert differences(reference.state(), case.state()) == []
    stats = step.stats
    assert (stats.steps_over_budget, stats.failed_steps) == (1, 0)
    assert stats.most_over_bytes >= of_parameters


# ---- figures of a script


def test_hits_misses_and_restores_count_what_a_script_does() -> None:
    """One value must leave while something large is made, and is touched after it."""
    gc.collect()
    weight = torch.ones((), requires_grad=True)
    batch, short = torch.randn(256, 1024), torch.randn(64, 1024)

    def own(x: torch.Tensor, then: str = "") -> float:
        weight.grad = None
        made = x.exp()
        loss = torch.cat([x] * 4).sum()
        if then == "another op":
            loss = loss.sin()
        if then == "raw read":
            assert made.tolist()[0][0] > 0
        loss = loss + (made * weight).sum()
        loss.backward()
        return loss.item()

    # A quarter of a megabyte less than the batch, what it makes, and the four copies take.
    budget = resident_bytes() + 5 * batch.nbytes - (1 << 18)
    step = poet.wrap(own, ram_budget=budget, background=False, **_QUICK)

    def counted(*args: Any) -> tuple[int, int, int]:
        before = step.stats
        assert step(*args) == own(*args)
        after = step.stats
        return (
            after.hits - before.hits,
            after.misses - before.misses,
            after.restores - before.restores,
        )

    found = [counted(batch) for _ in range(3)]
    assert found == [(0, 1, 1)] * 2 + [(1, 0, 0)], step.stats
    assert step.schedule is not None and step.schedule.recomputes == 1
    assert counted(batch, "raw read") == (1, 0, 1), step.stats.last_departure
    assert counted(batch) == (1, 0, 0)
    assert counted(batch, "another op") == (0, 1, 1)
    assert counted(short) == (0, 1, 0)
    assert counted(batch) == (1, 0, 0)
    stats = step.stats
    assert (stats.hits, stats.misses, stats.restores) == (4, 4, 4)
    assert (stats.steps, stats.departures, stats.steps_over_budget) == (8, 2, 0)
