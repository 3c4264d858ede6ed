"""`hard=True`: no allocation of the step's thread exceeds the budget, whatever the plan knew."""

from __future__ import annotations

import gc
import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import zoo
from own_process import in_a_process_of_its_own
from resident import Peaks, resident_bytes
from small_steps import square_step
from torch import nn
from zoo import differences, slack_budget

import poet

pytestmark = pytest.mark.usefixtures("one_thread")

_SMALL = 32 * 1024  # bytes of a block that does not come from the arena, whose growth poet watches


def _net(*, adam: bool = False) -> tuple[Callable[..., float], nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (nn.Linear(32, 32), nn.Tanh())]
    net = nn.Sequential(*layers)
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(net.parameters(), foreach=False)
        if adam
        else torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    )
    step = square_step(net, optimizer)
    return step, net, torch.randn(2048, 32)


def _budget(share: float) -> int:
    """Above what lies in memory when the step is built."""
    before = resident_bytes()
    step, _, x = _net()
    graph = poet.trace(step, x)
    return slack_budget(graph, share) - before


def _wrap(step: Callable[..., Any], budget: int, **options: Any) -> poet.WrappedStep:
    given = {"background": False, "paging": False, "cache_dir": None, "time_limit_s": 10} | options
    return poet.wrap(step, ram_budget=budget, hard=True, **given)


@pytest.mark.parametrize("kind", ["residual_net", "gpt2", "lstm", "bert"])
@pytest.mark.parametrize("paging", [False, True], ids=["recompute", "paging"])
def test_every_call_stays_within_a_hard_budget_with_the_same_bits(kind: str, paging: bool) -> None:
    def build() -> zoo.Case:
        torch.manual_seed(0)
        case = zoo.KINDS[kind]()
        torch.manual_seed(1)
        return case

    calls = 6
    before = resident_bytes()
    plain = build()
    graph = poet.trace(plain.step, *plain.batches(0))
    budget = slack_budget(graph, 0.8) - before
    plain = build()
    wanted = [plain.step(*plain.batches(i)) for i in range(calls)]
    state = plain.state()
    del plain, graph
    with Peaks() as peaks, warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        case = build()
        batches = [case.batches(i) for i in range(calls)]
        budget += resident_bytes()
        step = _wrap(case.step, budget, paging=paging)
        got = []
        for batch in batches:
            peaks.mark()
            got.append(step(*batch))
    assert max(peaks.bytes) <= budget, [p - budget for p in peaks.bytes]
    assert step.stats.followed_steps > 0 and step.stats.failed_steps == 0
    assert differences({"results": wanted}, {"results": got}) == []
    assert differences(state, case.state()) == []


