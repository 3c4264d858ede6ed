"""poet doctor: what poet finds on this machine, and what to do about what is missing."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from poet import _C
from poet._budgets import format_bytes, format_seconds, machine_ram_bytes
from poet._cache import Cache, open_cache
from poet._enums import Solver, Status
from poet._errors import ArgumentError, PoetError
from poet._memory import MMAP_THRESHOLD_BYTES, other_allocator, users_own_threshold
from poet._plans import cpu_model
from poet._solve import solve_on, worker_path
from poet._solvers import GUROBI_ADVICE, HIGHS_ADVICE, FoundSolver
from poet._solvers import examine as examine_solvers
from poet._store import StoreSpeed, known_speed, page_folder, store_speed
from poet._version_check import check

_SOLVE_SECONDS = 10.0
_LEAST_FREE_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: what.
        state: "ok"; "note" where poet works with less; "missing" where it does not work.
        text: what was found.
        advice: what to do; "" where nothing needs doing.
        figures: the same for programs.
    """

    topic: str
    state: str
    text: str
    advice: str = ""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """What to look at.

    Attributes:
        page_dir: folder for paged values; None: the system's.
        cache_dir: the cache's folder; None: the user's.
        measure: measure the folder's speed although it is known.
    """

    page_dir: str | None = None
    cache_dir: str | None = None
    measure: bool = False


def examine(options: DoctorOptions) -> list[Finding]:
    """Looks at everything that poet needs or uses.

    Raises:
        ArgumentError: an option makes no sense.
    """
    cache = open_cache(True if options.cache_dir is None else options.cache_dir)
    looks: list[Callable[[], Iterator[Finding]]] = [
        _versions,
        _compiler,
        _solver,
        _back_ends,
        lambda: _pages(options, cache),
        lambda: _cached(cache),
        _processor,
        _memory,
        _allocator,
        _accelerator,
    ]
    return [finding for look in looks for finding in look()]


