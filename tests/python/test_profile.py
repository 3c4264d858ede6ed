"""poet.profile: times of ops by class and size, fitted; watts; what is kept, and who uses it."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from small_steps import chain_graph

import poet
from poet import _energy_meter, _op_times, _profile
from poet._cache import Cache
from poet._cli import main
from poet._op_times import OpTime, fit, measure_ops, times_of

SPEED = {"read_rate": 2e9, "write_rate": 1e9}
SPEED |= {"read_latency_seconds": 1e-5, "write_latency_seconds": 1e-5}


def rows(count: int = 30, noise: float = 0.0) -> list[OpTime]:
    """Ops whose times follow known coefficients, one set a class."""
    made = []
    for number, op_class in enumerate(_op_times.CLASSES):
        for k in range(count):
            flops, moved = 1e3 * 1.5**k, 4e3 * 1.4**k * (1 + k % 3)
            seconds = 1e-6 * (number + 1) + flops / 1e9 + moved / 2e9
            seconds *= 1 + noise * (-1) ** k
            made.append(OpTime("aten::op", op_class, flops, moved, seconds))
    return made


def test_a_fit_finds_what_the_times_were_made_of() -> None:
    fits = {each.op_class: each for each in fit(rows())}
    assert set(fits) == set(_op_times.CLASSES)
    for number, op_class in enumerate(_op_times.CLASSES):
        found = fits[op_class]
        assert found.overhead_seconds == pytest.approx(1e-6 * (number + 1))
        assert found.seconds_per_flop == pytest.approx(1e-9)
        assert found.seconds_per_byte == pytest.approx(0.5e-9)
        assert (found.points, found.held_out_points) == (30, 10)
        assert found.worst_error < 1e-6
        assert found.seconds(1e6, 0) == pytest.approx(found.overhead_seconds + 1e-3)


def test_the_held_out_error_is_that_of_ops_that_the_fit_has_not_seen() -> None:
    clean = rows()
    ruined = [
        dataclasses.replace(each, seconds=each.seconds * 3) if k % 30 == 1 else each
        for k, each in enumerate(clean)
    ]  # the second op of each class, in order of size, is held out
    for each in fit(ruined):
        assert each.worst_error == pytest.approx(2 / 3, rel=1e-3)
        assert each.median_error < 1e-3
    for each in fit(rows(noise=0.1)):
        assert 0.05 < each.median_error < 0.3


def test_coefficients_are_never_negative() -> None:
    # Larger ops that take less time: nothing but a constant explains it.
    falling = [OpTime("x", "matmul", 1e3 * k, 1e3 * k, 1e-3 / k) for k in range(1, 12)]
    (found,) = fit(falling)
    assert found.seconds_per_flop == found.seconds_per_byte == 0
    assert found.overhead_seconds > 0


def test_classes_with_too_few_ops_have_no_model() -> None:
    assert fit(rows(count=5)) == ()


def test_real_operators_of_each_class_are_measured() -> None:
    before = torch.get_rng_state()
    times = measure_ops(2, largest=1 << 13)
    assert torch.equal(torch.get_rng_state(), before)
    for op_class in _op_times.CLASSES:
        mine = [each for each in times if each.op_class == op_class]
        assert len(mine) >= 10
        assert len({each.flops for each in mine}) >= 4
    assert {"aten::mm", "aten::convolution", "aten::convolution_backward"} <= {
        each.name.split(".")[0] for each in times
    }
    assert all(each.seconds > 0 and each.bytes > 0 for each in times)
    assert len(fit(times)) == 3


def test_ops_that_never_ran_get_times_and_the_others_keep_theirs() -> None:
    step = json.loads(chain_graph().to_json())
    for op in step["ops"]:
        op["flops"] = 5000.0
    del step["ops"][3]["seconds"]
    graph = poet.Graph.from_json(json.dumps(step))
    fits = {each.op_class: each for each in fit(rows())}
    filled, count = _op_times.fill_in(graph, fits)
    assert count == 1
    # 4 KiB in and 4 KiB out.
    assert filled.ops[3].seconds == pytest.approx(fits["elementwise"].seconds(5000, 8192))
    assert [op.seconds for op in filled.ops if op.index != 3] == [0.001] * 11
    assert _op_times.fill_in(filled, fits) == (filled, 0)
    assert list(times_of(graph))[3].name == "aten::layer"


# ---------------------------------------------------------------- watts


class FakeMonitor:
    """As zeus.monitor.ZeusMonitor; computing draws 30 W more than sleeping."""

    def __init__(self, cpu: bool = True, dram: bool = True) -> None:
        self.cpu_indices = [0, 1] if cpu else []
        self.gpu_indices: list[int] = []
        self._dram = dram
        self.windows: list[str] = []
        self.cancelled = 0

    def begin_window(self, key: str, sync_execution: bool = True) -> None:
        self.windows.append(key)

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Any:
        self.cancelled += cancel
        busy = len(self.windows) > 1
        return types.SimpleNamespace(
            time=2.0,
            cpu_energy={0: 20.0 + 60.0 * busy, 1: 20.0},
            dram_energy={0: 5.0, 1: 5.0} if self._dram else None,
            gpu_energy={},
        )


def use_monitor(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    zeus = types.ModuleType("zeus")
    monitor = types.ModuleType("zeus.monitor")
    monitor.ZeusMonitor = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus", zeus)
    monkeypatch.setitem(sys.modules, "zeus.monitor", monitor)


def no_zeus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus", None)
    monkeypatch.setitem(sys.modules, "zeus.monitor", None)


@pytest.mark.parametrize("dram", [True, False])
def test_watts_are_those_of_the_counters(monkeypatch: pytest.MonkeyPatch, dram: bool) -> None:
    use_monitor(monkeypatch, lambda **words: FakeMonitor(dram=dram))
    watts = _energy_meter.measure_watts(lambda: None, 0.0)
    assert (watts.idle, watts.compute) == (20.0, 30.0)
    assert watts.memory == (5.0 if dram else poet.DeviceProfile.by_name("host").memory_watts)
    assert watts.source.startswith("measured by zeus: RAPL")
    assert ("memory stated" in watts.source) is not dram


def test_without_counters_the_stated_model_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = poet.DeviceProfile.by_name("host")

    def broken(**words: object) -> object:
        raise RuntimeError("driver on strike")

    no_zeus(monkeypatch)
    why = {"pip install zeus": None, "driver on strike": broken}
    why["right to read it"] = lambda **words: FakeMonitor(cpu=False)
    for text, make in why.items():
        if make is not None:
            use_monitor(monkeypatch, make)
        watts = _energy_meter.measure_watts(lambda: None, 0.0)
        assert watts.source.startswith("stated power model") and text in watts.source
        assert (watts.compute, watts.idle) == (stated.compute_watts, stated.idle_watts)


def test_a_window_that_fails_is_cancelled() -> None:
    monitor = FakeMonitor()

    def fails() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _energy_meter.EnergyMeter(monitor).measure(fails)
    assert monitor.cancelled == 1


# ---------------------------------------------------------------- the whole


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Everything that takes time, replaced; counts measurements."""
    rounds: list[int] = []

    def measured(repeats: int, on_round: Any = None) -> tuple[OpTime, ...]:
        rounds.append(repeats)
        return tuple(rows())

    monkeypatch.setattr(_profile, "measure_ops", measured)
    monkeypatch.setattr(_profile, "_WATT_SECONDS", 0.0)
    monkeypatch.setattr(_profile._C, "measure_store", lambda directory, seconds: SPEED)
    no_zeus(monkeypatch)
    return rounds


