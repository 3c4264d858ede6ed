"""poet.methods: what can plan, and what each method can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from poet._names import not_one_of

_COLUMNS = {
    "general_graphs": "general graphs",
    "recomputes": "recomputes",
    "pages": "pages",
    "compute_aware": "compute-aware",
    "memory_aware": "memory-aware",
    "power_aware": "power-aware",
    "deadline": "deadline",
    "in_place": "in-place",
    "online": "online",
    "live": "live",
    "executes": "executes",
}


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to plan, and what it can do. The first five columns are those of POET's Table 1.

    Attributes:
        name: as `poet.solve(method=...)` takes it.
        source: authors and year.
        summary: what makes it itself.
        general_graphs: takes any step; False: linearises it at its cut vertices, and has no plan
            below what that needs.
        recomputes: its plans run ops again.
        pages: its plans move values to secondary storage and back.
        compute_aware: knows that ops take different times.
        memory_aware: looks for a plan within the budget; False: it has one plan, which fits or not.
        power_aware: makes energy small.
        deadline: plans for the runtime budget; False: a plan that misses it is none.
        in_place: takes steps with in-place ops.
        online: decides in running order, without looking ahead.
        live: `poet.wrap` trains by its policy, without a plan.
        executes: `poet.wrap` trains with its plans, or live.
    """

    __module__ = "poet"

    name: str
    source: str
    summary: str
    general_graphs: bool
    recomputes: bool
    pages: bool
    compute_aware: bool
    memory_aware: bool
    power_aware: bool
    deadline: bool
    in_place: bool
    online: bool
    live: bool
    executes: bool


class MethodTable(Mapping[str, Method]):
    """The methods by name; prints as a table of what each can do."""

    __module__ = "poet"

    def __init__(self, methods: tuple[Method, ...]) -> None:
        self._methods = {method.name: method for method in methods}

    def __getitem__(self, name: str) -> Method:
        if name not in self._methods:
            raise KeyError(str(not_one_of("method", self, name)))
        return self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def markdown(self) -> str:
        """The table in Markdown, one row a method."""
        head = ["method", "source", *_COLUMNS.values()]
        rows = [
            [f"`{m.name}`", m.source, *("yes" if getattr(m, c) else "" for c in _COLUMNS)]
            for m in self.values()
        ]
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def __str__(self) -> str:
        name, source = (max(len(getattr(m, c)) for m in self.values()) for c in ("name", "source"))
        lines = [" ".join(["method".ljust(name), "source".ljust(source), *_COLUMNS.values()])]
        for m in self.values():
            marks = (
                ("yes" if getattr(m, column) else "-").center(len(title))
                for column, title in _COLUMNS.items()
            )
            lines.append(" ".join([m.name.ljust(name), m.source.ljust(source), *marks]).rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<poet.MethodTable of {', '.join(self)}>"


def methods() -> MethodTable:
    """Everything that `poet.solve` and `poet.wrap` take as `method=`, with what it can do.

    Returns:
        A mapping from names to `poet.Method`; printing it shows a table.
    """
    from poet import _C  # noqa: PLC0415  the native module makes `Method`s of this one

    return MethodTable(_C.methods())


def check_method(method: object) -> str:
    """The name itself, where it is a method's."""
    known = methods()
    if isinstance(method, str) and method in known:
        return method
    raise not_one_of("method", known, method)