def report(findings: list[Finding]) -> str:
    """The findings for people."""
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8}{finding.topic:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':<8}{'':<{width}}  -> {finding.advice}")
    missing = [finding.topic for finding in findings if finding.state == "missing"]
    if missing:
        lines.append(f"not ready, see above: {', '.join(missing)}")
    else:
        lines.append("poet works here")
    return "\n".join(lines)


def report_json(findings: list[Finding]) -> str:
    """The findings for programs."""
    works = all(finding.state != "missing" for finding in findings)
    content = {"works": works, "findings": [dataclasses.asdict(f) for f in findings]}
    return json.dumps(content, indent=2)


def _versions() -> Iterator[Finding]:
    yield Finding("poet", "ok", f"{_C.version}", figures={"version": _C.version})
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    state = "ok" if sys.platform == "linux" else "missing"
    advice = "" if state == "ok" else "poet runs on Linux; in a virtual machine or WSL elsewhere."
    yield Finding("system", state, system, advice, {"system": system})
    python = platform.python_version()
    yield Finding("Python", "ok", python, figures={"version": python})
    figures = {"version": torch.__version__, "built_for": _C.built_for_torch}
    text = f"{torch.__version__}; poet was built for {_C.built_for_torch}"
    try:
        check(_C.built_for_torch, torch.__version__)
    except ImportError as error:
        yield Finding("torch", "missing", text, str(error), figures)
    else:
        yield Finding("torch", "ok", text, figures=figures)


def _compiler() -> Iterator[Finding]:
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        try:
            done = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            continue
        version = done.stdout.partition("\n")[0].strip()
        yield Finding("compiler", "ok", version, figures={"path": path, "version": version})
        return
    advice = "Only building poet from source needs a C++20 compiler; the package g++ has one."
    yield Finding("compiler", "note", "none found", advice)


def _solver() -> Iterator[Finding]:
    """Solves a step that fits only with values computed twice."""
    try:
        path = worker_path()
        schedule = solve_on(
            _tiny_step(),
            _C.DeviceProfile.by_name("host"),
            ram_budget_bytes=_TINY_BUDGET,
            runtime_budget_seconds=None,
            minimize="energy",
            recompute=True,
            paging=False,
            away_between_steps=False,
            time_limit_s=_SOLVE_SECONDS,
        )
    except PoetError as error:
        yield Finding("solver", "missing", "does not run", str(error))
        return
    figures = {"path": str(path), "status": str(schedule.status), "seconds": schedule.solve_seconds}
    if schedule.status is Status.OPTIMAL and schedule.peak_bytes <= _TINY_BUDGET:
        text = f"{path}: solved a small step in {format_seconds(schedule.solve_seconds)}"
        yield Finding("solver", "ok", text, figures=figures)
        return
    text = f"{path}: a small step ended with status {schedule.status}: {schedule.message}"
    advice = "Install poet again; if that does not help, run the program poet-solver by hand."
    yield Finding("solver", "missing", text, advice, figures)


def _back_ends() -> Iterator[Finding]:
    """What `solver=` of poet.solve can name here."""
    try:
        found = examine_solvers(worker_path())
    except PoetError as error:
        yield Finding("back ends", "missing", "unknown", str(error))
        return
    yield from map(_back_end, found)


def _back_end(found: FoundSolver) -> Finding:
    topic = f"solver {found.solver}"
    figures = {"version": found.version, "why_not": found.why_not}
    if found.why_not:
        advice = {Solver.HIGHS: HIGHS_ADVICE, Solver.GUROBI: GUROBI_ADVICE}[found.solver]
        return Finding(topic, "note", f"not used: {found.why_not}", advice, figures)
    text = f"{found.version}; {found.note}" if found.note else found.version
    advice = GUROBI_ADVICE if found.note and found.solver is Solver.GUROBI else ""
    return Finding(topic, "ok", text, advice, figures)


_TINY_LENGTH = 6
_TINY_BUDGET = 6 * 1024 * 1024


def _tiny_step() -> _C.Graph:
    """A chain of layers, forward and backward: each backward op needs its layer's activation."""
    size = 1024 * 1024
    ops: list[dict[str, Any]] = []
    values: list[dict[str, Any]] = [
        {"kind": "input", "bytes": size, "producer": -1, "death": 2 * _TINY_LENGTH}
    ]
    for i in range(_TINY_LENGTH):
        ops.append({"name": "layer", "phase": "forward", "inputs": [i], "outputs": [i + 1]})
        death = 2 * _TINY_LENGTH - 1 - i
        values.append({"kind": "activation", "bytes": size, "producer": i, "death": death})
    for j in range(_TINY_LENGTH):
        made = _TINY_LENGTH + 1 + j
        inputs = [_TINY_LENGTH - j] + ([made - 1] if j > 0 else [])
        ops.append({"name": "back", "phase": "backward", "inputs": inputs, "outputs": [made]})
        death = _TINY_LENGTH + j + 1
        values.append(
            {"kind": "gradient", "bytes": 1024, "producer": _TINY_LENGTH + j, "death": death}
        )
    for op in ops:
        op["seconds"] = 1e-3
    head = {"format": "poet-graph", "version": 1, "signature": "0" * 16, "base_bytes": 0}
    return _C.Graph.from_json(json.dumps(head | {"ops": ops, "values": values}))


def _pages(options: DoctorOptions, cache: Cache | None) -> Iterator[Finding]:
    try:
        folder = page_folder(options.page_dir)
    except ArgumentError as error:
        advice = "Name a folder on a disk with page_dir= of poet.wrap, or pass paging=False."
        # poet recomputes without one, but this one was asked for.
        state = "note" if options.page_dir is None else "missing"
        yield Finding("page folder", state, str(error), advice)
        return
    free = shutil.disk_usage(folder).free
    kind, direct = _file_system(folder), _takes_direct_io(folder)
    how = "past the page cache (O_DIRECT)" if direct else "through the page cache, dropped at once"
    text = f"{folder} ({kind}, {format_bytes(free)} free), {how}"
    figures = {"folder": folder, "file_system": kind, "free_bytes": free, "o_direct": direct}
    short = free < _LEAST_FREE_BYTES
    advice = "Make room there, or name another folder with page_dir= of poet.wrap." if short else ""
    yield Finding("page folder", "note" if short else "ok", text, advice, figures)
    yield _speed(folder, options, cache)


def _speed(folder: str, options: DoctorOptions, cache: Cache | None) -> Finding:
    try:
        if options.measure:
            speed: StoreSpeed | None = store_speed(folder, cache, remeasure=True)
        else:
            speed = known_speed(folder, cache)
    except (PoetError, OSError) as error:
        return Finding("page speed", "note", f"cannot be measured: {error}", "Make room there.")
    if speed is None:
        advice = "The first step that may page measures it; `poet doctor --measure` does it now."
        return Finding("page speed", "note", "not measured yet", advice)
    text = f"read {_rate(speed.read_rate)}, write {_rate(speed.write_rate)}, latencies "
    text += f"{format_seconds(speed.read_latency_seconds)} and "
    text += format_seconds(speed.write_latency_seconds)
    return Finding("page speed", "ok", text, figures=dataclasses.asdict(speed))


def _rate(rate: float) -> str:
    return f"{format_bytes(int(rate))}/s"


def _file_system(folder: str) -> str:
    """The type of the file system that holds the folder, as Linux names it."""
    best = ("", "unknown")
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return best[1]
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split(" ")[4].encode().decode("unicode_escape")
        inside = folder == mount or folder.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, right.split(" ")[0])
    return best[1]


