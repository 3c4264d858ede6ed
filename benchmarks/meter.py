"""The outside meter: what a training step really holds, from PyTorch's own profiler.

    python benchmarks/meter.py --form poet --budget 250000000

One measurement a process. The profiler is begun before the model is built, because a second session
misreports what was allocated before it. It records every allocation and every free with its bytes
and its time; their running sum is what is resident, and the peak of a step is the highest sum
between the step's two marks. The last line printed is a JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Read when torch is loaded: without it the profiler's library writes lines of its own to stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch
from torch._C._autograd import _enable_record_function
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from _optimizers import OPTIMIZERS
from _state import digests
from steps import ARCHITECTURES, Training, batches, fixed_bytes

_MARK = "poet meter step"
_MEMORY = "[memory]"


@dataclass(frozen=True)
class StepMemory:
    """What one step held.

    Attributes:
        begin_bytes: resident when the step began.
        peak_bytes: the most that was resident at once from its beginning to its end.
        curve: seconds since the step began, and bytes resident from then on.
    """

    begin_bytes: int
    peak_bytes: int
    curve: list[tuple[float, int]]


class Meter:
    """A profiler session that follows memory alone. Begin it before the model is built.

        with Meter() as meter:
            model = build()
            for batch in batches:
                with meter.step():
                    train(batch)
        peak = meter.steps[-1].peak_bytes

    Only allocations and the marks of steps are recorded, no operators: the session costs next to
    no time, and thousands of steps fit. `Tensor`s made on another thread are not seen, which is
    why a step runs on the thread that began the session.
    """

    def __init__(self) -> None:
        self.steps: list[StepMemory] = []
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> Meter:
        self._profiler.start()
        _enable_record_function(False)
        return self

    def __exit__(self, *_: object) -> None:
        _enable_record_function(True)
        self._profiler.stop()
        self.steps = self._read()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Marks one step."""
        _enable_record_function(True)
        with record_function(_MARK):
            _enable_record_function(False)
            yield

    def _read(self) -> list[StepMemory]:
        session: Any = self._profiler.profiler
        events = session.kineto_results.events()
        marks = [
            (e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == _MARK
        ]
        memory = [(e.start_ns(), e.nbytes()) for e in events if e.name() == _MEMORY]
        return steps_of(memory, marks)


def steps_of(memory: list[tuple[int, int]], marks: list[tuple[int, int]]) -> list[StepMemory]:
    """The steps between the marks, from (nanoseconds, bytes gained or lost) since the start."""
    memory = sorted(memory, key=lambda event: event[0])  # stable: ties stay as they were recorded
    steps = []
    resident = 0
    next_event = 0
    for begin, end in sorted(marks):
        while next_event < len(memory) and memory[next_event][0] < begin:
            resident += memory[next_event][1]
            next_event += 1
        at_begin = peak = resident
        curve = [(0.0, resident)]
        while next_event < len(memory) and memory[next_event][0] <= end:
            resident += memory[next_event][1]
            peak = max(peak, resident)
            curve.append(((memory[next_event][0] - begin) / 1e9, resident))
            next_event += 1
        curve.append(((end - begin) / 1e9, resident))
        steps.append(StepMemory(at_begin, peak, curve))
    return steps


def typical(steps: list[StepMemory]) -> StepMemory:
    """The step whose duration is the median one: what it shows of time is nobody's disturbance."""
    return sorted(steps, key=lambda step: step.curve[-1][0])[len(steps) // 2]


def thinned(curve: list[tuple[float, int]], points: int = 400) -> list[tuple[float, int]]:
    """A curve with two samples at most in each of `points` equal spans: highest and last."""
    if not curve:
        return []
    span = max(curve[-1][0] / points, 1e-9)
    groups: dict[int, list[tuple[float, int]]] = {}
    for sample in curve:
        groups.setdefault(int(sample[0] / span), []).append(sample)
    kept = []
    for group in groups.values():
        highest = max(group, key=lambda sample: sample[1])
        kept += [highest] if highest == group[-1] else [highest, group[-1]]
    return kept


def run(options: argparse.Namespace) -> dict[str, Any]:
    """One measurement, as a record for JSON."""
    torch.set_num_threads(options.threads)
    losses: list[float] = []
    snapshots: dict[str, dict[str, str]] = {}
    followed: list[int] = []
    plan_record: dict[str, Any] | None = None
    with Meter() as meter:
        training = Training(
            options.architecture,
            checkpointed=options.form == "checkpoint",
            compiled=options.activation_memory_budget if options.form == "compiled" else None,
            optimizer=None if options.no_optimizer else options.optimizer,
        )
        step: Any = training.step
        if options.form == "poet":
            step = training.wrapped(
                options.budget,
                options.time_limit,
                paging=options.paging == "on",
                page_dir=options.page_dir,
                minimize=options.minimize,
            )
        feed = batches(options.architecture)
        for index in range(options.steps):
            batch = next(feed)
            with meter.step():
                loss = step(*batch)
            losses.append(loss.item())
            del loss, batch
            if options.form == "poet" and step.stats.followed_steps > len(followed):
                followed.append(index)
            if options.form == "poet" and index + 1 == options.steps:
                # Before the digests, which bring back what is away between steps.
                plan_record = poet_record(
                    step,
                    options.budget,
                    paging=options.paging == "on",
                    page_dir=options.page_dir,
                )
            if options.digests and index + 1 in (options.snapshot, options.steps):
                snapshots[str(index + 1)] = digests(training.state(), losses)
        fixed = fixed_bytes(training)
        parameters = sum(p.nbytes for p in training.model.parameters())
    counted = followed if options.form == "poet" else list(range(1, options.steps))
    late = [meter.steps[index] for index in counted]
    record: dict[str, Any] = {
        "form": options.form,
        "steps": options.steps,
        "counted_steps": counted,
        "threads": options.threads,
        "peak_bytes": max((s.peak_bytes for s in late), default=None),
        "peaks": [s.peak_bytes for s in meter.steps],
        "parameter_bytes": parameters,
        "fixed_bytes": fixed,
        "losses": losses,
        "snapshots": snapshots,
    }
    if plan_record is not None:
        record["poet"] = plan_record
    if options.curve and late:
        record["curve"] = thinned(typical(late).curve)
    return record


def poet_record(
    step: Any, budget: int, *, paging: bool = False, page_dir: str | None = None
) -> dict[str, Any]:
    """What a wrapped step says of its plan and of what it did."""
    schedule, graph, stats = step.schedule, step.graph, step.stats
    has_plan = schedule is not None and schedule.has_plan
    return {
        "budget_bytes": budget,
        "status": None if schedule is None else str(schedule.status),
        "predicted_peak_bytes": schedule.peak_bytes if has_plan else None,
        "predicted_extra_percent": 100 * (schedule.makespan_seconds / graph.plain_seconds - 1)
        if has_plan
        else None,
        # By the program's own arithmetic; predicted_extra_percent is the simulator's.
        "believed_extra_percent": 100 * (schedule.believed_seconds / graph.plain_seconds - 1)
        if has_plan
        else None,
        "gap": schedule.gap if has_plan else None,
        "compact_bytes": len(schedule.to_bytes()) if has_plan else None,
        "solve_seconds": None if schedule is None else schedule.solve_seconds,
        "least_ram_budget": None if schedule is None else schedule.least_ram_budget,
        "message": stats.message,
        "ops": None if graph is None else len(graph.ops),
        "traced_steps": stats.traced_steps,
        "followed_steps": stats.followed_steps,
        "departures": stats.departures,
        "planned_recomputes": stats.planned_recomputes,
        "unplanned_recomputes": stats.unplanned_recomputes,
        "departures_reason": stats.last_departure,
        "first_unplanned": stats.first_unplanned,
        "planned_page_outs": stats.planned_page_outs,
        "planned_page_ins": stats.planned_page_ins,
        "unplanned_page_ins": stats.unplanned_page_ins,
        "moved_between_steps": stats.moved_between_steps,
        "paged_out_bytes": stats.paged_out_bytes,
        "paged_in_bytes": stats.paged_in_bytes,
        "transfer_seconds": stats.transfer_seconds,
        "waited_seconds": stats.waited_seconds,
        "paging_trouble": stats.paging_trouble,
        "store": store_record(page_dir) if paging else None,
    }


def store_record(page_dir: str | None) -> dict[str, Any] | None:
    """How fast poet found the store to be in this process; None where it did not look."""
    from poet._store import known_speed, page_folder  # noqa: PLC0415  as in Training.wrapped

    speed = known_speed(page_folder(page_dir), None)
    return None if speed is None else dataclasses.asdict(speed)


def measure(form: str, *, steps: int, threads: int = 1, **more: Any) -> dict[str, Any]:
    """Runs one measurement in a process of its own and returns its record.

    Raises:
        RuntimeError: the process failed; its last words are in the message.
    """
    words = ["--form", form, "--steps", str(steps), "--threads", str(threads)]
    return run_script(Path(__file__), words + as_words(more))


def as_words(options: dict[str, Any]) -> list[str]:
    """Keyword options as words of a command line; True is a bare flag, None and False are none."""
    words: list[str] = []
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


def run_script(script: Path, words: list[str]) -> dict[str, Any]:
    """Runs a script whose last line is a JSON object, and returns that."""
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{script.name} {' '.join(words)} failed:\n{done.stderr[-4000:]}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def add_step_options(
    parser: argparse.ArgumentParser,
    paging: tuple[str, ...] = ("off", "on"),
    minimize: str = "energy",
) -> None:
    """The options that say which step is meant, and what poet may do with it."""
    parser.add_argument("--architecture", choices=sorted(ARCHITECTURES), default="resnet18")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adamw")
    parser.add_argument("--no-optimizer", action="store_true", help="forward and backward only")
    parser.add_argument(
        "--paging", choices=paging, default=paging[0], help="poet may use secondary storage"
    )
    parser.add_argument("--minimize", choices=["energy", "time", "memory"], default=minimize)
    parser.add_argument("--page-dir", help="where paged values go; the default is poet's")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for the planner")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    forms = ["plain", "checkpoint", "compiled", "poet"]
    parser.add_argument("--form", choices=forms, default="plain")
    parser.add_argument(
        "--activation-memory-budget", type=float, default=1.0, help="for --form compiled"
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=int, help="bytes; for --form poet")
    add_step_options(parser)
    parser.add_argument("--curve", action="store_true", help="also one step's memory by time")
    parser.add_argument("--digests", action="store_true", help="also digests of the whole state")
    parser.add_argument("--snapshot", type=int, help="a step after which digests are taken as well")
    options = parser.parse_args()
    if options.form == "poet" and options.budget is None:
        parser.error("--form poet needs --budget")
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
