"""What the tests leave out, and why: the "Skipped, and why" table of docs/compatibility.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from compatibility_zoo import EXCLUDED

ROOT = Path(__file__).parents[2]

_NO_GUROBI = "its licence is not ours to give: who has one runs them, and all other solvers' do run"
_NO_STORE = "everything is in RAM there: pages would be written to what they are to relieve"
_NO_TMPFS = "it asks what happens in a folder that lies in RAM, and there is none"
_NO_URING = "the kernel or its settings forbid it: the threads that replace it are tested instead"
_LISTED = "a back end of the solver that is not installed; CBC, which poet brings, always is"
_ELSEWHERE = "what `make` installs has it: the tests run there, in CI too"

# A reason as `reasons()` gives it -> why it is one.
WHY: dict[str, str] = {
    "the folder for temporary files lies in RAM": _NO_STORE,
    "no folder for paged values here: {error}": _NO_STORE,
    "the system's folders take no page file": _NO_STORE,
    "there is no /dev/shm in RAM": _NO_TMPFS,
    "/dev/shm is no tmpfs here": _NO_TMPFS,
    "there is no CUDA device": "`make gpu` runs them where there is one",
    "{error.name} is not installed where the device is": (
        "such a machine may have no network: what it has is tried"
    ),
    "{name} does not train on a device by itself: {error}": "there is nothing to compare with",
    "another allocator than glibc's": "what it looks at is a setting of glibc's",
    "malloc is not glibc's own": "what it measures is how glibc gives memory back",
    "this malloc does not tell what is in use": (
        "a sanitizer's allocator, or one beside glibc's: there is no figure to compare"
    ),
    "needs Linux's /proc": "the process's resident set is read there",
    "/proc/self/clear_refs cannot be written to: VmHWM cannot be reset": (
        "some containers forbid it: then there is no figure to compare"
    ),
    "graphviz is not installed": "the picture is drawn by it; what it is given is tested always",
    "matplotlib is not installed": _ELSEWHERE,
    "monai is not installed": _ELSEWHERE,
    "transformers is not installed": _ELSEWHERE,
    "scipy is not installed": _ELSEWHERE,
    "neither highsbox nor highspy is installed": _ELSEWHERE,
    "gurobipy is not installed": _NO_GUROBI,
    "{_solvers.gurobi().why_not}": _NO_GUROBI,
    "this machine has an unlimited licence": (
        "what a licence for small models alone may not solve is what it asks about"
    ),
    "POET_VERIFY does not know when it came": (
        "under `make verify` alone: the checker counts memory that grew before a recording began "
        "as there from the start"
    ),
    "no oneDNN": "this build of torch, or its user, does without it",
    "{toString(GetParam())}: {why_not}": _LISTED,
    "{why_not}": _LISTED,
    "{why}": _LISTED,
    "this kernel lists no children": "it asks after processes that are left, which /proc lists",
    "{interpreter()} has no ortools": "the method that needs it says so, which is tested always",
    "no io_uring here": _NO_URING,
    "not on this machine": _NO_URING,
    "set POET_NIGHTLY=1: takes a minute": "`make nightly` sets it",
    "less than 12 GiB are free in {directory_}": "it writes a value of five gigabytes",
    "{PLAIN_RUNS_DIFFER[kind]}": "see the kinds below",
}

# Names in tests of kinds that are chosen, none of which is left out for it.
CHOICES = {"_CALLS", "_CHOSEN", "_OFTEN"}
# Has a list of its own of kinds, and budgets for each.
_OWN_LIST = "test_wrap.py"


def reasons() -> dict[str, list[str]]:
    """Every reason that a test gives for being skipped -> the files that it stands in."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("*")):
        if file.suffix == ".py":
            texts = _of_python(ast.parse(file.read_text()))
        elif file.suffix in (".cpp", ".h"):
            texts = _of_cpp(file.read_text())
        else:
            continue
        for text in texts:
            found.setdefault(text, [])
            name = file.relative_to(ROOT / "tests").as_posix()
            if name not in found[text]:
                found[text].append(name)
    return found


def _of_python(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        given = {k.arg: k.value for k in node.keywords}
        if name in ("skipif", "xfail") or (name == "skip" and "mark" in ast.unparse(node.func)):
            yield _text(given["reason"])
        elif name == "skip":
            yield _text(node.args[0] if node.args else given["reason"])
        elif name == "importorskip":
            yield f"{_text(node.args[0])} is not installed"


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(part.value if isinstance(part, ast.FormattedValue) else part)
            for part in node.values
        )
    return f"{{{ast.unparse(node)}}}"


def _of_cpp(source: str) -> Iterator[str]:
    for shown in re.findall(r"GTEST_SKIP\(\)\s*((?:<<[^;]*?)?);", source):
        parts = [part.strip() for part in shown.split("<<")[1:]]
        yield "".join(p[1:-1] if p.startswith('"') else f"{{{p}}}" for p in parts)


def unlisted(kinds: set[str]) -> list[str]:
    """Where tests treat kinds of step apart by a name that is neither in EXCLUDED nor a choice."""
    found = []
    for file in sorted((ROOT / "tests" / "python").glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            for name, value in _named(node):
                names = _strings(value)
                if file.name == _OWN_LIST or name in CHOICES:
                    continue
                if names and names <= kinds:
                    found.append(f"{file.name}: {name} at line {value.lineno}")
    return found


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value
    elif isinstance(node, ast.Compare) and "kind" in {
        n.id for n in [node.left, *node.comparators] if isinstance(n, ast.Name)
    }:
        for value in [node.left, *node.comparators]:
            yield "a comparison", value


def _strings(value: ast.expr) -> set[str]:
    """The strings that it is made of: the keys of a dictionary; empty where it has others too."""
    if isinstance(value, ast.Dict):
        parts: list[ast.expr | None] = [*value.keys]
    elif isinstance(value, ast.Set | ast.Tuple | ast.List):
        parts = [*value.elts]
    else:
        parts = [value]
    texts = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return set(texts) if len(texts) == len(parts) else set()


def table() -> list[str]:
    """The lines of the page."""
    lines = ["| skipped where | tests | why |", "|---|---|---|"]
    for reason, files in sorted(reasons().items()):
        named = ", ".join(f"`{file}`" for file in files)
        lines.append(f"| {reason} | {named} | {WHY.get(reason, 'NO REASON')} |")
    lines += ["", "| kind of step | left out of | why |", "|---|---|---|"]
    for what, kinds in EXCLUDED.items():
        lines += [f"| `{kind}` | {what} | {why} |" for kind, why in kinds.items()]
    return lines
