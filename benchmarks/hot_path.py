"""What a wrapped step costs where nothing presses: a plan that does nothing, step by step.

    python benchmarks/hot_path.py [--only tiny] [--pairs 60] [--save hot_path]

Plain and wrapped steps take turns in one process, in both orders; the median of the differences is
given, per operator that poet hears and in percent of the plain step. "tiny" is a step of thousands
of operators on 8 x 8 matrices; the others train with AdamW. One thread. Prints the figures and, as
JSON in the last line, what bounds.toml limits.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "planner"))

import torch
from _architectures import ARCHITECTURES

import poet
import steps
from _data import context, save
from rounds import take_turns, timed

NAMES = ("tiny", "vit", "gpt2", "bert", "resnet18")
WHOLE = ("vit", "gpt2", "bert")  # whose microseconds an operator are limited together
_WARM_UP = 8
_MATRICES, _ROUNDS = 40, 12


def tiny_step() -> Callable[..., Any]:
    """A chain of products and tanh of 8 x 8 matrices, with SGD."""
    torch.manual_seed(0)
    weights = [torch.randn(8, 8, requires_grad=True) for _ in range(_MATRICES)]
    optimizer = torch.optim.SGD(weights, 1e-3)
    start = torch.randn(8, 8)

    def step() -> None:
        optimizer.zero_grad()
        x = start
        for _ in range(_ROUNDS):
            for weight in weights:
                x = torch.tanh(x @ weight)
        x.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def step_of(name: str) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """The step of that name, and its batch."""
    if name == "tiny":
        return tiny_step(), ()
    parts = (steps.ARCHITECTURES | ARCHITECTURES)[name]
    training = steps.Training(parts, optimizer="adamw")
    return training.step, next(parts.batches(torch.Generator().manual_seed(1)))


def measure(name: str, pairs: int) -> dict[str, Any]:
    """One step: plain and wrapped in turn."""
    torch.set_num_threads(1)
    step, batch = step_of(name)
    wrapped = poet.wrap(step, ram_budget="300%", background=False, cache_dir=None)
    for _ in range(_WARM_UP):
        wrapped(*batch)
    followed = wrapped.stats.followed_steps
    if followed < 1:
        raise RuntimeError(f"{name}: no plan is followed after {_WARM_UP} calls")
    assert wrapped.graph is not None
    ops = len(wrapped.graph.ops)
    runs: dict[str, Callable[..., Any]] = {"plain": step, "wrapped": wrapped}
    forms: dict[str, Callable[[], dict[str, float]]] = {
        name: functools.partial(timed, functools.partial(run, *batch)) for name, run in runs.items()
    }
    timings = take_turns(forms, pairs)
    plain = timings["plain"].seconds
    extra = [own - other for own, other in zip(timings["wrapped"].seconds, plain, strict=True)]
    seconds = statistics.median(extra)
    quartiles = statistics.quantiles(extra, n=4)
    return {
        "step": name,
        "ops": ops,
        "pairs": pairs,
        "plain_seconds": statistics.median(plain),
        "extra_microseconds_per_op": 1e6 * seconds / ops,
        "quartiles": [1e6 * each / ops for each in (quartiles[0], quartiles[2])],
        "extra_percent": 100 * seconds / statistics.median(plain),
    }


def values(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What bounds.toml limits."""
    found = {row["step"]: row for row in rows}
    figures = {}
    if "tiny" in found:
        figures["hot_path_tiny"] = found["tiny"]["extra_microseconds_per_op"]
    whole = [found[name]["extra_microseconds_per_op"] for name in WHOLE if name in found]
    if whole:
        figures["hot_path_whole_steps"] = max(whole)
    texts = [found[name]["extra_percent"] for name in ("gpt2", "bert") if name in found]
    if texts:
        figures["hot_path_transformers_percent"] = max(texts)
    if "resnet18" in found:
        figures["hot_path_resnet18_percent"] = found["resnet18"]["extra_percent"]
    return figures


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options; `words` in place of the command line's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--save", metavar="NAME", help="name under benchmarks/data")
    return parser.parse_args(words)


def main() -> None:
    """Measures and saves."""
    options = parse()
    rows = []
    for name in options.only:
        rows.append(measure(name, options.pairs))
        row = rows[-1]
        print(
            f"{name:10} {row['ops']:5} ops  plain {1e3 * row['plain_seconds']:8.2f} ms  "
            f"{row['extra_microseconds_per_op']:6.3f} us an op  {row['extra_percent']:+.2f} %",
            flush=True,
        )
    if options.save:
        save(options.save, context() | {"rows": rows})
    print(json.dumps({"values": values(rows)}))


if __name__ == "__main__":
    main()
