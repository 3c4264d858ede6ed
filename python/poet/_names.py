"""Errors for names that nobody knows, with the nearest known ones."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from poet._errors import ArgumentError

_MOST_SHOWN = 60

_P = ParamSpec("_P")
_R = TypeVar("_R")


class UnknownArgumentError(ArgumentError, TypeError):
    """A keyword that a function does not have: a TypeError, as for any function."""

    __module__ = "poet"


def unknown_argument(function: str, got: str, known: Iterable[str]) -> UnknownArgumentError:
    """The error for a keyword that a function of poet does not have."""
    return UnknownArgumentError(
        f"{function}() got an unexpected keyword argument {got!r}.{did_you_mean(got, known)}"
    )


def known_words_only(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, with that error for what would be a bare TypeError; its types stay."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs:
            if name not in known:
                raise unknown_argument(function.__name__, name, known)
        return function(*args, **kwargs)

    return checked


def did_you_mean(got: object, known: Iterable[str]) -> str:
    """The question behind an error's text, with a space before it; '' where no name is near."""
    if not isinstance(got, str):
        return ""
    close = difflib.get_close_matches(got.lower(), list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def unknown_name(argument: str, what: str, got: str, known: list[str], also: str) -> ArgumentError:
    """The error for one name of many."""
    shown = got if len(got) <= _MOST_SHOWN else got[:_MOST_SHOWN] + "..."
    return ArgumentError(
        f"{argument}: expected {what} ({also}); got {shown!r}.{did_you_mean(got, known)} "
        f"Known: {', '.join(known)}."
    )


def not_one_of(argument: str, known: Iterable[str], got: object) -> ArgumentError:
    """The error for one name of few."""
    names = [str(name) for name in known]
    return ArgumentError(
        f"{argument}: expected one of {', '.join(map(repr, names))}; got {got!r:.80}."
        f"{did_you_mean(got, names)}"
    )
