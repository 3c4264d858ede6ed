"""paging=, recompute=, page_dir=: what they allow, refuse and warn of."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from small_steps import chain_graph, chain_plain_peak

import poet
from poet import _memory, _solve, _store

IN_RAM = Path("/dev/shm")
SPEED = {"read_rate": 2e9, "write_rate": 1e9}
SPEED |= {"read_latency_seconds": 1e-5, "write_latency_seconds": 1e-5}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders that are measured; nothing is known at first."""
    folders: list[str] = []

    def measure(directory: str, seconds: float) -> dict[str, float]:
        folders.append(directory)
        return SPEED

    monkeypatch.setattr(_store, "_measured", {})
    monkeypatch.setattr(_store._C, "measure_store", measure)
    return folders


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the core is asked for."""
    requests: list[dict[str, Any]] = []
    solve = _solve._C.solve_in_worker

    def noted(graph: poet.Graph, device: poet.DeviceProfile, **words: Any) -> poet.Schedule:
        requests.append(words | {"device": device})
        return solve(graph, device, **words)

    monkeypatch.setattr(_solve._C, "solve_in_worker", noted)
    return requests


def step() -> None:
    return None


def ram_folder() -> Path:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    if f" {IN_RAM} " not in text or " - tmpfs" not in text:
        pytest.skip("there is no /dev/shm in RAM")
    return IN_RAM


# ---------------------------------------------------------------- solve


def test_solve_measures_nothing_unless_asked(
    measured: list[str], asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    graph = chain_graph()
    poet.solve(graph=graph, ram_budget="80%", time_limit_s=5)
    assert measured == []
    assert not asked[-1]["device"].has_store
    poet.solve(graph=graph, ram_budget="80%", time_limit_s=5, page_dir=tmp_path)
    assert measured == [str(tmp_path.resolve())]
    assert asked[-1]["device"].has_store
    assert asked[-1]["paging"] is True
    poet.solve(graph=graph, ram_budget="80%", time_limit_s=5, page_dir=str(tmp_path))
    assert len(measured) == 1


def test_what_was_measured_before_decides_nothing(
    measured: list[str], asked: list[dict[str, Any]]
) -> None:
    try:
        folder = _store.page_folder(None)
    except poet.ArgumentError:
        pytest.skip("the system's folders take no page file")
    poet.solve(graph=chain_graph(), ram_budget="80%", time_limit_s=5, paging=True)
    assert measured == [folder]
    poet.solve(graph=chain_graph(), ram_budget="80%", time_limit_s=5)
    assert measured == [folder]
    assert not asked[-1]["device"].has_store
    poet.solve(graph=chain_graph(), ram_budget="80%", time_limit_s=5, paging=True)
    assert measured == [folder]
    assert asked[-1]["device"].store_read_rate == SPEED["read_rate"]
    poet.solve(graph=chain_graph(), ram_budget="80%", time_limit_s=5, paging=False)
    assert not asked[-1]["device"].has_store
    assert asked[-1]["paging"] is False


def test_the_switches_reach_the_planner(asked: list[dict[str, Any]]) -> None:
    options = {"ram_budget": "80%", "time_limit_s": 5, "paging": False}
    poet.solve(graph=chain_graph(), recompute=True, away_between_steps=True, **options)
    assert (asked[-1]["recompute"], asked[-1]["away_between_steps"]) == (True, True)
    poet.solve(graph=chain_graph(), recompute=False, **options)
    assert (asked[-1]["recompute"], asked[-1]["away_between_steps"]) == (False, False)


def test_without_both_a_plan_only_frees() -> None:
    words = {"recompute": False, "paging": False, "time_limit_s": 5}
    roomy = poet.solve(graph=chain_graph(), ram_budget=chain_plain_peak(), **words)
    assert roomy.status == "optimal"
    assert all(action.kind == "free" for action in roomy.actions)
    tight = poet.solve(graph=chain_graph(), ram_budget="60%", **words)
    assert tight.status == "infeasible"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"paging": 2}, "paging"),
        ({"paging": "yes"}, "paging"),
        ({"recompute": None}, "recompute"),
        ({"away_between_steps": 1}, "away_between_steps"),
        ({"page_dir": 3}, "page_dir"),
        ({"page_dir": ""}, "page_dir"),
        ({"page_dir": "/no/such/folder"}, "page_dir"),
        ({"page_dir": "/tmp", "paging": False}, "page_dir"),
        ({"cache_dir": 3}, "cache_dir"),
    ],
)
def test_solve_refuses_what_makes_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(poet.ArgumentError, match=words):
        poet.solve(graph=chain_graph(), ram_budget="80%", **options)


# ---------------------------------------------------------------- simulate


def test_simulate_takes_the_device_of_the_schedule(measured: list[str], tmp_path: Path) -> None:
    graph = chain_graph()
    schedule = poet.solve(
        graph=graph, ram_budget="70%", recompute=False, time_limit_s=5, page_dir=tmp_path
    )
    assert schedule.page_outs > 0
    assert schedule.device is not None
    assert schedule.device.has_store
    again = poet.simulate(graph, schedule)
    assert again.peak_bytes == schedule.peak_bytes
    assert again.makespan_seconds == schedule.makespan_seconds
    assert again.energy_joules == schedule.energy_joules
    assert len(measured) == 1


def test_simulate_takes_the_folder_that_is_named(measured: list[str], tmp_path: Path) -> None:
    graph = chain_graph()
    schedule = poet.solve(
        graph=graph, ram_budget="70%", recompute=False, time_limit_s=5, page_dir=tmp_path
    )
    path = tmp_path / "plan.json"
    schedule.save(path)
    read = poet.Schedule.load(path)
    with pytest.raises(poet.ScheduleError, match="no store"):
        poet.simulate(graph, read)
    other = tmp_path / "other"
    other.mkdir()
    assert poet.simulate(graph, read, page_dir=other, cache_dir=False).makespan_seconds == (
        schedule.makespan_seconds
    )
    assert measured == [str(tmp_path.resolve()), str(other.resolve())]


# ---------------------------------------------------------------- wrap


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"paging": 1}, "paging"),
        ({"paging": None}, "paging"),
        ({"recompute": "no"}, "recompute"),
        ({"recompute": False, "paging": False}, "nothing could make room"),
        ({"page_dir": "/no/such/folder"}, "page_dir"),
        ({"page_dir": "/tmp", "paging": False}, "page_dir"),
        ({"page_dir": b""}, "page_dir"),
        ({"minimize": "fun"}, "minimize"),
    ],
)
def test_wrap_refuses_what_makes_no_sense_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(poet.ArgumentError, match=words):
        poet.wrap(step, ram_budget="1GiB", **options)


@pytest.mark.parametrize("folder", ["", "a\0b", b"", 7])
def test_what_names_no_folder_is_refused(folder: Any) -> None:
    with pytest.raises(poet.ArgumentError, match="page_dir: expected a folder"):
        poet.wrap(step, ram_budget="50%", page_dir=folder)


def test_a_folder_in_ram_is_refused_and_named() -> None:
    folder = ram_folder()
    with pytest.raises(poet.ArgumentError, match=str(folder)) as caught:
        poet.wrap(step, ram_budget="1GiB", page_dir=folder)
    assert "RAM" in str(caught.value) or "tmpfs" in str(caught.value)
    with pytest.raises(poet.ArgumentError, match=str(folder)):
        poet.solve(graph=chain_graph(), ram_budget="80%", page_dir=folder)


def test_where_the_systems_folders_will_not_do_it_only_recomputes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(directory: str = "") -> str:
        raise poet.ArgumentError("page_dir: every folder lies in RAM here.")

    monkeypatch.setattr(_store._C, "page_folder", refuse)
    _store._warn_of_no_folder.cache_clear()
    with pytest.warns(poet.StoreWarning, match="every folder lies in RAM") as caught:
        wrapped = poet.wrap(step, ram_budget="1GiB")
    assert caught[0].filename == __file__
    assert wrapped._options.page_folder is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        poet.wrap(step, ram_budget="1GiB")
        poet.wrap(step, ram_budget="1GiB", paging=False)
    with pytest.raises(poet.ArgumentError, match="recompute=False"):
        poet.wrap(step, ram_budget="1GiB", recompute=False)
    with pytest.raises(poet.ArgumentError, match="every folder"):
        poet.wrap(step, ram_budget="1GiB", page_dir="/tmp")


def test_wrapping_alone_measures_nothing(measured: list[str], tmp_path: Path) -> None:
    poet.wrap(step, ram_budget="1GiB", page_dir=tmp_path)
    assert measured == []


# ---------------------------------------------------------------- malloc

THRESHOLD = """
import os, sys
import torch
import poet
from poet import _memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "wrap":
    poet.wrap(lambda: None, ram_budget="1GiB", paging=False)
