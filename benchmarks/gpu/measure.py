"""What less memory costs in time on a CUDA device: poet beside PyTorch's own ways.

    python benchmarks/gpu/measure.py --model gpt2 resnet50 --out build/gpu

Peaks are those of the caching allocator (torch.cuda.max_memory_allocated), whole steps: forward,
backward and AdamW. Forms that are compared take turns, a few steps each, in rounds: plain,
torch.utils.checkpoint at every block, selective checkpointing (matrix products, attention and
convolutions are kept), save_on_cpu with pinned memory, and poet at the peak that each of them was
measured to have, and at some slacks (a budget of S + r * (plain peak - S), where S is what lies on
the device between two steps and twice the largest parameter). All of them train the same
model, one after another; what is timed does not depend on what it has learned.

Writes one JSON file a model, and prints a table.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import poet

DEVICE = "cuda"
# The first steps in a plan count what lies beside it (after 1, 2, 4, 8, ... of them).
WARMING_STEPS = 9
_TRACED_CALLS = 4

aten = torch.ops.aten
KEPT_BY_SELECTIVE = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
]

Forward = Callable[[], torch.Tensor]
Step = Callable[[], Any]


class Training:
    """A model on the device, its batch and its optimizer."""

    def __init__(self, model: nn.Module, blocks: list[nn.Module], loss: Forward) -> None:
        self.model = model.to(DEVICE).train()
        self.blocks = blocks
        self.loss = loss
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self) -> None:
        """Forward, backward and update."""
        self.optimizer.zero_grad()
        self.loss().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def form(self, name: str) -> Step:
        """One of PyTorch's ways as a step."""
        around: Callable[[], AbstractContextManager[Any]] = nullcontext
        if name == "plain":
            return self.step
        if name == "save_on_cpu":
            around = functools.partial(torch.autograd.graph.save_on_cpu, pin_memory=True)
            return functools.partial(self._step_within, around)
        contexts: dict[str, Any] = {}
        if name == "selective":
            contexts["context_fn"] = functools.partial(
                create_selective_checkpoint_contexts, KEPT_BY_SELECTIVE
            )
        return functools.partial(self._checkpointed_step, contexts)

    def _step_within(self, around: Callable[[], AbstractContextManager[Any]]) -> None:
        self.optimizer.zero_grad()
        with around():
            loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _checkpointed_step(self, contexts: dict[str, Any]) -> None:
        own = [block.forward for block in self.blocks]
        for block, forward in zip(self.blocks, own, strict=True):
            block.forward = functools.partial(checkpoint, forward, use_reentrant=False, **contexts)
        try:
            self.step()
        finally:
            for block in self.blocks:
                del block.__dict__["forward"]


def gpt2(batch: int) -> Training:
    """GPT-2 of 124 million parameters, sequences of 1,024, autocast to bfloat16."""
    import transformers  # noqa: PLC0415

    config = transformers.GPT2Config(use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    words = torch.randint(config.vocab_size, (batch, config.n_positions), device=DEVICE)

    def loss() -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            found: torch.Tensor = model(input_ids=words, labels=words).loss
            return found

    return Training(model, list(model.transformer.h), loss)


def resnet50(batch: int) -> Training:
    """ResNet-50 on images of 224 x 224, 32-bit floats."""
    import transformers  # noqa: PLC0415

    config: Any = transformers.ResNetConfig(num_labels=1000)  # type: ignore[call-arg]
    model: Any = transformers.ResNetForImageClassification(config)
    images = torch.randn(batch, 3, 224, 224, device=DEVICE)
    labels = torch.randint(1000, (batch,), device=DEVICE)
    blocks = [layer for stage in model.resnet.encoder.stages for layer in stage.layers]

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(images).logits, labels)

    return Training(model, blocks, loss)


MODELS = {"gpt2": (gpt2, 16), "resnet50": (resnet50, 128)}


def peak_of(step: Step) -> dict[str, int]:
    """Of one call: what the caching allocator gave out at most, and what was asked of it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "peak_bytes": stats["allocated_bytes.all.peak"],
        "requested_peak_bytes": stats["requested_bytes.all.peak"],
        "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
    }


def seconds_of(step: Step, calls: int) -> float:
    """Of one call, on average."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def take_turns(steps: dict[str, Step], rounds: int, calls: int) -> dict[str, dict[str, Any]]:
    """Peaks, and the median seconds of each form, also as a ratio to the first one's."""
    found: dict[str, dict[str, Any]] = {}
    for name, step in steps.items():
        for _ in range(WARMING_STEPS if name == "poet" else 1):
            step()
        found[name] = {**peak_of(step), "seconds": []}
    for _ in range(rounds):
        for name, step in steps.items():
            found[name]["seconds"].append(seconds_of(step, calls))
    first = next(iter(found.values()))["seconds"]
    for one in found.values():
        one["ratio"] = statistics.median(a / b for a, b in zip(one["seconds"], first, strict=True))
        one["median_seconds"] = statistics.median(one["seconds"])
    return found


