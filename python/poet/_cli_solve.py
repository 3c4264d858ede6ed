"""poet solve, poet trace, poet pareto, poet compare."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from poet._budgets import format_bytes, format_seconds
from poet._cache import open_cache
from poet._cli_common import (
    Commands,
    ExitCode,
    add_command,
    add_model_arguments,
    add_solve_arguments,
    add_training_arguments,
    as_record,
    exit_code,
    in_flags,
    print_json,
    save_all,
    solve_options,
    tell_unwritten,
    training_options,
)
from poet._compare import DEFAULT_BUDGETS, REFUSED, compare
from poet._enums import Status
from poet._errors import ArgumentError
from poet._models import ModelRequest
from poet._pareto import pareto
from poet._solve import choose_device, on_device, solve
from poet._summary import curve_table

_SOLVE_EXAMPLES = """\
examples:
  poet solve --model resnet18_cifar --platform m4 --ram-budget 737719 --runtime-budget 1.5
  poet solve --model resnet18_cifar --platform a72 --graph paper --ram-budget 3000000
  poet solve --model mobilenet_v2 --platform phone --deadline 8h --epochs 3 --steps-per-epoch 500
  poet solve --model bert --ram-budget 60% --paging --out plan.json --plot plan.png
  poet solve --model step.graph.json --platform phone --ram-budget 512MiB --json

"""
_TRACE_EXAMPLES = """\
examples:
  poet trace --model resnet18_cifar --batch-size 8 --out step.graph.json
  poet trace --model bert --optimizer adamw --platform m4 --json

"""
_PARETO_EXAMPLES = """\
examples:
  poet pareto --model resnet18_cifar --platform m4 --points 6 --plot curve.png
  poet pareto --model linear --platform m4 --budgets 50% 70% 90% --json

"""
_SCALE = "1 is all it may be: other watts go into a device file (profiles/README.md)"
_COMPARE_EXAMPLES = """\
examples:
  poet compare --model resnet18_cifar --platform a72 --budgets 90% 70% 50% 30%
  poet compare --model resnet18_cifar --platform m4 --budgets 90% --methods poet,rotor,dtr
  poet compare --model step.graph.json --budgets 80% --paging --out table.csv --plot table.png