torch.empty(8 << 20, dtype=torch.uint8)  # glibc's own threshold would rise to 8 MiB
blocks = [torch.ones(1 << 20, dtype=torch.uint8) for _ in range(64)]
guard = [torch.ones(1 << 10, dtype=torch.uint8) for _ in range(1 << 10)]  # ends the heap
full = resident()
del blocks
at_once = full - resident()
_memory.release_free_memory()
print(_memory.fixed_mmap_threshold(), at_once >> 20, (full - resident()) >> 20)
"""


def threshold(how: str, **environment: str) -> tuple[str, int, int]:
    """The fixed threshold, and MiB of 64 that are given back when freed, and when asked to."""
    malloc = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "POET_MMAP_THRESHOLD")
    inherited = {name: value for name, value in os.environ.items() if name not in malloc}
    done = subprocess.run(
        [sys.executable, "-c", THRESHOLD, how],
        env=inherited | {"POET_ARENA": "0"} | environment,  # it would take these blocks
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fixed, at_once, released = done.stdout.split()
    return fixed, int(at_once), int(released)


def test_freed_blocks_leave_the_process_at_once_or_when_a_plan_comes_into_force() -> None:
    if _memory.other_allocator() is not None or not _memory._C.fix_mmap_threshold(1 << 25):
        pytest.skip("another allocator than glibc's")
    near = pytest.approx
    assert threshold("no") == ("None", near(0, abs=2), near(0, abs=2))
    fixed = str(_memory.MMAP_THRESHOLD_BYTES)
    assert threshold("wrap") == (fixed, near(0, abs=2), near(64, abs=2))
    lower = threshold("wrap", POET_MMAP_THRESHOLD="131072")
    assert lower == ("131072", near(64, abs=2), near(64, abs=2))
    assert threshold("wrap", POET_MMAP_THRESHOLD="0") == ("None", near(0, abs=2), near(0, abs=2))
    own = threshold("wrap", MALLOC_MMAP_THRESHOLD_="65536")
    assert own == ("None", near(64, abs=2), near(64, abs=2))


@pytest.mark.parametrize("text", ["much", "-1", "1e6", str(2**31)])
def test_a_threshold_that_makes_no_sense_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POET_MMAP_THRESHOLD", text)
    monkeypatch.setattr(_memory, "_state", {})
    with pytest.raises(poet.ArgumentError, match="POET_MMAP_THRESHOLD"):
        poet.wrap(step, ram_budget="1GiB", paging=False)
