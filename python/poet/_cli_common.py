"""What the commands share: exit codes, the arguments of a model, a schedule as JSON."""

from __future__ import annotations

import argparse
import json
import re
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias

from poet import _C
from poet._beside import beside, device_beside
from poet._devices import HOST, find_device
from poet._enums import Status
from poet._errors import ArgumentError
from poet._original import OriginalSolution
from poet._outputs import check_output, check_picture

Commands: TypeAlias = "argparse._SubParsersAction[Any]"

EXIT_CODES = """\
exit codes:
  0    a plan; or the command did what it was asked for
  1    wrong use, or something is missing: the message says what
  2    infeasible: no plan exists within the budgets
  3    the time limit came before a plan was found
  130  interrupted
"""


class ExitCode(IntEnum):
    """What a command's exit code says."""

    PLAN = 0
    WRONG_USE = 1
    INFEASIBLE = 2
    TIME_LIMIT = 3
    INTERRUPTED = 130


def exit_code(schedule: _C.Schedule | OriginalSolution) -> ExitCode:
    """The code for how a solve ended."""
    if schedule.has_plan:
        return ExitCode.PLAN
    return ExitCode.INFEASIBLE if schedule.status is Status.INFEASIBLE else ExitCode.TIME_LIMIT


def add_command(commands: Commands, name: str, text: str, examples: str) -> argparse.ArgumentParser:
    """A command's parser: what it does in a line, with its examples and the exit codes below."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=examples + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The words that say which step it is about."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME",
        required=True,
        help="a preset (`poet show presets` lists them) or the path of a graph file",
    )
    group.add_argument(
        "--graph",
        choices=("paper",),
        help="take the layer graph of POET's own code; implies --count activations and "
        "--cost-model paper",
    )
    group.add_argument("--batch-size", type=int, metavar="N", help="of a preset (default: 1)")
    group.add_argument(
        "--optimizer",
        choices=("sgd", "momentum", "adam", "adamw"),
        help="of a preset (default: sgd)",
    )
    group.add_argument(
        "--trainable",
        metavar="WHAT",
        help='what is trained: all, last, "last 2" (layers), bias, or a pattern like "layer4.*"',
    )


def add_solve_arguments(parser: argparse.ArgumentParser, *, seconds: float) -> None:
    """The words that `poet solve` and `poet pareto` share."""
    group = parser.add_argument_group("device and limits")
    group.add_argument(
        "--platform",
        default=HOST,
        metavar="DEVICE",
        help="a device (`poet show devices` lists them) or the path of a device file (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--runtime-budget",
        metavar="TIME",
        help="longest step: a ratio to plain training (1.5) or a time (1.5s); default: none",
    )
    group.add_argument(
        "--minimize",
        type=str.lower,
        choices=("energy", "time", "memory"),
        default="energy",
        help="of what a step is to take least, inside the budgets (default: %(default)s)",
    )
    group.add_argument(
        "--count",
        choices=("all", "activations"),
        help="what counts towards the budget (default: all)",
    )
    group.add_argument(
        "--cost-model",
        choices=("device", "paper"),
        help="the device file's figures, or the constants of POET's own code",
    )
    group.add_argument("--no-recompute", action="store_true", help="plans run no op a second time")
    paging = group.add_mutually_exclusive_group()
    paging.add_argument("--paging", action="store_true", help="plans may page; measures the disk")
    paging.add_argument("--no-paging", action="store_true", help="plans page nothing")
    group.add_argument(
        "--page-dir", metavar="DIR", help="folder that values of the host are paged to"
    )
    group.add_argument(
        "--away-between-steps",
        action=argparse.BooleanOptionalAction,
        help="with paging: optimizer state, and parameters where that is not enough, may stay in "
        "the store between steps; poet.wrap brings them back (default: not on the host)",
    )
    group = parser.add_argument_group("solver")
    group.add_argument(
        "--time-limit-s",
        type=float,
        default=seconds,
        metavar="S",
        help="seconds of search (default: %(default)g)",
    )
    group.add_argument(
        "--solve-threads", type=int, default=1, metavar="N", help="default: %(default)d"
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="--time-limit-s limits work in place of seconds: the same words give the same plan "
        "on a busy machine, too; with one thread",
    )
    group.add_argument(
        "--solver",
        choices=("auto", "cbc", "highs", "gurobi"),
        default="auto",
        help="what solves the integer programs; auto: the fastest of cbc and highs that is "
        "installed, never gurobi (default: %(default)s)",
    )
    group.add_argument("--cache-dir", metavar="DIR", help="folder of the cache")


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """The words for constraints on the whole training."""
    group = parser.add_argument_group("the whole training")
    group.add_argument(
        "--deadline",
        metavar="TIME",
        help='for all of it: seconds, 8h, 90min, "1h 30min", or when it ends: 2026-12-24T18:00',
    )
    group.add_argument("--battery-joules", type=float, metavar="J", help="energy for all of it")
    group.add_argument("--steps", type=int, metavar="N", help="how many steps it has")
    group.add_argument(
        "--epochs", type=int, metavar="N", help="in place of --steps, with --steps-per-epoch"
    )
    group.add_argument(
        "--steps-per-epoch", type=int, metavar="N", help="batches in each of the --epochs"
    )


def training_options(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `poet.solve` that those stand for."""
    names = ("deadline", "battery_joules", "steps", "epochs", "steps_per_epoch")
    return {name: getattr(options, name) for name in names}