"""


def add_commands(commands: Commands) -> None:
    """Adds the commands to the parser."""
    _add_solve(commands)
    _add_trace(commands)
    _add_pareto(commands)
    _add_compare(commands)


def _add_solve(commands: Commands) -> None:
    parser = add_command(commands, "solve", "plan a training step inside budgets", _SOLVE_EXAMPLES)
    add_model_arguments(parser)
    add_solve_arguments(parser, seconds=60)
    add_training_arguments(parser)
    parser.add_argument(
        "--ram-budget",
        metavar="SIZE",
        help='bytes, "512MiB" or "60%%" of plain training\'s peak (default: the device\'s RAM)',
    )
    parser.add_argument(
        "--method",
        default="poet",
        metavar="NAME",
        help="what plans: one of `poet show methods` (default: %(default)s)",
    )
    parser.add_argument(
        "--no-slices",
        action="store_true",
        help="never run the optimizer's elementwise ops slice by slice",
    )
    parser.add_argument(
        "--accounting",
        choices=("poet", "original"),
        default="poet",
        help="original: memory and time as POET's own program counts them, with --graph paper",
    )
    _add_original_words(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--out", metavar="FILE", help="write the plan, its step and its device")
    group.add_argument("--plot", metavar="FILE", help="draw it (.png, .svg, .pdf)")
    group.add_argument("--perfetto", metavar="FILE", help="write a trace for ui.perfetto.dev")
    group.add_argument("--json", action="store_true", help="print the figures as JSON")
    group.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_run_solve)


def _add_original_words(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of POET's own script")
    group.add_argument("--remat", action="store_true", help="plans may run ops again: the default")
    group.add_argument("--use-actual-gurobi", action="store_true", help="is --solver gurobi")
    group.add_argument("--mem-power-scale", type=float, default=1.0, metavar="X", help=_SCALE)
    group.add_argument(
        "--print-graph-info", action="store_true", help="print what the plain step takes"
    )
    group.add_argument("--print-power-costs", action="store_true", help="print what each op takes")
    group.add_argument("--plot-directory", metavar="DIR", help="draw the plan into DIR/plan.png")


def _original_words(options: argparse.Namespace) -> dict[str, Any]:
    names = ("mem_power_scale", "use_actual_gurobi", "print_graph_info", "print_power_costs")
    return {name: getattr(options, name) for name in names}


def _run_solve(options: argparse.Namespace) -> int:
    if options.accounting == "original":
        return _run_original(options)
    schedule = solve(
        ram_budget=options.ram_budget,
        method=options.method,
        verbose=_shows_progress(options),
        slices=not options.no_slices,
        **solve_options(options),
        **training_options(options),
        **_original_words(options),
    )
    if options.json:
        print_json(as_record(schedule))
    else:
        print(in_flags(str(schedule)))
    if options.out:
        save_all(schedule, options.out)
    if not schedule.has_plan:
        tell_unwritten(options)
        return exit_code(schedule)
    if options.plot:
        schedule.plot(options.plot)
    if options.plot_directory:
        folder = Path(options.plot_directory)
        folder.mkdir(parents=True, exist_ok=True)
        schedule.plot(folder / "plan.png")
    if options.perfetto:
        schedule.to_perfetto(options.perfetto)
    return ExitCode.PLAN


def _run_original(options: argparse.Namespace) -> int:
    for flag in ("out", "plot", "perfetto", "plot_directory"):
        if getattr(options, flag) is not None:
            raise ArgumentError(
                f"--{flag.replace('_', '-')}: expected it to be left out beside --accounting "
                "original, which gives figures and no schedule."
            )
    words = solve_options(options) | training_options(options)
    words |= {"method": options.method, "slices": not options.no_slices}
    words |= _original_words(options)
    found: Any = solve(ram_budget=options.ram_budget, accounting="original", **words)
    record = {key: str(v) if key == "status" else v for key, v in vars(found).items()}
    if options.json:
        print_json(record)
    else:
        for key, value in record.items():
            print(f"{key:24} {value}")
    return exit_code(found)


def _shows_progress(options: argparse.Namespace) -> bool:
    return sys.stderr.isatty() and not options.quiet


def _add_trace(commands: Commands) -> None:
    parser = add_command(commands, "trace", "record a preset's training step", _TRACE_EXAMPLES)
    add_model_arguments(parser)
    parser.add_argument(
        "--platform", default="host", metavar="DEVICE", help="whose times (default: %(default)s)"
    )
    parser.add_argument("--out", metavar="FILE", help="write the graph")
    parser.add_argument("--cache-dir", metavar="DIR", help="folder of the cache")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_run_trace)


def _request(options: argparse.Namespace) -> ModelRequest:
    return ModelRequest(
        options.model,
        optimizer=options.optimizer,
        trainable=options.trainable,
        batch_size=options.batch_size,
        paper=options.graph == "paper",
        verbose=_shows_progress(options),
    )


def _run_trace(options: argparse.Namespace) -> int:
    request = _request(options)
    device = choose_device(options.platform, None, request.paper)
    recorded = request.graph(open_cache(options.cache_dir or True))
    graph = on_device(recorded, device, None, request.paper)
    if options.out:
        graph.save(options.out)
    record = {
        "model": options.model,
        "device": device.name,
        "num_ops": len(graph),
        "num_values": len(graph.values),
        "graph_signature": graph.signature,
        "plain_peak_bytes": graph.plain_peak_bytes(),
        "plain_seconds": graph.plain_seconds,
        "flops": sum(op.flops for op in graph.ops),
    }
    if options.json:
        print_json(record)
    else:
        print(
            f"{options.model} on {device.name}: {len(graph)} ops, {len(graph.values)} values, "
            f"{record['flops']:.4g} flops, plain peak {format_bytes(graph.plain_peak_bytes())}, "
            f"{format_seconds(graph.plain_seconds)}"
        )
    return ExitCode.PLAN


def _add_pareto(commands: Commands) -> None:
    parser = add_command(commands, "pareto", "show what less memory costs", _PARETO_EXAMPLES)
    add_model_arguments(parser)
    add_solve_arguments(parser, seconds=120)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--points", type=int, default=8, metavar="N", help="default: %(default)d")
    group.add_argument("--budgets", nargs="+", metavar="SIZE", help="in place of --points")
    parser.add_argument("--plot", metavar="FILE", help="draw the curve")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_run_pareto)


def _split(words: list[str]) -> list[str]:
    """Budgets as people list them: "60% 70%", "60%,70%"."""
    return [budget for word in words for budget in word.split(",") if budget]


def _run_pareto(options: argparse.Namespace) -> int:
    curve = pareto(
        budgets=options.budgets and _split(options.budgets),
        points=options.points,
        verbose=_shows_progress(options),
        **solve_options(options),
    )
    planned = [schedule for schedule in curve if schedule.has_plan]
    if options.json:
        print_json([as_record(schedule) for schedule in curve])
    else:
        print(curve_table(curve))
    if not planned:
        tell_unwritten(options)
        return max(exit_code(schedule) for schedule in curve)
    if options.plot:
        from poet._plot import plot_pareto  # noqa: PLC0415  matplotlib is optional

        plot_pareto(curve, options.plot)
    return ExitCode.PLAN


def _add_compare(commands: Commands) -> None:
    parser = add_command(
        commands, "compare", "plan one step with every method, side by side", _COMPARE_EXAMPLES
    )
    add_model_arguments(parser)
    add_solve_arguments(parser, seconds=60)
    parser.add_argument(
        "--budgets",
        nargs="+",
        default=list(DEFAULT_BUDGETS),
        metavar="SIZE",
        help="shares of plain training's peak, or sizes (default: 90%%,70%%,50%%,30%%)",
    )
    parser.add_argument(
        "--methods", metavar="NAME,...", help="some of `poet show methods` (default: all)"
    )
    parser.add_argument("--out", metavar="FILE", help="write the table (.json, .csv, .txt)")
    parser.add_argument("--plot", metavar="FILE", help="draw it (.png, .svg, .pdf)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_run_compare)


def _run_compare(options: argparse.Namespace) -> int:
    if options.out and Path(options.out).suffix.lower() not in {".json", ".csv", ".txt"}:
        raise ArgumentError(
            "--out: expected a file whose name ends in .json, .csv or .txt, which say what is "
            f"written into it; got {options.out}."
        )
    words = solve_options(options)
    for of_the_model in ("model", "graph", "batch_size", "optimizer", "trainable"):
        del words[of_the_model]
    if options.graph == "paper":  # implies both
        words["cost_model"] = options.cost_model or "paper"
        words["count"] = options.count or "activations"
    found = compare(
        graph=_request(options).graph(open_cache(options.cache_dir or True)),
        budgets=_split(options.budgets),
        methods=re.split(r"[,\s]+", options.methods.strip())
        if options.methods is not None
        else None,
        verbose=_shows_progress(options),
        **words,
    )
    print(found.to_json() if options.json else in_flags(str(found)))
    if options.out:
        found.save(options.out)
    if options.plot:
        found.plot(options.plot)
    if any(row.peak_bytes is not None for row in found.rows):
        return ExitCode.PLAN
    asked = [row for row in found.rows if row.status != REFUSED]
    if not asked:
        return ExitCode.WRONG_USE
    infeasible = all(row.status == Status.INFEASIBLE for row in asked)
    return ExitCode.INFEASIBLE if infeasible else ExitCode.TIME_LIMIT


__all__ = ["add_commands"]
