"""step.pause() and only_while=: memory goes to the store while a step may not run."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poet
from poet import _C, _waiting
from poet._waiting import Gate, OtherLoad, Recent, is_charging

WIDTH = 128


class Training:
    """A small network with AdamW, from a seed."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), foreach=False)

    def step(self, x: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.net(x), x)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def bits(self) -> list[bytes]:
        tensors = [*self.net.parameters()]
        tensors += [p.grad for p in self.net.parameters() if p.grad is not None]
        for state in self.optimizer.state.values():
            tensors += state.values()
        return [t.detach().clone().numpy().tobytes() for t in tensors]


def batches(count: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(64, WIDTH, generator=generator)


# Two weights with gradient and two moments each; biases are smaller than a page.
EVERYTHING = 4 * 2 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("budget", ["95%", "2GiB"])
def test_a_paused_training_has_the_same_bits(budget: str, tmp_path: Path) -> None:
    plain, paused = Training(), Training()
    expected = [plain.step(x) for x in batches(8)]
    released = []
    with poet.wrap(paused.step, ram_budget=budget, page_dir=tmp_path, background=False) as step:
        assert step.pause() == 0, "nothing is known of the step yet"
        losses = []
        for x in batches(8):
            losses.append(step(x))
            released.append(step.pause())
            arena = _C.arena_counters()
            assert arena["resident_bytes"] == arena["in_use_bytes"]
            with pytest.raises(RuntimeError, match="released for the moment"):
                _read_raw(paused)
    assert losses == expected
    assert max(released) == EVERYTHING
    assert paused.bits() == plain.bits()
    assert step.pause() == 0, "it is closed"


def _read_raw(training: Training) -> None:
    """Past PyTorch's operators, and past the doors that poet knows."""
    torch._C.TensorBase.data_ptr(training.net[0].weight)


def test_a_touch_brings_back_what_it_touches(tmp_path: Path) -> None:
    training = Training()
    with poet.wrap(training.step, ram_budget="2GiB", page_dir=tmp_path, background=False) as step:
        for x in batches(4):
            step(x)
        before = training.bits()
        assert step.pause() == EVERYTHING
        first = training.net[0].weight
        assert isinstance(first, nn.Parameter)
        norm = first.norm().item()
        assert math.isfinite(norm)
        assert step.pause() == first.nbytes
        file = io.BytesIO()
        torch.save(training.net.state_dict(), file)
        file.seek(0)
        loaded = torch.load(file)
        assert torch.equal(loaded["0.weight"], first)
        assert first.detach().numpy().shape == (WIDTH, WIDTH)  # NumPy shares it from here on
        again = step.pause()
        assert 0 < again < EVERYTHING
        assert training.bits() == before


def test_without_a_store_nothing_is_released(tmp_path: Path) -> None:
    training = Training()
    with poet.wrap(training.step, ram_budget="2GiB", paging=False, background=False) as step:
        for x in batches(4):
            step(x)
        assert step.pause() == 0


def test_pausing_inside_a_step_is_refused(tmp_path: Path) -> None:
    training = Training()

    def body(x: torch.Tensor) -> float:
        step.pause()
        return training.step(x)

    with (
        poet.wrap(body, ram_budget="2GiB", page_dir=tmp_path, background=False) as step,
        pytest.raises(poet.PoetRuntimeError, match="between two steps"),
    ):
        step(next(batches(1)))


# ---------------------------------------------------------------- conditions


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def paced(gate: Gate, clock: Clock) -> Gate:
    gate.pace = _waiting.Pace(poll_seconds=7.0, sleep=clock.sleep, clock=clock)
    return gate


def test_a_step_waits_until_its_conditions_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, training = Training(), Training()
    expected = [plain.step(x) for x in batches(5)]
    clock = Clock()
    answers = iter([True] * 3 + [False, False, True] + [True])

    def at_night() -> bool:
        return next(answers)

    words = {"ram_budget": "2GiB", "page_dir": tmp_path, "background": False, "verbose": True}
    with poet.wrap(training.step, only_while=at_night, **words) as step:
        assert step._gate is not None
        paced(step._gate, clock)
        assert [step(x) for x in batches(5)] == expected
        stats = step.stats
    assert (stats.held_steps, stats.held_seconds) == (1, 14.0)
    assert clock.sleeps == [7.0, 7.0]
    assert stats.paged_out_bytes >= EVERYTHING, "its memory was released in the meantime"
    said = capsys.readouterr().err
    assert said.count("the step waits until") == 1 and "at_night" in said
    assert "goes on after 14 s" in said
    assert training.bits() == plain.bits()


def test_ctrl_c_ends_the_waiting() -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    calls = []
    step = poet.wrap(lambda: calls.append(1), ram_budget="1GiB", only_while=lambda: False)
    assert step._gate is not None
    step._gate.pace.sleep = sleep
    with pytest.raises(KeyboardInterrupt):
        step()
    assert calls == []
    step.close()
    step()  # a closed step is the plain one
    assert calls == [1]


def test_closing_ends_the_waiting() -> None:
    calls = []
    step = poet.wrap(lambda: calls.append(1), ram_budget="1GiB", only_while=lambda: False)
    assert step._gate is not None
    step._gate.pace.sleep = lambda seconds: step.close()
    with pytest.raises(poet.ArgumentError, match="ran none"):
        step()  # the step itself runs no operator
    assert calls == [1]


def test_what_a_condition_raises_comes_out() -> None:
    def broken() -> bool:
        raise OSError("no such sensor")

    with (
        poet.wrap(lambda: None, ram_budget="1GiB", only_while=[broken]) as step,
        pytest.raises(OSError, match="no such sensor"),
    ):
        step()


@pytest.mark.parametrize("conditions", ["sunny", (), [3], 5, ["charging", None]])
def test_conditions_that_make_no_sense(conditions: object) -> None:
    with pytest.raises(poet.ArgumentError, match="only_while: expected"):
        poet.wrap(lambda: None, ram_budget="1GiB", only_while=conditions)  # type: ignore[arg-type]


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


@pytest.mark.parametrize(
    ("supplies", "charging"),
    [
        ([], True),
        ([{"type": "Battery", "status": "Discharging"}], False),
        ([{"type": "Battery", "status": "Charging"}], True),
        ([{"type": "Battery", "status": "Full"}], True),
        ([{"type": "Battery", "status": "Not charging"}], False),
        ([{"type": "Battery", "status": "Discharging"}, {"type": "Mains", "online": "1"}], True),
        ([{"type": "Battery", "status": "Discharging"}, {"type": "Mains", "online": "0"}], False),
        ([{"type": "Battery", "status": "Not charging"}, {"type": "USB", "online": "1"}], True),
        ([{"type": "Battery", "status": "Discharging", "scope": "Device"}], True),
        ([{"type": "Mains", "online": "0"}], True),
    ],
)
def test_power_supplies(tmp_path: Path, supplies: list[dict[str, str]], charging: bool) -> None:
    for number, files in enumerate(supplies):
        supply(tmp_path, f"PS{number}", **files)
    assert is_charging(tmp_path) is charging


def test_a_system_without_power_supplies_is_on_mains_power(tmp_path: Path) -> None:
    assert is_charging(tmp_path / "absent") is True


def test_the_battery_is_asked_no_more_than_once_a_second() -> None:
    clock = Clock()
    answers = iter([False, True])
    charging = Recent(lambda: next(answers), clock)
    assert [charging(), charging()] == [False, False]
    clock.now += 1
    assert [charging(), charging()] == [True, True]


def test_load_without_this_process() -> None:
    clock = Clock()
    used, load = [0.0], [0.0]
    other = OtherLoad(lambda: load[0], lambda: used[0], clock)
    # This process uses two processors for ten minutes; so the load average says.
    for _ in range(600):
        clock.now += 1
        used[0] += 2
        load[0] = 2 * (1 - math.exp(-(clock.now - 100) / 60))
        assert other() == pytest.approx(0, abs=1e-9)
    load[0] += 3
    assert other() == pytest.approx(3, abs=1e-3)
    load[0] = 0
    assert other() == 0


def test_idle_looks_at_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(("charging", "idle"))
    monkeypatch.setattr(_waiting, "is_charging", lambda: True)
    load = [0.0]
    monkeypatch.setattr(os, "getloadavg", lambda: (load[0], 0.0, 0.0))
    gate = Gate(("charging", "idle"))
    assert gate.unmet() == ""
    load[0] = 1000.0
    assert gate.unmet() == "idle"

    def unknown() -> tuple[float, float, float]:
        raise OSError("no load average")

    monkeypatch.setattr(os, "getloadavg", unknown)
    with pytest.raises(poet.ArgumentError, match="no load average"):
        Gate("idle")


def test_a_condition_that_wants_arguments_is_refused_at_once() -> None:
    assert Gate(lambda: True).unmet() == ""
    assert Gate(lambda more=1: True).unmet() == ""
    with pytest.raises(poet.ArgumentError, match=r"without arguments.*missing.*'more'"):
        Gate(lambda more: True)  # type: ignore[arg-type, misc]
