"""What a plan frees leaves the process: resident memory, RLIMIT_DATA, the page cache.

One process a run. Resident memory is the high-water mark VmHWM, reset after warm-up through
/proc/self/clear_refs, less the pages of files and shared memory. Under poet all is as it is by
default; plain training runs with the mmap threshold that makes it give every freed block back, so
that what it holds is what it needs.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import poet
from poet import _memory, _store

MIB = 1 << 20
TOLERANCE = 0.05
_SWITCHES = ("POET_ARENA", "POET_MMAP_THRESHOLD")

# 24 values of 8 MiB: what is kept for backward outweighs all else by far.
SCRIPT = '''
import ctypes, gc, json, mmap, os, resource, sys, warnings
import torch
from torch import nn
import poet
from poet import _memory

words = json.loads(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
rows, width, depth = 16384, 128, 12
net = nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(width, width), nn.Softplus())])
optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
x = torch.randn(rows, width)


def train_step(x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def status(name):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return None


def high_water_of(call):
    """Most bytes of anonymous memory resident during the call; None where it cannot be known."""
    gc.collect()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return call(), None
    result = call()
    mark = status("VmHWM")
    return result, None if mark is None else mark - status("RssFile") - status("RssShmem")


def cached_share_of_page_files():
    """Share of the unnamed files' pages that the page cache holds, and the files' bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    held = total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if not (target.startswith(words["folder"]) and target.endswith("(deleted)")):
            continue
        size = os.fstat(int(name)).st_size
        if size == 0:
            continue
        with mmap.mmap(int(name), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as area:
            pages = (size + page - 1) // page
            flags = (ctypes.c_ubyte * pages)()
            first = ctypes.c_char.from_buffer(area)
            start = ctypes.c_void_p(ctypes.addressof(first))
            assert libc.mincore(start, ctypes.c_size_t(size), flags) == 0
            del first
            held += sum(flag & 1 for flag in flags)
            total += pages
    return (held / total if total else 0.0), total * page


found = {}
if words["how"] == "plain":
    _memory.give_memory_back()
    graph = poet.trace(train_step, x)  # so that the same code is loaded
    step = train_step
    calls = 2  # beside those of the trace
else:
    warnings.simplefilter("error")
    step = poet.wrap(train_step, background=False, time_limit_s=20, **words["options"])
    calls = 5
losses = [float(step(x)).hex() for _ in range(calls)]
if words["how"] == "poet":
    found["plain_peak"] = step.graph.plain_peak_bytes()
    found["status"] = str(step.schedule.status)
    found["peak"] = step.schedule.peak_bytes
else:
    found["plain_peak"] = graph.plain_peak_bytes()
if words["room"] is not None:
    arena = poet._C.arena_counters()
    free = arena["resident_bytes"] - arena["in_use_bytes"]  # serves the step: no room beside it
    limit = status("VmData") - free + words["room"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
loss, found["resident"] = high_water_of(lambda: step(x))
losses.append(float(loss).hex())
found["losses"] = losses[-3:]
if words["how"] == "poet":
    found["cached_share"], found["page_file"] = cached_share_of_page_files()
    stats = step.stats
    found["followed"] = stats.followed_steps
    found["recomputes"] = stats.planned_recomputes
    found["page_outs"] = getattr(stats, "planned_page_outs", 0)
print(json.dumps(found))
'''

OPTIONS: dict[str, dict[str, Any]] = {
    "recompute": {"ram_budget": "60%", "paging": False},
    "paging": {"ram_budget": "60%", "recompute": False},
    "both": {"ram_budget": "40%"},
}


def environment(how: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in _SWITCHES}
    ours |= {"OMP_NUM_THREADS": "1", "POET_VERIFY": "0"}
    plain = {"POET_ARENA": "0", "POET_MMAP_THRESHOLD": "131072"}
    return ours | plain if how == "plain" else ours


def process(
    how: str, options: dict[str, Any] | None = None, room: int | None = None
) -> subprocess.CompletedProcess[str]:
    words = {"how": how, "options": options or {}, "room": room, "folder": folder()}
    if how == "poet" and words["options"].get("paging", True):
        words["options"]["page_dir"] = words["folder"]
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(words)],
        env=environment(how),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@functools.cache
def folder() -> str:
    try:
        return _store.page_folder(None)
    except poet.ArgumentError as error:
        pytest.skip(f"no folder for paged values here: {error}")


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@functools.cache
def plain_run() -> dict[str, Any]:
    return answer(process("plain"))


@functools.cache
def poet_run(options: str) -> dict[str, Any]:
    return answer(process("poet", dict(OPTIONS[options])))


def skip_unless_memory_can_be_measured(*runs: dict[str, Any]) -> None:
    if any(run["resident"] is None for run in runs):
        pytest.skip("/proc/self/clear_refs cannot be written to: VmHWM cannot be reset")
    if _memory.other_allocator() is not None:
        pytest.skip("malloc is not glibc's own")


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_resident_memory_falls_by_what_the_schedule_says(options: str) -> None:
    plain, planned = plain_run(), poet_run(options)
    skip_unless_memory_can_be_measured(plain, planned)
    assert planned["status"] in ("optimal", "feasible")
    assert planned["followed"] >= 2
    assert planned["losses"] == plain["losses"]
    expected = planned["plain_peak"] - planned["peak"]
    assert expected > 64 * MIB
    fallen = plain["resident"] - planned["resident"]
    assert abs(fallen - expected) <= TOLERANCE * expected, (fallen / MIB, expected / MIB)


def test_each_way_of_making_room_was_used() -> None:
    assert poet_run("recompute")["recomputes"] > 0
    assert poet_run("recompute")["page_outs"] == 0
    assert poet_run("paging")["recomputes"] == 0
    assert poet_run("paging")["page_outs"] > 0


@pytest.mark.parametrize("options", OPTIONS)
def test_the_step_passes_under_a_data_limit_under_which_plain_training_dies(options: str) -> None:
    measured = poet_run(options)
    # Halfway between what the plan needs above what is there between steps, and what plain does.
    room = (measured["peak"] + measured["plain_peak"]) // 2
    died = process("plain", room=room - between_steps(measured))
    assert died.returncode != 0
    assert "allocate" in died.stderr, died.stderr
    lived = answer(process("poet", dict(OPTIONS[options]), room=room - between_steps(measured)))
    assert lived["losses"] == plain_run()["losses"]
    assert lived["followed"] >= 2


def between_steps(run: dict[str, Any]) -> int:
    """Bytes of the input, the parameters, their gradients and the optimizer's state."""
    width, depth, rows = 128, 12, 16384
    return 4 * (rows * width + 4 * depth * (width * width + width))


@pytest.mark.parametrize("options", ["paging", "both"])
def test_paged_bytes_leave_the_page_cache_too(options: str) -> None:
    run = poet_run(options)
    if options == "paging":
        assert run["page_file"] > 32 * MIB
    assert run["cached_share"] <= TOLERANCE