def with_poet(
    training: Training, budget: int, options: argparse.Namespace, *, pages: bool
) -> tuple[poet.WrappedStep | None, dict[str, Any]]:
    """The plain step under a budget; None where there is no plan."""
    step = poet.wrap(
        training.step,
        ram_budget=budget,
        background=False,
        minimize="time",
        cache_dir=options.cache,
        paging=pages,
        time_limit_s=options.time_limit,
    )
    begin = time.perf_counter()
    for _ in range(_TRACED_CALLS + 2):
        step()
        if step.stats.followed_steps > 1:
            break
    torch.cuda.synchronize()
    schedule = step.schedule
    about: dict[str, Any] = {
        "budget_bytes": budget,
        "paging": pages,
        "status": str(schedule.status) if schedule else None,
        "message": step.stats.message,
        "preparation_seconds": time.perf_counter() - begin,
    }
    if schedule is None or not schedule.has_plan:
        about["least_ram_budget"] = schedule.least_ram_budget if schedule else None
        return None, about
    about |= {
        "predicted_peak_bytes": schedule.peak_bytes,
        "predicted_seconds": schedule.makespan_seconds,
        "plain_predicted_seconds": step.graph.plain_seconds if step.graph else None,
        "gap": schedule.gap,
        "solve_seconds": schedule.solve_seconds,
        "num_ops": schedule.num_ops,
    }
    return step, about


def end_of(step: poet.WrappedStep) -> dict[str, Any]:
    stats = step.stats
    names = [
        *("steps", "followed_steps", "departures", "last_departure", "replayed_ops"),
        *("planned_page_outs", "planned_page_ins", "paged_out_bytes", "paged_in_bytes"),
        *("unplanned_recomputes", "first_unplanned", "skipped_frees"),
    ]
    return {name: getattr(stats, name) for name in names}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All forms of one model."""
    torch.manual_seed(0)
    build, batch = MODELS[name]
    batch = options.batch or batch
    training = build(batch)
    plain = training.form("plain")
    for _ in range(3):
        plain()
    torch.cuda.synchronize()
    largest = max(p.nbytes for p in training.model.parameters())
    stays = torch.cuda.memory_allocated() + 2 * largest
    plain_peak = peak_of(plain)["peak_bytes"]
    record: dict[str, Any] = {
        "model": name,
        "batch": batch,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rounds": options.rounds,
        "calls_a_round": options.calls,
        "time_limit_s": options.time_limit,
        "between_steps_bytes": torch.cuda.memory_allocated(),
        "plain_peak_bytes": plain_peak,
        "groups": [],
    }
    targets: list[tuple[str, int | None]] = [(form, None) for form in options.forms]
    targets += [(f"slack {r:g}", int(stays + r * (plain_peak - stays))) for r in options.slacks]
    for form, given in targets:
        steps: dict[str, Step] = {"plain": plain}
        budget = given
        if budget is None:
            steps[form] = training.form(form)
            steps[form]()
            budget = peak_of(steps[form])["peak_bytes"]
        # Against save_on_cpu poet may use the host's memory, too.
        pages = options.paging or form == "save_on_cpu"
        wrapped, about = with_poet(training, budget, options, pages=pages)
        if wrapped is not None:
            steps["poet"] = wrapped
        group: dict[str, Any] = {
            "at": form,
            "forms": take_turns(steps, options.rounds, options.calls),
            "poet": about,
        }
        if wrapped is not None:
            group["poet"] |= end_of(wrapped)
            wrapped.close()
        record["groups"].append(group)
        show(group)
        save(record, options.out)  # what is there counts, should a later one fail
        del wrapped, steps
        gc.collect()
        torch.cuda.empty_cache()
    return record


def show(group: dict[str, Any]) -> None:
    gib = 2.0**30
    for name, one in group["forms"].items():
        print(
            f"{group['at']:>14} {name:>12}: peak {one['peak_bytes'] / gib:6.2f} GiB, "
            f"{1000 * one['median_seconds']:8.2f} ms, {one['ratio']:.3f} of plain",
            flush=True,
        )
    print(f"{'':>14} poet: {group['poet']}", flush=True)


def save(record: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['model']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--batch", type=int, help="in place of each model's own")
    parser.add_argument(
        "--forms",
        nargs="*",
        choices=["checkpoint", "selective", "save_on_cpu"],
        default=["checkpoint", "selective", "save_on_cpu"],
    )
    parser.add_argument("--slacks", type=float, nargs="*", default=[0.5, 0.3])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3, help="of a form in each round")
    parser.add_argument("--time-limit", type=float, default=60, help="of a plan, in seconds")
    parser.add_argument(
        "--paging",
        action="store_true",
        help="poet may use pinned memory of the host, not only against save_on_cpu",
    )
    parser.add_argument("--cache", help="a folder that keeps plans for the next run")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    return parser.parse_args()


def main() -> None:
    """Entry point."""
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here: nothing is measured")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    options = parse()
    for name in options.model:
        print(f"{name} on {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
        measure(name, options)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