def _check_more_beside_the_step(bytes_each: int) -> None:
    plain, wanted_net, x = _net()
    wanted = [plain(x) for _ in range(8)]
    budget = _budget(0.5)
    own, net, x = _net()
    budget += resident_bytes([wanted_net])
    step = _wrap(own, budget)
    got = [step(x) for _ in range(4)]
    assert step.stats.followed_steps > 0
    graph = step.graph
    assert graph is not None
    more = budget  # nothing would fit beside it
    beside = [torch.zeros(bytes_each // 4) for _ in range(more // bytes_each)]
    for _ in range(2):  # with its plan, or without
        with pytest.raises(poet.BudgetError, match="ram_budget: expected the step to") as caught:
            step(x)
        assert "bytes" in str(caught.value)
        del caught  # its frames hold what the call has made
        for p in net.parameters():  # all that the program can reach is readable
            assert torch.isfinite(p).all() and (p.grad is None or torch.isfinite(p.grad).all())
    del beside
    gc.collect()
    got += [step(x) for _ in range(4)]
    assert got == wanted
    assert differences(dict(wanted_net.state_dict()), dict(net.state_dict())) == []
    assert step.stats.failed_steps == 2


def _check_large_blocks_beside_the_step() -> None:
    _check_more_beside_the_step(1 << 20)


def _check_small_blocks_beside_the_step() -> None:
    _check_more_beside_the_step(_SMALL)


@pytest.mark.parametrize(
    "check",
    [_check_large_blocks_beside_the_step, _check_small_blocks_beside_the_step],
    ids=["large", "small"],
)
def test_more_beside_the_step_ends_the_call_and_nothing_is_lost(check: Callable[[], None]) -> None:
    in_a_process_of_its_own(check)


def _check_a_plan_that_was_missed() -> None:
    """A little more beside the step than its plan has room for: the next plan has."""
    budget = _budget(0.6)
    own, _, x = _net()
    budget += resident_bytes()
    step = _wrap(own, budget)
    for _ in range(4):
        step(x)
    first = step.schedule
    assert first is not None and first.peak_bytes is not None
    free = budget - first.peak_bytes
    beside = [torch.zeros(_SMALL // 4) for _ in range(free // _SMALL + 3)]
    missed: list[str] = []
    followed = step.stats.followed_steps
    for _ in range(8):
        try:
            step(x)
        except poet.BudgetError as error:
            missed.append(str(error))
    assert len(beside) > 0
    assert len(missed) <= 1
    for text in missed:
        assert re.search(r"hard budget of [0-9]+ bytes .*; op [0-9]+ \(", text)
    second = step.schedule
    assert second is not None and second.peak_bytes is not None
    assert step.stats.plans_made_again >= 1
    assert step.stats.followed_steps >= followed + 3
    assert second.peak_bytes <= budget


def test_a_plan_that_was_missed_is_made_again_for_less() -> None:
    in_a_process_of_its_own(_check_a_plan_that_was_missed)


def _check_state_that_does_not_fit() -> None:
    """AdamW makes its state when the optimizer has begun: a budget that is not hard gives way."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x = torch.randn(8, 512)
    of_parameters = sum(p.nbytes for p in net.parameters())

    def own(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    budget = resident_bytes() + int(2.5 * of_parameters)
    soft = poet.wrap(own, ram_budget=budget, paging=False, cache_dir=None, strict=True)
    with pytest.warns(poet.BudgetWarning, match="above its budget"):
        soft(x)
    optimizer.state.clear()
    net.zero_grad()
    step = _wrap(own, budget)
    with pytest.raises(poet.BudgetError, match="expected the step to end within its hard budget"):
        step(x)  # the gradients had left for the state, and came back
    optimizer.state.clear()
    net.zero_grad()
    step = _wrap(own, budget - of_parameters // 2 - 1)
    with pytest.raises(poet.BudgetError, match=r"the step to (stay|end) within its hard"):
        step(x)


def test_an_optimizer_that_has_begun_is_stopped_too() -> None:
    in_a_process_of_its_own(_check_state_that_does_not_fit)


def _check_other_threads() -> None:
    budget = _budget(0.5)
    own, _, x = _net()
    budget += resident_bytes()
    go, taken = threading.Event(), threading.Event()
    held: list[torch.Tensor] = []

    def take() -> None:
        go.wait(60)
        held.append(torch.zeros(2 * budget // 4))
        taken.set()

    at_call = 5
    calls = 0

    def noisy(x: torch.Tensor) -> float:
        nonlocal calls
        calls += 1
        if calls == at_call:
            go.set()
            assert taken.wait(60)
        loss = own(x)
        held.clear()
        return loss

    thread = threading.Thread(target=take)
    thread.start()
    step = _wrap(noisy, budget)
    for _ in range(at_call):
        step(x)
    thread.join()
    assert step.stats.followed_steps > 0 and step.stats.failed_steps == 0


def test_what_other_threads_take_is_neither_refused_nor_counted() -> None:
    in_a_process_of_its_own(_check_other_threads)


def test_an_error_that_the_step_catches_ends_nothing() -> None:
    """As with memory that the machine does not have: the program goes on with less."""
    before = resident_bytes()
    w = torch.randn(64, 64, requires_grad=True)
    refused = []

    def own(x: torch.Tensor) -> float:
        w.grad = None
        try:
            torch.zeros(1 << 24)
        except RuntimeError as error:
            refused.append(str(error))
        (x @ w).square().mean().backward()
        return float(w.grad.sum())  # type: ignore[union-attr]

    x = torch.randn(16, 64)
    step = _wrap(own, before + (1 << 22))
    results = {step(x) for _ in range(4)}
    assert len(results) == 1
    assert len(refused) == 4 and all("ram_budget" in text for text in refused)


def test_an_error_of_the_steps_own_comes_out_after_it_has_caught_one() -> None:
    def own() -> None:
        try:
            torch.zeros(1 << 24)
        except RuntimeError:
            raise KeyError("the program's own") from None

    step = _wrap(own, resident_bytes() + (1 << 22))
    for _ in range(2):
        with pytest.raises(KeyError, match="the program's own"):
            step()


@pytest.mark.parametrize("hard", [False, True])
def test_what_a_caught_refusal_is_followed_by_is_not_undone(hard: bool) -> None:
    """Statistics of a batch norm stay where the step's own error left them, as without poet."""

    def statistics(wraps: bool) -> torch.Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

        def own(x: torch.Tensor) -> None:
            if wraps:
                with pytest.raises(RuntimeError, match="ram_budget"):
                    torch.zeros(1 << 24)
            net(x)
            raise KeyError("the program's own")

        step: Callable[..., Any] = own
        if wraps:
            budget = resident_bytes() + (1 << 22)
            step = poet.wrap(
                own, ram_budget=budget, paging=False, cache_dir=None, strict=True, hard=hard
            )
        with pytest.raises(KeyError, match="the program's own"):
            step(torch.randn(16, 8))
        assert isinstance(net[1].running_mean, torch.Tensor)
        return net[1].running_mean

    assert torch.equal(statistics(wraps=True), statistics(wraps=False))


def test_the_last_of_two_refusals_ends_the_call_with_a_budget_error() -> None:
    w = torch.randn(64, 64, requires_grad=True)

    def own(x: torch.Tensor) -> None:
        w.grad = None
        with pytest.raises(RuntimeError, match="ram_budget"):
            torch.zeros(1 << 24)
        (x @ w).sum().backward()
        torch.zeros(1 << 25)

    step = _wrap(own, resident_bytes() + (1 << 22))
    for _ in range(3):
        with pytest.raises(poet.BudgetError, match="134217728 bytes"):
            step(torch.randn(16, 64))


def _step(x: torch.Tensor) -> None:
    x.sum()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ram_budget": "60%"}, "expected a ram_budget in bytes"),
        ({"strict": False}, "strict=False"),
        ({"method": "chen_sqrt"}, "method='chen_sqrt'"),
        ({"online": False}, "the online policy off"),
        ({"hard": "yes"}, "hard: expected"),
    ],
)
def test_what_would_leave_calls_without_a_limit_is_refused(
    options: dict[str, Any], expected: str
) -> None:
    given: dict[str, Any] = {"ram_budget": "1GiB", "hard": True} | options
    with pytest.raises(poet.ArgumentError, match=re.escape(expected)):
        poet.wrap(_step, **given)


def test_on_another_device_it_is_not_built_and_says_so() -> None:
    step = poet.wrap(_step, ram_budget="1GiB", paging=False, cache_dir=None, hard=True)
    with pytest.raises(NotImplementedError, match="hard=True: expected a step that trains on the"):
        step._planner.use_accelerator("cuda:0")
