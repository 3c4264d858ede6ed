"""The command `poet`, also as `python -m poet`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from poet import _C
from poet._errors import ArgumentError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: words after the command's name; None: those of this process.

    Returns:
        The exit code: 0; 1 where something is missing; 2 for arguments that make no sense.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    run = getattr(options, "run", None)
    if run is None:
        parser.print_help()
        return 2
    try:
        code: int = run(options)
    except ArgumentError as error:
        print(f"poet {options.command}: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="poet",
        description="Trains a PyTorch model inside a memory budget, with the same bits.",
    )
    parser.add_argument("--version", action="version", version=f"poet {_C.version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    _add_doctor(commands)
    return parser


# One function a command: its words, and what runs it.


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="look at what poet needs and uses on this machine",
        description=(
            "Looks at versions, the solver, the folder for paged values, the cache, processor, "
            "memory, allocator and GPU, and says what to do about what is missing."
        ),
        epilog="Exit code: 0 where poet works, 1 where something that it needs is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure the speed of the folder for paged values again (about a second)",
    )
    parser.add_argument(
        "--page-dir", metavar="DIR", help="folder for paged values (default: the system's)"
    )
    parser.add_argument(
        "--cache-dir", metavar="DIR", help="folder of the cache (default: the user's)"
    )
    parser.set_defaults(run=_run_doctor)


def _run_doctor(options: argparse.Namespace) -> int:
    from poet import _doctor  # noqa: PLC0415  other commands do not need it

    findings = _doctor.examine(
        _doctor.DoctorOptions(
            page_dir=options.page_dir, cache_dir=options.cache_dir, measure=options.measure
        )
    )
    print(_doctor.report_json(findings) if options.json else _doctor.report(findings))
    return int(any(finding.state == "missing" for finding in findings))


__all__ = ["main"]
