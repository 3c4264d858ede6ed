"""What poet itself takes of memory beside a step's tensors: recordings, plans, buffers.

    python benchmarks/own_memory.py [--only gpt2] [--save own_memory]

AdamW steps at slack 0.5, in a process each. `StepStats.own_bytes` is what poet counts; beside it
stands what malloc has given out between the plain steps and the planned ones, gradients dropped at
both moments, so that all else is the same (without paging: what is paged is not malloc's). Prints
the figures and, as JSON in the last line, what bounds.toml limits: own bytes to 1 % of the budget
or 1 MiB, whichever is more.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "planner"))

import torch
from _architectures import ARCHITECTURES

import poet
import steps
from _data import context, save

NAMES = ("resnet18", "gpt2", "bert", "vit")
BOUND = "own_memory"
_SLACK = 0.5
_CALLS = 6


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def malloc_bytes() -> int:
    """What glibc's malloc has given out and not got back."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    now = mallinfo2()
    return int(now.uordblks + now.hblkhd)


def measure(name: str, paging: bool) -> dict[str, Any]:
    """One step: plain, then planned."""
    torch.set_num_threads(1)
    parts = (steps.ARCHITECTURES | ARCHITECTURES)[name]
    training = steps.Training(parts, optimizer="adamw")
    batch = next(parts.batches(torch.Generator().manual_seed(1)))

    def in_use() -> int:
        for parameter in training.model.parameters():
            parameter.grad = None
        gc.collect()
        return malloc_bytes()

    for _ in range(2):
        training.step(*batch)
    probe = poet.trace(training.step, *batch)
    budget = steps.budget_at(_SLACK, steps.fixed_bytes(training), probe.plain_peak_bytes())
    del probe
    before = in_use()
    wrapped = poet.wrap(
        training.step,
        ram_budget=budget,
        paging=paging,
        background=False,
        cache_dir=None,
        time_limit_s=10,
    )
    for _ in range(_CALLS):
        wrapped(*batch)
    stats = wrapped.stats
    if stats.followed_steps < 1:
        raise RuntimeError(f"{name}: no plan is followed after {_CALLS} calls")
    assert wrapped.graph is not None
    return {
        "step": name,
        "paging": paging,
        "ops": len(wrapped.graph.ops),
        "variants": stats.variants,
        "budget_bytes": budget,
        "own_bytes": stats.own_bytes,
        "malloc_bytes": None if paging else in_use() - before,
        "to_limit": stats.own_bytes / max(budget / 100, 1 << 20),
    }


def values(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What bounds.toml limits."""
    return {BOUND: max(row["to_limit"] for row in rows)}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options; `words` in place of the command line's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--save", metavar="NAME", help="name under benchmarks/data")
    return parser.parse_args(words)


def main() -> None:
    """Measures and saves."""
    options = parse()
    rows = []
    spawn = multiprocessing.get_context("spawn")
    for name in options.only:
        for paging in (False, True):
            with ProcessPoolExecutor(1, mp_context=spawn) as own_process:
                rows.append(own_process.submit(measure, name, paging).result())
            row = rows[-1]
            by_malloc = "" if paging else f", {row['malloc_bytes'] / 2**20:.2f} MiB by malloc"
            print(
                f"{name:10} {'paging' if paging else 'recompute':9} {row['ops']:5} ops  "
                f"{row['own_bytes'] / 2**20:6.2f} MiB own{by_malloc}, "
                f"{100 * row['own_bytes'] / row['budget_bytes']:.2f} % of the budget",
                flush=True,
            )
    if options.save:
        save(options.save, context() | {"slack": _SLACK, "rows": rows})
    print(json.dumps({"values": values(rows)}))


if __name__ == "__main__":
    main()
