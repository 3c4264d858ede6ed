"""What is said where a step does not fit: what would help, and nothing that would not."""

from __future__ import annotations

import pytest
import torch
from own_process import in_a_process_of_its_own
from resident import budget_at
from small_steps import chain_graph, tanh_step
from torch import Tensor, nn

import poet
from poet._without_plan import told_without_plan

STEP_SECONDS = 12e-3  # of chain_graph: twelve ops of a millisecond


def _infeasible(**words: object) -> poet.Schedule:
    schedule = poet.solve(graph=chain_graph(), time_limit_s=5, **words)  # type: ignore[arg-type]
    assert schedule.status is poet.Status.INFEASIBLE
    return schedule


def _adamw_graph() -> poet.Graph:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    step(torch.ones(4, 64))
    return poet.trace(step, torch.ones(4, 64))


def test_less_time_than_the_plain_step_takes_is_a_matter_of_time_alone() -> None:
    schedule = _infeasible(ram_budget="60%", runtime_budget="1ms")
    assert schedule.advice == (
        "give it more time, or no deadline: plain training takes 12 ms a step",
    )


def test_where_one_op_is_too_large_neither_time_nor_a_store_would_help() -> None:
    schedule = _infeasible(ram_budget=4096, runtime_budget=1.5, paging=False)
    said = "\n".join(schedule.advice)
    assert "or more" in said and "batch" in said
    assert "time" not in said and "page" not in said


def test_where_it_is_not_both_are_named() -> None:
    graph = chain_graph()
    least = poet.solve(graph=graph, ram_budget=4096, paging=False, time_limit_s=5).least_ram_budget
    assert least is not None
    words = {"runtime_budget": 1.01, "paging": False}
    said = "\n".join(_infeasible(ram_budget=least, **words).advice)
    assert "more time, or no deadline" in said and "let it page" in said


def test_a_disk_is_named_where_nobody_asked_for_one() -> None:
    graph = chain_graph()
    least = poet.solve(graph=graph, ram_budget=4096, time_limit_s=5).least_ram_budget
    assert least is not None
    said = "\n".join(_infeasible(ram_budget=least, runtime_budget=1.01).advice)
    assert "let it page to a disk: paging=True" in said


def test_an_op_that_takes_little_room_is_not_blamed() -> None:
    beside = torch.zeros(8 << 20, dtype=torch.uint8)  # what really takes the room
    graph = poet.trace(tanh_step(), torch.randn(256, 64))
    assert graph.base_bytes >= len(beside)
    schedule = poet.solve(graph=graph, ram_budget=graph.base_bytes + 64, time_limit_s=5)
    assert not schedule.has_plan
    assert any("does not touch" in each for each in schedule.advice)
    assert not any("at once" in each for each in schedule.advice)


def _wide_step(batch: int, width: int) -> poet.Graph:
    net = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def step(x: Tensor) -> None:
        net.zero_grad()
        net(x).square().mean().backward()

    return poet.trace(step, torch.ones(batch, width))


def _check_what_takes_the_room() -> None:
    for batch, width, helps, not_this in (
        (4096, 16, "a smaller batch", "freeze"),  # most of it activations and their gradients
        (4, 512, "freeze layers", "batch"),  # and here weights and theirs
    ):
        graph = _wide_step(batch, width)
        schedule = poet.solve(graph=graph, ram_budget=graph.base_bytes + 4096, time_limit_s=5)
        said = "\n".join(schedule.advice)
        assert helps in said and not_this not in said, said


def test_weights_are_blamed_where_they_take_the_room_alone() -> None:
    in_a_process_of_its_own(_check_what_takes_the_room)


def test_a_number_that_was_meant_as_a_share_is_told() -> None:
    assert 'write "60%"' in _infeasible(ram_budget=60.0).advice[0]
    assert not any("%" in each for each in _infeasible(ram_budget=4096).advice)


def test_more_memory_is_named_beside_a_larger_battery_where_it_would_help() -> None:
    graph = chain_graph()
    for budget, told in (("60%", True), ("100%", False)):
        schedule = poet.solve(graph=graph, ram_budget=budget, battery_joules=1e-9, steps=1)
        assert not schedule.has_plan
        assert "battery" in schedule.advice[0]
        assert any("more memory" in each for each in schedule.advice) is told


def _check_state_that_could_lie_in_the_store() -> None:
    graph = _adamw_graph()
    largest = max(value.bytes for value in graph.values)
    budget = graph.base_bytes + 12 * largest
    words = {"graph": graph, "ram_budget": budget, "paging": True, "time_limit_s": 10}
    schedule = poet.solve(**words)  # type: ignore[arg-type]
    assert not schedule.has_plan
    assert any("away_between_steps=True" in each for each in schedule.advice), schedule.advice
    away = poet.solve(away_between_steps=True, **words)  # type: ignore[arg-type]
    assert not any("away_between_steps" in each for each in away.advice)


def test_state_that_could_lie_in_the_store_is_named() -> None:
    # where other tests' tensors lie beside the step, they would be what is named
    in_a_process_of_its_own(_check_state_that_could_lie_in_the_store)


def test_what_has_no_plan_is_no_rewritten_graph() -> None:
    schedule = _infeasible(ram_budget=4096)
    with pytest.raises(poet.ScheduleError, match=r'expected a schedule with a plan.*"infeasible"'):
        schedule.graph()
    plain = poet.solve(graph=chain_graph(), ram_budget="100%", method="checkpoint_all")
    assert len(plain.graph()) >= len(chain_graph())


def test_a_warning_names_every_limit_that_was_asked_for() -> None:
    schedule = _infeasible(ram_budget=8192, runtime_budget=1.5)
    text = told_without_plan(
        schedule,
        8192,
        STEP_SECONDS,
        joules=0.25,
        time_limit_s=5,
        may_page=True,
        memory_can_be_kept=False,
    )
    assert text.startswith(
        "poet found no plan within 8192 bytes (8.0 KiB), in 18 ms a step and for 0.25 J a step, "
        "status infeasible: "
    )
    assert "Give it " in text and "or more." in text


def test_strict_without_the_online_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(poet.ArgumentError, match="to be on; got online=False"):
        poet.wrap(tanh_step(), ram_budget="2GiB", strict=True, online=False)
    monkeypatch.setenv("POET_ONLINE", "0")
    with pytest.raises(poet.ArgumentError, match="to be on; got POET_ONLINE=0"):
        poet.wrap(tanh_step(), ram_budget="2GiB", strict=True)
    monkeypatch.delenv("POET_ONLINE")
    budget = budget_at(0.9, tanh_step(), torch.randn(256, 64))
    with poet.wrap(tanh_step(), ram_budget=budget, strict=True) as step:
        assert step.stats.steps == 0
