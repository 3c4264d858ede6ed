"""poet doctor."""

from __future__ import annotations

import argparse

from poet._cli_common import Commands, ExitCode

_EXAMPLES = """\
examples:
  poet doctor
  poet doctor --measure --page-dir /data/poet
  poet doctor --json | jq '.findings[] | select(.state == "missing")'

"""


def add_commands(commands: Commands) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="look at what poet needs and uses on this machine",
        description=(
            "Looks at versions, the solver, the folder for paged values, the cache, processor, "
            "memory, allocator and GPU, and says what to do about what is missing."
        ),
        epilog=_EXAMPLES
        + "exit codes: 0 where poet works, 1 where something that it needs is missing",
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    missing = any(finding.state == "missing" for finding in findings)
    return ExitCode.WRONG_USE if missing else ExitCode.PLAN


__all__ = ["add_commands"]
