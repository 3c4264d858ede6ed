"""The command `poet`, also as `python -m poet`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from poet import _C, _cli_doctor, _cli_profile, _cli_show, _cli_solve
from poet._cli_common import EXIT_CODES, Commands, ExitCode, check_outputs, in_flags
from poet._errors import PoetError
from poet._names import did_you_mean

_OWN_PREFIX = "poet: "  # of messages that are also read without a command's name before them


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: words after the command's name; None: those of this process.

    Returns:
        The exit code: see `ExitCode`.
    """
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough: `poet show devices | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PLAN


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # by the command itself, whose help says what it knows
        known: _Parser = getattr(options, "parser", parser)
        near = did_you_mean(unknown[0], known.flags())
        known.error(f"unrecognized arguments: {' '.join(unknown)}.{near}")
    run = getattr(options, "run", None)
    if run is None:
        parser.print_help()
        return ExitCode.WRONG_USE
    try:
        check_outputs(options)
        return int(run(options))
    except BrokenPipeError:
        raise
    except (PoetError, OSError) as error:
        text = in_flags(str(error).removeprefix(_OWN_PREFIX))
        print(f"poet {options.command}: {text}", file=sys.stderr)
        return ExitCode.WRONG_USE
    except KeyboardInterrupt:
        print(f"poet {options.command}: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """Ends with exit code 1 for wrong use; argparse's own 2 means "infeasible" here."""

    def error(self, message: str) -> NoReturn:
        # The usage of a command is a screen of words, under which the error would be lost.
        hint = f"`{self.prog} --help` says what it takes."
        self.exit(ExitCode.WRONG_USE, f"{self.prog}: error: {message}\n{hint}\n")

    def flags(self) -> list[str]:
        """The long words that it knows."""
        return [word for word in self._option_string_actions if word.startswith("--")]


def _parser() -> _Parser:
    parser = _Parser(
        prog="poet",
        description="Trains a PyTorch model inside a memory budget, with the same bits.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"poet {_C.version}")
    try:
        import shtab  # noqa: PLC0415  optional

        shtab.add_argument_to(
            parser, "--print-completion", help="print a completion script for that shell"
        )
    except ImportError:
        pass
    commands: Commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", parser_class=_Parser
    )
    _cli_solve.add_commands(commands)
    _cli_show.add_commands(commands)
    _cli_profile.add_commands(commands)
    _cli_doctor.add_commands(commands)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


__all__ = ["main"]
