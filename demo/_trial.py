"""Three runs of one training, plain, checkpointed and with poet, each in a process of its own.

What the demos share: a script says what is trained and calls `main`, which calls the script anew
for every run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from _report import difference, picture, second_opinion, table  # noqa: E402

from _curves import MIB, NAMES  # noqa: E402


@dataclass(frozen=True)
class Trial:
    """What is trained, and within which budget.

    Attributes:
        script: the demo's own file.
        what: the training in a few words.
        architecture: which of steps.ARCHITECTURES.
        feed: endless batches to learn from; called in the run's own process.
        accuracy: the share of held-out rows that a model names correctly.
        slack: of poet's budget, between S and the plain peak; None: a share of S instead.
        share: poet's budget as a share of S, for which values must be paged.
        picture: file name of the picture.
        caption: its heading.
        learning_rate: of AdamW; None is its own.
        steps: of each run, when the command line does not say.
    """

    script: Path
    what: str
    architecture: str
    feed: Callable[[], Iterator[tuple[Any, ...]]]
    accuracy: Callable[[Any], float]
    picture: str
    caption: str
    slack: float | None = None
    share: float | None = None
    learning_rate: float | None = None
    steps: int = 45

    def budget(self, fixed: int, plain_peak: int) -> int:
        """What poet gets, in bytes."""
        from steps import budget_at  # noqa: PLC0415  imports torch, which the parent never needs

        if self.slack is not None:
            return budget_at(self.slack, fixed, plain_peak)
        assert self.share is not None
        return round(self.share * fixed)

    def why(self) -> str:
        """The budget in words."""
        if self.slack is not None:
            return f"slack {self.slack} between what cannot go away and the plain peak"
        return (
            f"{100 * (self.share or 0):.0f} % of what parameters, gradients and the optimizer hold "
            "together: some of them are in a file at any time"
        )


def main(trial: Trial) -> int:
    """Entry point; returns the exit status."""
    options = _options(trial)
    if options.form:
        options.record.write_text(json.dumps(train(trial, options)), encoding="utf-8")
        return 0
    begin = time.monotonic()
    threads = f"{options.threads} thread{'s'[: options.threads > 1]}"
    print(f"{trial.what}, {options.steps} AdamW steps, {threads}, three runs.")
    plain = run(trial, "plain", options)
    checkpoint = run(trial, "checkpoint", options)
    poet, said = run_poet(trial, options, plain, checkpoint)
    records = {"plain": plain, "checkpoint": checkpoint, "poet": poet}
    path = options.out / trial.picture
    picture(records, path, trial.caption)
    print(f"\n{table(records)}\n{said}")
    if difference(poet, plain):
        print("poet's run has other bits than plain training: the latter once more.")
        print(second_opinion(poet, plain, run(trial, "plain", options)))
    print(
        f"loss: {plain['losses'][0]:.3f} in the first step, {plain['losses'][-1]:.3f} in the last"
    )
    print(f"memory against time: {path}  ({time.monotonic() - begin:.0f} s in all)")
    return 0 if poet["poet"]["followed_steps"] > 0 else 1


def _options(trial: Trial) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=trial.what)
    parser.add_argument("--steps", type=int, default=trial.steps, help="of each run; 4 or more")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for the planner")
    parser.add_argument("--page-dir", help="where paged values go; the default is poet's")
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
    trial: Trial, options: argparse.Namespace, plain: dict[str, Any], checkpoint: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """The run with poet, and a sentence that says which budget it had and what was planned.

    Should the planner have no plan for the trial's budget, checkpointing's own peak is the budget.
    """
    low = plain["low_budget_bytes"]
    why = trial.why()
    record = run(trial, "poet", options, budget=low)
    if record["poet"]["followed_steps"] == 0:
        least = record["poet"]["least_ram_budget"]
        print(
            f"No plan within {low / MIB:.1f} MiB ({record['poet']['status']}"
            + (f"; the least is {least / MIB:.1f} MiB" if least else "")
            + "): once more, with checkpointing's own peak."
        )
        why = "checkpointing's own peak"
        record = run(trial, "poet", options, budget=checkpoint["peak_bytes"])
    plan = record["poet"]
    budget = f"poet's budget: {plan['budget_bytes'] / MIB:.1f} MiB, {why}"
    if plan["followed_steps"] == 0:
        return record, f"{budget}; no plan: {plan['status']}. {plan['message']}"
    return record, (
        f"{budget}; planned in {plan['solve_seconds']:.0f} s ({plan['status']}), predicted peak "
        f"{plan['predicted_peak_bytes'] / MIB:.1f} MiB; {plan['followed_steps']} of "
        f"{options.steps} steps followed the plan, the others were recorded"
    )


def run(
    trial: Trial, form: str, options: argparse.Namespace, budget: int | None = None
) -> dict[str, Any]:
    """One run in a process of its own; its progress bar shows through.

    Raises:
        SystemExit: the run failed; it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        words = [sys.executable, str(trial.script), "--form", form, "--record", str(path)]
        words += ["--steps", str(options.steps), "--threads", str(options.threads)]
        words += ["--time-limit", str(options.time_limit)]
        words += [] if options.page_dir is None else ["--page-dir", options.page_dir]
        words += [] if budget is None else ["--budget", str(budget)]
        if subprocess.run(words, check=False).returncode != 0:
            raise SystemExit(f"the {NAMES[form]} run failed")
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record


def train(trial: Trial, options: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process, with the meter on from before the model is built."""
    import torch  # noqa: PLC0415  the parent process needs none of these
    from tqdm import tqdm  # noqa: PLC0415

    from _state import digests  # noqa: PLC0415
    from meter import Meter, poet_record, thinned, typical  # noqa: PLC0415
    from steps import Training, fixed_bytes  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    feed = trial.feed()
    losses: list[float] = []
    seconds: list[float] = []
    planned: list[int] = []
    with Meter() as meter:
        training = Training(
            trial.architecture,
            checkpointed=options.form == "checkpoint",
            learning_rate=trial.learning_rate,
        )
        step: Any = training.step
        if options.form == "poet":
            step = training.wrapped(
                options.budget,
                options.time_limit,
                paging=trial.share is not None,
                page_dir=options.page_dir,
            )
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
        "losses": losses,
        "digests": digests(training.state(), losses),
        "batch_norm_updates": {
            name: int(buffer)
            for name, buffer in training.model.named_buffers()
            if name.endswith("num_batches_tracked")
        },
        "accuracy": trial.accuracy(training.model),
    }
    if options.form == "poet":
        record["poet"] = poet_record(step, options.budget)
    if options.form == "plain":
        record["low_budget_bytes"] = trial.budget(fixed, record["peak_bytes"])
    return record
