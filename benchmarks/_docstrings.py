"""Real text that every machine with Python has: sentences of the standard library's docstrings.

Each sentence is labelled with the module that it was found in. The modules are parsed, never
imported. Other versions of Python have other sentences, so a run compares with runs beside it.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = ("asyncio", "email", "http", "importlib", "logging", "typing", "unittest", "xml")

_HELD_OUT_SHARE = 0.15
_LEAST_WORDS = 6
_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Sentences:
    """Sentences and, for each, the index of its module in `MODULES`, in two parts."""

    train: list[tuple[str, int]]
    test: list[tuple[str, int]]


def load(seed: int = 0) -> Sentences:
    """All sentences, each once, shuffled; some 15 % of them are held out.

    Raises:
        RuntimeError: this Python has no source files of its standard library.
    """
    found: dict[str, int] = {}
    for label, module in enumerate(MODULES):
        for sentence in _sentences(module):
            found.setdefault(sentence, label)
    if len(found) < 100 * len(MODULES) // 4:
        raise RuntimeError(
            f"{sysconfig.get_path('stdlib')}: expected the source files of {', '.join(MODULES)}; "
            f"found {len(found)} sentences in them. Use a Python that carries its library as .py."
        )
    rows = sorted(found.items())
    random.Random(seed).shuffle(rows)
    held_out = int(_HELD_OUT_SHARE * len(rows))
    return Sentences(train=rows[held_out:], test=rows[:held_out])


def _sentences(module: str) -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted((root / module).rglob("*.py")) if (root / module).is_dir() else []
    for path in [*files, root / f"{module}.py"]:
        if not path.is_file() or "test" in path.relative_to(root).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
            for piece in _END.split(text or ""):
                sentence = " ".join(piece.split())
                if len(sentence.split()) >= _LEAST_WORDS:
                    yield sentence
