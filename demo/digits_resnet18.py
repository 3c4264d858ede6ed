"""Trains ResNet-18 on real digits three times: plain, checkpointed, and with poet inside a budget.

    python demo/digits_resnet18.py [--steps 120] [--threads 2]

Each run has a process of its own, one after the other, with the same seed and the same batches.
The memory is what PyTorch's profiler counted, allocation by allocation. Ends with a table and a
picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from _report import picture, table  # noqa: E402

from _curves import MIB, NAMES  # noqa: E402

SLACK = 0.35


def main() -> int:
    """Entry point; returns the exit status."""
    options = _options()
    if options.form:
        record = train(options)
        options.record.write_text(json.dumps(record), encoding="utf-8")
        return 0
    begin = time.monotonic()
    print(
        f"ResNet-18 on scikit-learn's digits: {options.steps} AdamW steps of 32 images, "
        f"{options.threads} thread{'s'[: options.threads > 1]}, three runs."
    )
    plain = run("plain", options)
    checkpoint = run("checkpoint", options)
    poet, said = run_poet(options, plain, checkpoint)
    records = {"plain": plain, "checkpoint": checkpoint, "poet": poet}
    path = options.out / "digits_memory.png"
    picture(records, path)
    print(f"\n{table(records)}\n{said}")
    print(f"memory against time: {path}  ({time.monotonic() - begin:.0f} s in all)")
    return 0 if poet["poet"]["followed_steps"] > 0 else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=120, help="of each run; 4 or more")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for the planner")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out")
    # How the demo calls itself for one run.
    parser.add_argument("--form", choices=sorted(NAMES), help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 4:
        parser.error("--steps: expected 4 or more; poet records three steps, then its plan holds")
    return options


def run_poet(
    options: argparse.Namespace, plain: dict[str, Any], checkpoint: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """The run with poet, and a sentence that says which budget it had and what was planned.

    The budget is the one at slack 0.35, well below what checkpointing needs. Should the planner
    have no plan for that, checkpointing's own peak is the budget.
    """
    low = plain["slack_budget_bytes"]
    why = f"slack {SLACK} between what cannot go away and the plain peak"
    record = run("poet", options, budget=low)
    if record["poet"]["followed_steps"] == 0:
        least = record["poet"]["least_ram_budget"]
        print(
            f"No plan within {low / MIB:.1f} MiB ({record['poet']['status']}"
            + (f"; the least is {least / MIB:.1f} MiB" if least else "")
            + "): once more, with checkpointing's own peak."
        )
        why = "checkpointing's own peak"
        record = run("poet", options, budget=checkpoint["peak_bytes"])
    plan = record["poet"]
    budget = f"poet's budget: {plan['budget_bytes'] / MIB:.1f} MiB, {why}"
    if plan["followed_steps"] == 0:
        return record, f"{budget}; no plan: {plan['status']}. {plan['message']}"
    return record, (
        f"{budget}; planned in {plan['solve_seconds']:.0f} s ({plan['status']}), predicted peak "
        f"{plan['predicted_peak_bytes'] / MIB:.1f} MiB; {plan['followed_steps']} of "
        f"{options.steps} steps followed the plan, the others were recorded"
    )


def run(form: str, options: argparse.Namespace, budget: int | None = None) -> dict[str, Any]:
    """One run in a process of its own; its progress bar shows through.

    Raises:
        SystemExit: the run failed; it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        words = [sys.executable, str(Path(__file__)), "--form", form, "--record", str(path)]
        words += ["--steps", str(options.steps), "--threads", str(options.threads)]
        words += ["--time-limit", str(options.time_limit)]
        words += [] if budget is None else ["--budget", str(budget)]
        if subprocess.run(words, check=False).returncode != 0:
            raise SystemExit(f"the {NAMES[form]} run failed")
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process, with the meter on from before the model is built."""
    import _digits  # noqa: PLC0415
    import torch  # noqa: PLC0415  the parent process needs none of these
    from tqdm import tqdm  # noqa: PLC0415

    from _state import digests  # noqa: PLC0415
    from meter import Meter, poet_record, thinned, typical  # noqa: PLC0415
    from steps import Training, budget_at, fixed_bytes  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    digits = _digits.load()
    feed = _digits.batches(digits)
    losses: list[float] = []
    seconds: list[float] = []
    planned: list[int] = []
    with Meter() as meter:
        training = Training("resnet18", checkpointed=options.form == "checkpoint")
        step: Any = training.step
        if options.form == "poet":
            step = training.wrapped(options.budget, options.time_limit)
        with tqdm(total=options.steps, desc=f"{NAMES[options.form]:>16}", unit="step") as bar:
            for index in range(options.steps):
                batch = next(feed)
                if options.form == "poet" and step.schedule is None:
                    bar.set_postfix_str("recording, then planning", refresh=True)
                begin = time.perf_counter()
                with meter.step():
                    loss = step(*batch)
                seconds.append(time.perf_counter() - begin)
                losses.append(loss.item())
                del loss, batch
                if options.form == "poet" and step.stats.followed_steps > len(planned):
                    planned.append(index)
                bar.set_postfix_str(f"loss {losses[-1]:.4f}", refresh=False)
                bar.update()
    counted = planned if options.form == "poet" else list(range(1, options.steps))
    late = [meter.steps[index] for index in counted]
    fixed = fixed_bytes(training)
    record: dict[str, Any] = {
        "form": options.form,
        "peak_bytes": max((step_memory.peak_bytes for step_memory in late), default=None),
        "step_seconds": statistics.median(seconds[i] for i in counted) if counted else None,
        "fixed_bytes": fixed,
        "curve": thinned(typical(late).curve) if late else [],
        "digests": digests(training.state(), losses),
        "batch_norm_updates": {
            name: int(buffer)
            for name, buffer in training.model.named_buffers()
            if name.endswith("num_batches_tracked")
        },
        "accuracy": accuracy(training.model, digits.test_scans, digits.test_classes),
    }
    if options.form == "poet":
        record["poet"] = poet_record(step, options.budget)
    if options.form == "plain":
        record["slack_budget_bytes"] = budget_at(SLACK, fixed, record["peak_bytes"])
    return record


def accuracy(model: Any, scans: Any, classes: Any) -> float:
    """The share of the held-out scans that the model names correctly."""
    import _digits  # noqa: PLC0415
    import torch  # noqa: PLC0415

    model.eval()
    with torch.no_grad():
        right = [
            int((model(_digits.as_images(some)).argmax(1) == truth).sum())
            for some, truth in zip(scans.split(90), classes.split(90), strict=True)
        ]
    model.train()
    return sum(right) / len(classes)


if __name__ == "__main__":
    sys.exit(main())