def test_it_is_measured_once_and_kept(
    quick: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = poet.profile(cache_dir=tmp_path / "cache", page_dir=tmp_path)
    assert first == poet.profile(cache_dir=tmp_path / "cache") and len(quick) == 1
    monkeypatch.setattr(_profile, "_known", {})  # as in another process
    assert first == poet.profile(cache_dir=tmp_path / "cache") and len(quick) == 1
    poet.profile(cache_dir=tmp_path / "cache", remeasure=True)
    assert len(quick) == 2
    assert first.store is not None and first.device.store_read_rate == SPEED["read_rate"]
    assert "error of the 10 held out" in str(first) and first.energy_source in str(first)


def test_a_damaged_profile_is_dropped(
    quick: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = dataclasses.asdict(poet.profile(cache_dir=tmp_path))
    cache = Cache(tmp_path)
    wrong: list[dict[str, Any]] = [
        {},
        good | {"fits": [{"op_class": "matmul"}]},
        good | {"watts": good["watts"] | {"compute": -1.0}},
        good | {"measured_at": float("nan")},
    ]
    for payload in wrong:
        cache.put("profile", _profile._key(), payload)
        monkeypatch.setattr(_profile, "_known", {})
        with pytest.warns(poet.CacheWarning, match="no profile of a machine"):
            assert _profile.known_profile(Cache(tmp_path)) is None
    cache.put("profile", _profile._key(), good | {"measured_at": good["measured_at"] - 1e8})
    assert _profile.known_profile(cache) is None


def test_solve_and_wrap_use_measured_watts_and_say_so(
    quick: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_monitor(monkeypatch, lambda **words: FakeMonitor())
    plain = poet.solve(graph=chain_graph(), ram_budget="80%", cache_dir=tmp_path)
    assert plain.device is not None and plain.device.energy_source.startswith("stated")
    poet.profile(cache_dir=tmp_path)
    schedule = poet.solve(graph=chain_graph(), ram_budget="80%", cache_dir=tmp_path)
    assert schedule.device is not None
    assert schedule.device.energy_source.startswith("measured by zeus")
    assert schedule.device.compute_watts == 30
    elsewhere = poet.solve(model="linear", graph="paper", platform="m4", cache_dir=tmp_path)
    assert elsewhere.device is not None and "chipsets.py" in elsewhere.device.energy_source
    step = poet.wrap(lambda: None, ram_budget="1GiB", cache_dir=tmp_path, paging=False)
    assert step._planner._device.compute_watts == 30


def test_solve_fills_in_ops_that_were_never_run(quick: list[int], tmp_path: Path) -> None:
    step = json.loads(chain_graph().to_json())
    for op in step["ops"]:
        op["flops"] = 5000.0
    del step["ops"][2]["seconds"]
    graph = poet.Graph.from_json(json.dumps(step))
    before = poet.solve(graph=graph, ram_budget="80%", cache_dir=tmp_path)
    assert before.message == ""
    poet.profile(cache_dir=tmp_path)
    schedule = poet.solve(graph=graph, ram_budget="80%", cache_dir=tmp_path)
    assert "1 ops that were never run come from the cost model" in schedule.message
    assert schedule.traced_graph is not None and schedule.traced_graph.ops[2].seconds > 0


def test_on_the_command_line(
    quick: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["profile", "--cache-dir", str(tmp_path), "--page-dir", str(tmp_path)]
    assert main(words) == 0
    assert "to start" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {each["op_class"] for each in record["fits"]} == set(_op_times.CLASSES)
    assert record["energy_source"] == record["watts"]["source"]
    assert main([*words, "--device", "m4"]) == 1
    assert 'expected "host"' in capsys.readouterr().err