def solve_options(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `poet.solve` and `poet.pareto` that the shared words stand for."""
    paging = True if options.paging else (False if options.no_paging else None)
    return {
        "model": options.model,
        "graph": options.graph,
        "batch_size": options.batch_size,
        "optimizer": options.optimizer,
        "trainable": options.trainable,
        "platform": options.platform,
        "runtime_budget": parse_runtime_word(options.runtime_budget),
        "minimize": options.minimize,
        "count": options.count,
        "cost_model": options.cost_model,
        "recompute": not options.no_recompute,
        "paging": paging,
        "page_dir": options.page_dir,
        "away_between_steps": options.away_between_steps,
        "deterministic": options.deterministic,
        "time_limit_s": options.time_limit_s,
        "solve_threads": options.solve_threads,
        "solver": options.solver,
        "cache_dir": options.cache_dir or True,
    }


def parse_runtime_word(word: str | None) -> float | str | None:
    """A bare number is a ratio, as in Python; anything else is left to `poet.solve`."""
    if word is None:
        return None
    try:
        return float(word)
    except ValueError:
        return word


# The attributes of poet.Schedule that `--json` prints, by the same names.
_ATTRIBUTES = (
    "status",
    "method",
    "objective",
    "ram_budget",
    "runtime_budget_seconds",
    "energy_budget_joules",
    "peak_bytes",
    "peak_op",
    "makespan_seconds",
    "energy_joules",
    "bound",
    "gap",
    "bound_scope",
    "bound_all",
    "least_ram_budget",
    "least_ram_op",
    "least_energy_joules",
    "message",
    "start",
    "advice",
    "solve_seconds",
    "num_ops",
    "graph_signature",
    "frees",
    "recomputes",
    "retains",
    "page_outs",
    "page_ins",
    "away_between_steps",
)


def as_record(schedule: _C.Schedule) -> dict[str, Any]:
    """A schedule's figures for `--json`; the plan itself is what `--out` writes."""
    record = {name: _plain(getattr(schedule, name)) for name in _ATTRIBUTES}
    device = schedule.device
    if device is not None:
        record["device"] = device.name
        record["energy_source"] = schedule.energy_source
    return record


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


_FLAGS = {
    "steps_per_epoch=len(loader)": "--steps-per-epoch 100",
    "steps_per_epoch=": "--steps-per-epoch",
    "epochs=3": "--epochs 3",
    "steps=": "--steps",
    "epochs=": "--epochs",
    "deadline=": "--deadline",
    "battery_joules=": "--battery-joules",
    "away_between_steps=True": "--away-between-steps",
    "paging=True": "--paging",
    "page_dir=": "--page-dir",
    "platform=": "--platform",
    "paging=False was asked for": "--no-paging was given",
    'optimizer="sgd"': "--optimizer sgd",
    "trainable=": "--trainable",
    "runtime_budget=1.5": "--runtime-budget 1.5",
    'minimize="time"': "--minimize time",
}


def in_flags(text: str) -> str:
    """What a schedule says of Python's arguments, in the words of the command line."""
    for argument, flag in _FLAGS.items():
        text = re.sub(rf"(?<!\w){re.escape(argument)}", flag, text)
    return text


def check_outputs(options: argparse.Namespace) -> None:
    """Before the work: whether what it is to write can be written.

    Raises:
        ArgumentError: it cannot.
    """
    for name in ("out", "perfetto"):
        if getattr(options, name, None) is not None:
            check_output(getattr(options, name), f"--{name}")
    folder = getattr(options, "plot_directory", None)
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise ArgumentError(f"--plot-directory: expected a folder; {folder} is none.")
    if getattr(options, "plot", None) is not None:
        check_picture(options.plot, "--plot")


def tell_unwritten(options: argparse.Namespace) -> bool:
    """Says on standard error which files were asked for that only a plan could fill.

    Returns:
        Whether there were any.
    """
    kinds = (("plot", "picture"), ("plot_directory", "picture"), ("perfetto", "trace"))
    asked = [
        f"no {kind} (--{name.replace('_', '-')})"
        for name, kind in kinds
        if getattr(options, name, None) is not None
    ]
    if asked:
        what = " and ".join(asked)
        print(f"poet {options.command}: there is no plan, so {what} was written", file=sys.stderr)
    return bool(asked)


def print_json(thing: object) -> None:
    """Prints JSON for programs to standard output."""
    json.dump(thing, sys.stdout, indent=2)
    print()


def save_all(schedule: _C.Schedule, path: str) -> None:
    """Writes a plan with its step and device beside it, for `poet show`.

    Into a terminal or a pipe (/dev/stdout) goes the plan alone: nothing lies beside those.
    """
    schedule.save(path)
    if not Path(path).is_file():
        return
    if schedule.traced_graph is not None:
        schedule.traced_graph.save(beside(path, "graph"))
    if schedule.device is not None:
        beside(path, "device").write_text(schedule.device.to_json(), encoding="utf-8")


def load_device_of(plan: str, platform: str | None) -> _C.DeviceProfile | None:
    """The device named, else the one beside the plan; None where there is neither."""
    if platform is not None:
        return find_device(platform).profile
    return device_beside(plan)


def load_graph_of(plan: str, graph: str | None) -> _C.Graph:
    """The graph named, else the one beside the plan.

    Raises:
        ArgumentError: there is neither.
    """
    path = Path(graph) if graph is not None else beside(plan, "graph")
    if graph is None and not path.is_file():
        raise ArgumentError(
            f"--graph: expected the step that {plan} was made for; {path} is not there. Name the "
            "file that poet trace, poet solve --out or Graph.save wrote."
        )
    return _C.Graph.load(path)


__all__ = [
    "EXIT_CODES",
    "Commands",
    "ExitCode",
    "add_model_arguments",
    "add_solve_arguments",
    "add_training_arguments",
    "as_record",
    "check_outputs",
    "exit_code",
    "load_device_of",
    "load_graph_of",
    "parse_runtime_word",
    "print_json",
    "save_all",
    "solve_options",
    "tell_unwritten",
    "training_options",
]
