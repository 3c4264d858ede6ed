"""deadline=, steps=, epochs=, battery_joules=: what they leave for one step."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from resident import budget_at
from small_steps import chain_graph, tanh_step

import poet
from poet._cli import main
from poet._constraints import step_share, training_seconds

UTC = datetime.timezone.utc
NOON = datetime.datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("deadline", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("8h", 28800),
        ("90min", 5400),
        ("1h 30min", 5400),
        ("1.5 H", 5400),
        ("2 days 1s", 172801),
        ("250ms", 0.25),
        (datetime.timedelta(hours=2), 7200),
        (NOON + datetime.timedelta(minutes=3), 180),
        ("2026-06-01T14:00+00:00", 7200),
        ("2026-06-01T14:00+01:00", 3600),
    ],
)
def test_times_of_a_whole_training(deadline: object, seconds: float) -> None:
    assert training_seconds(deadline, NOON) == seconds  # type: ignore[arg-type]


def test_a_moment_without_a_zone_is_local_time() -> None:
    local = NOON.astimezone().replace(tzinfo=None)
    assert training_seconds(local + datetime.timedelta(seconds=7), NOON) == 7
    assert 0 < training_seconds(datetime.datetime.now() + datetime.timedelta(seconds=9)) <= 9


@pytest.mark.parametrize(
    ("deadline", "why"),
    [
        (0, "above 0"),
        (-3, "above 0"),
        ("0h", "above 0"),
        (float("nan"), "must be a number"),
        ("inf", "finite"),
        ("8 hs", "Known units"),
        ("h", "date and time"),
        ("", "date and time"),
        ("8h later", "date and time"),
        ("x" * 100, "too long"),
        (True, "bool"),
        (None, "NoneType"),
        (datetime.timedelta(0), "above 0"),
        (NOON - datetime.timedelta(hours=3), "3 h ago"),
        (datetime.datetime.min, "out of range"),
    ],
)
def test_times_that_make_no_sense(deadline: object, why: str) -> None:
    with pytest.raises(poet.ArgumentError, match=f"deadline: expected.*{why}"):
        training_seconds(deadline, NOON)  # type: ignore[arg-type]


def test_the_share_of_a_step_and_how_it_is_said() -> None:
    share = step_share(deadline="8h", epochs=3, steps_per_epoch=100, battery_joules=600)
    assert (share.seconds, share.joules) == (96, 2)
    assert "deadline of 8 h for 300 steps, 96 s a step" in share.note
    assert "battery of 600 J for 300 steps, 2 J a step" in share.note
    assert (share.tighter(None), share.tighter(1.5), share.tighter(100)) == (96, 1.5, 96)
    nothing = step_share()
    assert (nothing.seconds, nothing.joules, nothing.note) == (None, None, "")
    assert nothing.tighter(None) is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"deadline": "8h"}, "deadline: expected the number of steps"),
        ({"battery_joules": 5}, "battery_joules: expected the number of steps"),
        ({"steps": 5}, "which limit nothing"),
        ({"epochs": 5, "steps_per_epoch": 2}, "which limit nothing"),
        ({"deadline": 1, "steps": 0}, "steps"),
        ({"deadline": 1, "steps": 1.5}, "steps"),
        ({"deadline": 1, "steps": 5, "epochs": 1}, "Leave one out"),
        ({"deadline": 1, "epochs": 5}, "go together"),
        ({"deadline": 1, "steps_per_epoch": 5}, "go together"),
        ({"deadline": 1, "epochs": 2, "steps_per_epoch": 2**53}, "steps_per_epoch"),
        ({"battery_joules": 0, "steps": 1}, "above 0"),
    ],
)
def test_constraints_that_make_no_sense(words: dict[str, object], why: str) -> None:
    with pytest.raises(poet.ArgumentError, match=why):
        poet.solve(graph=chain_graph(), ram_budget="80%", **words)  # type: ignore[arg-type]


@pytest.mark.parametrize("minimize", ["time", "memory"])
def test_a_battery_beside_another_objective_is_refused(minimize: str) -> None:
    with pytest.raises(poet.ArgumentError, match=r'minimize="energy".*deadline='):
        poet.solve(graph=chain_graph(), minimize=minimize, battery_joules=9, steps=3)


def test_a_deadline_is_a_runtime_budget_and_the_tighter_one_holds() -> None:
    words = {"graph": chain_graph(), "ram_budget": "60%", "time_limit_s": 5}
    step = 12e-3  # plain: twelve ops of a millisecond
    alone = poet.solve(deadline=step * 1.5 * 100, steps=100, **words)
    assert alone.runtime_budget_seconds == pytest.approx(step * 1.5)
    assert alone.has_plan and alone.makespan_seconds <= alone.runtime_budget_seconds
    assert "for 100 steps, 18 ms a step" in alone.message
    assert alone.message in str(alone)
    both = poet.solve(deadline=step * 1.5 * 100, steps=100, runtime_budget=1.4, **words)
    assert both.runtime_budget_seconds == pytest.approx(step * 1.4)
    late = poet.solve(deadline=step * 100, steps=101, **words)
    assert late.status == "infeasible"
    assert late.message.startswith("deadline of 1.2 s for 101 steps")
    assert "cannot be met" in late.message


def test_a_battery_that_no_plan_fits_is_a_proof() -> None:
    words = {"graph": chain_graph(), "ram_budget": "60%", "time_limit_s": 5}
    best = poet.solve(**words)
    assert best.status == "optimal"
    fits = poet.solve(battery_joules=best.energy_joules * 10, steps=10, **words)
    assert fits.status == "optimal"
    assert fits.energy_budget_joules == pytest.approx(best.energy_joules)
    assert fits.actions == best.actions and fits.device is not None
    short = poet.solve(battery_joules=best.energy_joules * 9.99, steps=10, **words)
    assert short.status == "infeasible" and not short.has_plan
    assert short.least_energy_joules == pytest.approx(best.energy_joules)
    assert "cannot be met" in short.message and short.message.startswith("battery of")
    assert any("battery" in each for each in short.advice)
    assert poet.Schedule.from_json(short.to_json()) == short


def test_without_a_proof_a_battery_is_not_called_too_small() -> None:
    # Its plans come without bounds.
    words = {"graph": chain_graph(), "ram_budget": "80%", "method": "chen_greedy"}
    plan = poet.solve(**words)
    assert plan.has_plan
    held = poet.solve(battery_joules=plan.energy_joules * 0.9, steps=1, **words)
    assert held.status == "time_limit"
    assert held.least_energy_joules == plan.energy_joules


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain_graph().save(tmp_path / "step.json")
    words = ["solve", "--model", str(tmp_path / "step.json"), "--ram-budget", "60%", "--json"]
    assert main([*words, "--deadline", "2min", "--epochs", "10", "--steps-per-epoch", "100"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["runtime_budget_seconds"] == pytest.approx(0.12)
    assert main([*words, "--battery-joules", "1e-9", "--steps", "5"]) == 2
    record = json.loads(capsys.readouterr().out)
    assert record["status"] == "infeasible" and record["least_energy_joules"] > 1e-9
    assert main([*words, "--deadline", "yesterday", "--steps", "5"]) == 1
    assert "deadline: expected" in capsys.readouterr().err


def test_the_originals_accounting_takes_a_deadline_and_no_battery() -> None:
    words = {"model": "linear", "platform": "m4", "graph": "paper", "accounting": "original"}
    with pytest.raises(poet.ArgumentError, match='accounting="poet"'):
        poet.solve(battery_joules=5, steps=1, **words)  # type: ignore[arg-type]


def test_wrap_trains_within_a_deadline_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    budget = budget_at(0.9, tanh_step(), torch.randn(256, 64))
    words = {"ram_budget": budget, "background": False, "paging": False, "verbose": True}
    with poet.wrap(tanh_step(), deadline="1h", epochs=2, steps_per_epoch=50, **words) as wrapped:
        for _ in range(5):
            wrapped(torch.randn(256, 64))
        assert wrapped.schedule is not None
        assert wrapped.schedule.runtime_budget_seconds == 36
        assert "36 s a step" in wrapped.stats.share
        assert wrapped.stats.followed_steps > 0
    assert "deadline of 1 h for 100 steps, 36 s a step" in capsys.readouterr().err


def test_a_deadline_below_the_plain_step_is_no_question_of_memory() -> None:
    words: dict[str, Any] = {
        "ram_budget": budget_at(0.9, tanh_step(), torch.randn(256, 64)),
        "background": False,
        "deadline": 1e-6,
        "steps": 10,
    }
    with (
        poet.wrap(tanh_step(), **words) as step,
        pytest.warns(poet.BudgetWarning, match="Give it more time, or no deadline") as seen,
    ):
        _call_often(lambda: step(torch.randn(256, 64)))
    assert "more memory" not in str(seen[0].message)
    assert "a plan that keeps the memory budget alone" in str(seen[0].message)
    assert step.schedule is not None and step.schedule.has_plan
    assert step.schedule.ram_budget is not None
    assert step.schedule.peak_bytes <= step.schedule.ram_budget
    assert step.stats.followed_steps > 0


def _call_often(step: Callable[[], None]) -> None:
    for _ in range(5):
        step()


def test_wrap_without_a_plan_for_its_battery_keeps_its_memory_and_warns() -> None:
    w = torch.randn(64, 64, requires_grad=True)

    def step() -> None:
        w.grad = None
        torch.tanh(w @ w).sum().backward()  # type: ignore[no-untyped-call]

    words = {"ram_budget": "2GiB", "background": False, "paging": False}
    with poet.wrap(step, battery_joules=1e-12, steps=10, **words) as wrapped:
        with pytest.warns(poet.BudgetWarning, match=r"cannot be met.*larger battery"):
            _call_often(wrapped)
        assert wrapped.schedule is not None and wrapped.schedule.has_plan
        assert wrapped.schedule.message.startswith("within the memory budget alone: battery of")
        assert wrapped.stats.followed_steps > 0


def test_plans_are_kept_for_the_deadline_that_they_were_made_for(tmp_path: Path) -> None:
    def run(**words: object) -> int:
        torch.manual_seed(0)
        w = torch.randn(64, 64, requires_grad=True)

        def step() -> None:
            w.grad = None
            torch.tanh(torch.tanh(w @ w) @ w).sum().backward()  # type: ignore[no-untyped-call]

        options = {"ram_budget": "2GiB", "background": False, "paging": False}
        with poet.wrap(step, cache_dir=tmp_path, **options, **words) as wrapped:  # type: ignore[arg-type]
            for _ in range(4):
                wrapped()
            return wrapped.stats.plans_from_cache

    assert run(deadline="1h", steps=10) == 0
    assert run(deadline="1h", steps=10) == 1
    assert run(deadline="2h", steps=10) == 0