def _takes_direct_io(folder: str) -> bool:
    flags = getattr(os, "O_TMPFILE", 0) | getattr(os, "O_DIRECT", 0)
    if not flags:
        return False
    try:
        os.close(os.open(folder, flags | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True


def _cached(cache: Cache | None) -> Iterator[Finding]:
    if cache is None:
        advice = "Every run measures and solves anew: unset POET_CACHE_DIR, or name a folder there."
        yield Finding("cache", "note", "none", advice)
        return
    entries, size = cache.size()
    text = f"{cache.folder}: {entries} entries, {format_bytes(size)}"
    figures = {"folder": str(cache.folder), "entries": entries, "bytes": size}
    nearest = next(p for p in (cache.folder, *cache.folder.parents) if p.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        yield Finding("cache", "ok", text, figures=figures)
        return
    advice = f"Make {nearest} a folder that you can write to, or set POET_CACHE_DIR to one."
    yield Finding("cache", "note", f"{text}; cannot be written to", advice, figures)


def _processor() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = torch.get_num_threads()
    text = f"{cpu_model() or 'unknown'}, {cores} cores for this process; torch uses {threads} "
    text += "thread" if threads == 1 else "threads"
    figures = {"model": cpu_model(), "cores": cores, "threads": threads}
    many = cores is not None and threads > cores
    advice = "Set OMP_NUM_THREADS to the number of cores." if many else ""
    yield Finding("processor", "note" if many else "ok", text, advice, figures)


def _memory() -> Iterator[Finding]:
    size = machine_ram_bytes()
    yield Finding("memory", "ok", format_bytes(size), figures={"bytes": size})


def _allocator() -> Iterator[Finding]:
    other = other_allocator()
    libc = " ".join(part for part in platform.libc_ver() if part)
    name = other or libc or "unknown"
    arena = "after poet.wrap large tensors lie in poet's arena"
    if os.environ.get("POET_ARENA") == "0":
        advice = "Unset POET_ARENA: without the arena what a plan frees may stay with the process."
        yield Finding("allocator", "note", f"{name}; no arena", advice, {"name": name})
        return
    if other is not None or not libc.startswith("glibc"):  # whose switches poet does not know
        yield Finding("allocator", "ok", f"{name}; {arena}", figures={"name": name})
        return
    what = f"poet.wrap fixes the mmap threshold at {format_bytes(MMAP_THRESHOLD_BYTES)}"
    if "POET_MMAP_THRESHOLD" in os.environ:
        what = f"mmap threshold by POET_MMAP_THRESHOLD={os.environ['POET_MMAP_THRESHOLD']}"
    elif users_own_threshold():
        what = "its mmap threshold is given by the environment and stays"
    yield Finding("allocator", "ok", f"{name}; {arena}; {what}", figures={"name": name})


def _accelerator() -> Iterator[Finding]:
    seen = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if not seen:
        text = "none seen by torch; poet trains on the CPU"
        yield Finding("GPU", "ok", text, figures={"seen": False, "names": []})
        return
    text = f"{', '.join(names)}; poet.wrap follows plans there, calls without a plan have no cap"
    yield Finding("GPU", "ok", text, figures={"seen": True, "names": names})


__all__ = ["DoctorOptions", "Finding", "examine", "report", "report_json"]
