"""poet profile."""

from __future__ import annotations

import argparse
import sys

from poet._cli_common import Commands, ExitCode, add_command, print_json
from poet._devices import HOST

_EXAMPLES = """\
examples:
  poet profile                     # measures this machine, or says what it knows of it
  poet profile --remeasure --json
  poet profile --page-dir /mnt/nvme

Energy is measured where the package zeus (pip install zeus) may read the
processors' counters; else it is that of the stated power model, and the output says so.

"""


def add_commands(commands: Commands) -> None:
    """Adds the command to the parser."""
    parser = add_command(
        commands,
        "profile",
        "measure this machine: seconds by class and size of op, its store, its watts",
        _EXAMPLES,
    )
    parser.add_argument(
        "--device", default=HOST, metavar="NAME", help="only %(default)s can be measured"
    )
    parser.add_argument(
        "--page-dir", metavar="DIR", help="folder for paged values (default: the system's)"
    )
    parser.add_argument(
        "--cache-dir", metavar="DIR", help="folder of the cache (default: the user's)"
    )
    parser.add_argument("--remeasure", action="store_true", help="although it is known")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_run_profile)


def _run_profile(options: argparse.Namespace) -> int:
    from poet._profile import profile  # noqa: PLC0415  other commands do not need it

    found = profile(
        device=options.device,
        page_dir=options.page_dir,
        cache_dir=options.cache_dir or True,
        remeasure=options.remeasure,
        verbose=sys.stderr.isatty() and not options.quiet,
    )
    if options.json:
        print_json(found.as_record())
    else:
        print(found)
    return ExitCode.PLAN


__all__ = ["add_commands"]
