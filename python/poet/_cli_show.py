"""poet show: a saved plan as a table and a picture; lists of presets, devices and methods."""

from __future__ import annotations

import argparse
import dataclasses

from poet import _C
from poet._budgets import format_bytes
from poet._cli_common import (
    Commands,
    ExitCode,
    add_command,
    as_record,
    exit_code,
    in_flags,
    load_device_of,
    load_graph_of,
    print_json,
    tell_unwritten,
)
from poet._devices import device_names, find_device
from poet._methods import methods
from poet._models import graph_on
from poet._presets import find_preset, preset_names
from poet._summary import summary

_EXAMPLES = """\
examples:
  poet show plan.json --plot plan.png
  poet show plan.json --graph step.graph.json --platform m4 --perfetto plan.trace.json
  poet show devices
  poet show presets --json
  poet show methods

"""


def add_commands(commands: Commands) -> None:
    """Adds the command to the parser."""
    text = "show a saved plan as a table and a picture, or list devices, presets or methods"
    parser = add_command(commands, "show", text, _EXAMPLES)
    parser.add_argument("what", metavar="PLAN.json|devices|presets|methods")
    parser.add_argument(
        "--graph", metavar="FILE", help="the step it was made for (default: PLAN.graph.json)"
    )
    parser.add_argument(
        "--platform", metavar="DEVICE", help="what it runs on (default: PLAN.device.json)"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw it (.png, .svg, .pdf)")
    parser.add_argument("--perfetto", metavar="FILE", help="write a trace for ui.perfetto.dev")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.what == "devices":
        return _devices(options)
    if options.what == "presets":
        return _presets(options)
    if options.what == "methods":
        return _methods(options)
    return _plan(options)


def _plan(options: argparse.Namespace) -> int:
    schedule = _C.Schedule.load(options.what)
    graph = load_graph_of(options.what, options.graph)
    schedule.check_against(graph)
    device = load_device_of(options.what, options.platform)
    # What lies beside the plan has the device's times.
    if device is not None and (options.graph is not None or options.platform is not None):
        graph = graph_on(graph, device)
    if schedule.has_plan and options.plot:
        from poet._plot import plot  # noqa: PLC0415  matplotlib is optional

        plot(schedule, options.plot, graph, device)
    if schedule.has_plan and options.perfetto:
        from poet._perfetto import to_perfetto  # noqa: PLC0415

        to_perfetto(schedule, options.perfetto, graph, device)
    if options.json:
        print_json(as_record(schedule))
    else:
        print(in_flags(summary(schedule, graph, device)))
    if not schedule.has_plan and tell_unwritten(options):
        return exit_code(schedule)
    return ExitCode.PLAN


def _devices(options: argparse.Namespace) -> int:
    found = [find_device(name) for name in device_names()]
    if options.json:
        print_json(
            [
                {
                    "name": device.name,
                    "title": device.title,
                    "ram_bytes": device.profile.ram_bytes or None,
                    "energy_source": device.profile.energy_source,
                    "numbers": {
                        place: {"value": n.value, "basis": n.basis, "source": n.source}
                        | {"date": n.date, "note": n.note}
                        for place, n in device.numbers.items()
                    },
                }
                for device in found
            ]
        )
        return ExitCode.PLAN
    for device in found:
        ram = format_bytes(device.profile.ram_bytes) if device.profile.ram_bytes else "this machine"
        print(f"{device.name:16} {ram:>12}  {device.title}")
    return ExitCode.PLAN


def _presets(options: argparse.Namespace) -> int:
    found = [find_preset(name) for name in preset_names()]
    if options.json:
        print_json(
            [
                {"name": p.name, "title": p.title, "parameters": p.parameters}
                | {"paper_graph": p.paper_graph}
                for p in found
            ]
        )
        return ExitCode.PLAN
    for preset in found:
        print(f"{preset.name:20} {preset.parameters:12,}  {preset.title}")
    return ExitCode.PLAN


def _methods(options: argparse.Namespace) -> int:
    found = methods()
    if options.json:
        print_json([dataclasses.asdict(method) for method in found.values()])
        return ExitCode.PLAN
    print(found)
    print()
    width = max(len(name) for name in found)
    for method in found.values():
        print(f"{method.name.ljust(width)}  {method.summary}")
    return ExitCode.PLAN


__all__ = ["add_commands"]
