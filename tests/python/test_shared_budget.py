"""poet.Budget: several wrapped steps within one budget."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from own_process import in_a_process_of_its_own
from resident import Peaks, resident_bytes
from small_steps import square_step
from torch import nn
from zoo import differences

import poet

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 512


def _training(seed: int) -> tuple[Callable[[torch.Tensor], float], nn.Module]:
    torch.manual_seed(seed)
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    step = square_step(net, optimizer)
    return step, net


def _batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(64, WIDTH, generator=generator) for _ in range(count)]


def _check_two_trainings_where_one_fits() -> None:
    """Each has four times its parameters in memory; the budget holds six."""
    (first, first_net), (second, second_net) = _training(1), _training(2)
    wanted = [(first(x), second(x)) for x in _batches(8)]
    of_parameters = sum(p.nbytes for p in first_net.parameters())
    kept = [dict(first_net.state_dict()), dict(second_net.state_dict())]
    del first, second, first_net, second_net
    with Peaks() as peaks, warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        xs = _batches(8)
        memory = poet.Budget(resident_bytes() + 6 * of_parameters)
        (one, one_net), (two, two_net) = _training(1), _training(2)
        a, b = (
            poet.wrap(s, ram_budget=memory, background=False, cache_dir=None, time_limit_s=5)
            for s in (one, two)
        )
        got = []
        for x in xs:
            peaks.mark()
            got.append((a(x), b(x)))
    assert got == wanted
    assert max(peaks.bytes) <= memory.ram_budget, [p - memory.ram_budget for p in peaks.bytes]
    for step in (a, b):
        assert step.stats.followed_steps >= 3, step.stats
        assert step.stats.steps_over_budget == 0
    for net, before in zip((one_net, two_net), kept, strict=True):
        assert differences(before, dict(net.state_dict())) == []


def test_two_trainings_fit_where_either_does() -> None:
    in_a_process_of_its_own(_check_two_trainings_where_one_fits)


def test_calls_on_two_threads_take_turns() -> None:
    memory = poet.Budget("1GiB")
    running = 0
    most = 0

    def make(seed: int) -> Callable[[torch.Tensor], float]:
        own, _ = _training(seed)

        def step(x: torch.Tensor) -> float:
            nonlocal running, most
            running += 1
            most = max(most, running)
            time.sleep(0.01)
            loss = own(x)
            running -= 1
            return loss

        return poet.wrap(step, ram_budget=memory, paging=False, cache_dir=None)

    xs = _batches(4)
    plain = [[own(x) for x in xs] for own in (_training(1)[0], _training(2)[0])]
    got: list[list[float]] = [[], []]
    steps = [make(1), make(2)]
    threads = [
        threading.Thread(target=lambda i=i: got[i].extend(steps[i](x) for x in xs))
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == plain
    assert most == 1


def test_a_call_that_raises_gives_its_turn_away() -> None:
    memory = poet.Budget("1GiB")
    own, _ = _training(1)

    def failing(x: torch.Tensor) -> None:
        own(x)
        raise KeyError("the program's own")

    x = _batches(1)[0]
    a = poet.wrap(failing, ram_budget=memory, paging=False, cache_dir=None)
    b = poet.wrap(own, ram_budget=memory, paging=False, cache_dir=None)
    for _ in range(2):
        with pytest.raises(KeyError):
            a(x)
        b(x)
    assert b.stats.steps == 2


@pytest.mark.parametrize("budget", ["60%", 0, "much", None])
def test_what_is_no_number_of_bytes_is_refused(budget: object) -> None:
    with pytest.raises(poet.ArgumentError, match="ram_budget: expected"):
        poet.Budget(budget)  # type: ignore[arg-type]


def test_it_shows_what_it_is() -> None:
    memory = poet.Budget("2GiB")
    step = poet.wrap(lambda: None, ram_budget=memory, paging=False, cache_dir=None)
    assert memory.ram_budget == 2 << 30
    assert repr(memory) == "<poet.Budget of 2.0 GiB, 1 steps>"
    del step
