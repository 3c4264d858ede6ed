"""poet.compare: every method on one step, side by side."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from poet import _C
from poet._budgets import (
    ByteBudget,
    check_budgets,
    format_bytes,
    parse_bytes,
    positive_number,
    whole_number,
)
from poet._compare_live import Measurement, measure_plain, measure_wrapped
from poet._errors import ArgumentError
from poet._methods import check_method, methods
from poet._models import as_graph
from poet._original_words import as_flag
from poet._outputs import check_output
from poet._results import Simulation
from poet._solve import choose_device, on_device, solve
from poet._trace import trace

DEFAULT_BUDGETS = ("90%", "70%", "50%", "30%")

# Of poet.solve, those that poet.wrap takes too.
_LIVE_OPTIONS = frozenset({"minimize", "page_dir", "paging", "recompute", "runtime_budget"})

REFUSED = "refused"  # the status of a method that cannot honour the options

COLUMNS = {
    "method": "what planned",
    "budget": "memory budget, and its share of plain training's peak",
    "status": "optimal, feasible, infeasible (within its class of plans), time_limit, or refused",
    "peak": "most bytes resident at once, by the simulator",
    "time": "of the step, to plain training's",
    "energy": "of the step, to plain training's, under the device's power model",
    "recomputed": "ops that run again",
    "paged in": "values that come back from the store",
    "plan": "size of the schedule's compact form",
    "fragmentation": "what holes add to the most bytes in memory, where blocks lie first fit",
    "start": "part of poet's planner that found the plan, or phase of a method that has several",
    "search": "seconds that planning took",
    "least": "least budget of the method, where it has no plan",
    "live peak": "resident memory of the process above its start, to plain training's",
    "live time": "of a measured step, to plain training's",
    "live free": "of the budget behind the evictions of a live method, in the mean",
    "same": "the step returned the same bits as plain training",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One method at one budget.

    Attributes:
        method: name of the method.
        ram_budget_bytes: the budget.
        status: as `Schedule.status`, or "refused" where the method cannot honour the options
            (`message` says why).
        peak_bytes: of the plan, by the simulator; None without a plan, as all that follows.
        makespan_seconds: likewise.
        energy_joules: likewise.
        recomputed_ops: ops that run again.
        page_ins: values that come back from the store.
        plan_bytes: size of the schedule's compact form.
        fragmentation: as `Schedule.fragmentation()`: of the most bytes in memory at once, what
            holes add in an arena that places blocks first fit and moves none.
        start: as `Schedule.start`: the part of poet's planner that found the plan, or the phase of
            a method that has several; "" for the others. Never another method: each plan is its
            method's own.
        solve_seconds: seconds that planning took; None where it was refused.
        least_ram_budget: in bytes; where there is no plan, and the method knows it.
        message: the method's own word.
        live: what was measured in a process of its own; None where it was not asked for.
    """

    __module__ = "poet"

    method: str
    ram_budget_bytes: int
    status: str
    peak_bytes: int | None = None
    makespan_seconds: float | None = None
    energy_joules: float | None = None
    recomputed_ops: int | None = None
    page_ins: int | None = None
    plan_bytes: int | None = None
    fragmentation: float | None = None
    start: str = ""
    solve_seconds: float | None = None
    least_ram_budget: int | None = None
    message: str = ""
    live: Measurement | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Methods at budgets; printing it shows a table.

    Attributes:
        rows: budgets in the order that they were asked for in, methods within.
        plain: the plain step, by the simulator.
        plain_live: likewise, measured; None where it was not asked for.
    """

    __module__ = "poet"

    rows: tuple[ComparisonRow, ...]
    plain: Simulation
    plain_live: Measurement | None = None

    def __str__(self) -> str:
        shown = [self._cells(row) for row in self.rows]
        used = [name for name in COLUMNS if any(cells.get(name) for cells in shown)]
        lines = [used] + [[cells.get(name) or "-" for name in used] for cells in shown]
        widths = [max(len(line[i]) for line in lines) for i in range(len(used))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        text.append("")
        text += [f"{name}: {COLUMNS[name]}" for name in used]
        said = self._said()
        return "\n".join([*text, "", *said] if said else text)

    def _said(self) -> list[str]:
        """Why methods were refused or have no plan, and what they say of those they have."""
        lines = []
        for row in self.rows:
            if row.message and row.status == REFUSED:
                lines.append(f"{row.method}: {row.message}")
            # Those with a least budget say that, and it has a column.
            elif row.message and (row.peak_bytes is not None or row.least_ram_budget is None):
                lines.append(f"{row.method}, {format_bytes(row.ram_budget_bytes)}: {row.message}")
        return list(dict.fromkeys(lines))

    def _budget(self, row: ComparisonRow) -> str:
        text = format_bytes(row.ram_budget_bytes)
        if self.plain.peak_bytes <= 0:
            return text
        return f"{text}, {100 * row.ram_budget_bytes / self.plain.peak_bytes:.0f} %"

    def _cells(self, row: ComparisonRow) -> dict[str, str]:
        cells = {
            "method": row.method,
            "budget": self._budget(row),
            "status": row.status,
            "peak": "" if row.peak_bytes is None else format_bytes(row.peak_bytes),
            "time": _extra(row.makespan_seconds, self.plain.makespan_seconds),
            "energy": _extra(row.energy_joules, self.plain.energy_joules),
            "recomputed": str(row.recomputed_ops or ""),
            "paged in": str(row.page_ins or ""),
            "plan": "" if row.plan_bytes is None else f"{row.plan_bytes} B",
            "fragmentation": "" if row.fragmentation is None else f"{row.fragmentation:.1%}",
            "start": row.start,
            "search": "" if row.solve_seconds is None else f"{row.solve_seconds:.2f} s",
            "least": "" if row.least_ram_budget is None else format_bytes(row.least_ram_budget),
        }
        if row.live is not None and self.plain_live is not None:
            if row.live.error:
                return cells | {"same": row.live.error[:60]}
            cells["live peak"] = _extra(row.live.peak_bytes, self.plain_live.peak_bytes)
            cells["live time"] = _extra(row.live.step_seconds, self.plain_live.step_seconds)
            cells["live free"] = f"{row.live.free_share:.1%}" if row.live.free_share else ""
            cells["same"] = "yes" if row.live.results == self.plain_live.results else "NO"
        return cells

    def to_json(self) -> str:
        """Everything, as JSON; the keys are those of the attributes."""
        plain = {
            "peak_bytes": self.plain.peak_bytes,
            "makespan_seconds": self.plain.makespan_seconds,
            "energy_joules": self.plain.energy_joules,
        }
        live = None if self.plain_live is None else dataclasses.asdict(self.plain_live)
        rows = [dataclasses.asdict(row) for row in self.rows]
        return json.dumps({"plain": plain, "plain_live": live, "rows": rows}, indent=1)

    def to_csv(self) -> str:
        """The rows as comma-separated values, under a line of names; units are in the names."""
        names = [field.name for field in dataclasses.fields(ComparisonRow) if field.name != "live"]
        measured = [field.name for field in dataclasses.fields(Measurement)]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*names, *(f"live_{name}" for name in measured)])
        for row in self.rows:
            live = ["" if row.live is None else getattr(row.live, name) for name in measured]
            values = [getattr(row, name) for name in names]
            writer.writerow(["" if value is None else value for value in (*values, *live)])
        return out.getvalue()

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws memory against time, and against energy, one line a method, into a file.

        Args:
            path: of the picture; the ending says the format (.png, .svg, .pdf).

        Raises:
            ArgumentError: no picture can be written there.
            PoetRuntimeError: matplotlib is not installed.
        """
        from poet._compare_plot import draw  # noqa: PLC0415  matplotlib is optional

        draw(self, path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_json()`, `to_csv()` or the table, by the ending .json, .csv or any other.

        Raises:
            ArgumentError: no file can be written there.
        """
        check_output(path, "path")
        ending = Path(path).suffix.lower()
        text = {".json": self.to_json, ".csv": self.to_csv}.get(ending, lambda: str(self) + "\n")()
        Path(path).write_text(text, encoding="utf-8")


def compare(
    step: Callable[..., Any] | None = None,
    *args: Any,
    graph: _C.Graph | str | os.PathLike[str] | None = None,
    methods: Sequence[str] | None = None,
    budgets: Sequence[ByteBudget] = DEFAULT_BUDGETS,
    platform: str = "host",
    time_limit_s: float = 60,
    live: bool = False,
    live_steps: int = 6,
    verbose: bool = False,
    **options: Any,
) -> Comparison:
    """Plans one step with every method at every budget, each with the same time.

    Args:
        step: a training step to record, as `poet.trace` takes it. With live=True a function without
            arguments that can be imported (not a lambda, not one of `__main__` in a notebook) and
            returns (step, args): each process makes its own.
        *args: of the step.
        graph: the recorded step, or the path of its file, in place of `step`.
        methods: names that `poet.methods()` has; None for all of them.
        budgets: memory budgets, each as `ram_budget` of `poet.solve`; "90%" is a share of the plain
            step's peak.
        platform: as for `poet.solve`.
        time_limit_s: seconds that each search may take.
        live: also trains with each plan that was found, each in a process of its own, and measures
            it there.
        live_steps: steps that are measured, after the plan is in force.
        verbose: shows a progress bar.
        **options: further arguments of `poet.solve`, for every method alike (minimize, paging,
            runtime_budget ...), but for `starts`: each plan is the method's own, and poet's
            planner goes through no other method's plan (`ComparisonRow.start`).

    Returns:
        A row for each budget and method. A method that cannot honour the options (it pages, and
        there is no store) is "refused", with its reason.

    Raises:
        ArgumentError: an argument makes no sense.
    """
    names = _names(methods)
    for name, instead in (("method", "methods="), ("ram_budget", "budgets=")):
        if name in options:
            raise ArgumentError(f"{name}: expected it to be left out; {instead} takes a list here.")
    if "model" in options:
        raise ArgumentError(
            "model: expected a step, or graph=; got model=. A preset's step is "
            "graph=poet.solve(model=...).traced_graph."
        )
    if live and (step is None or args):
        raise ArgumentError(
            "live=True: expected a function that makes the step, and no further arguments; got "
            f"step={step!r}, args={args!r}."
        )
    limit = positive_number(time_limit_s, "time_limit_s", "seconds above 0")
    count = whole_number(live_steps, "live_steps", "a number of steps", least=1, most=10_000)
    if "starts" in options:
        raise ArgumentError("starts: expected none: every method is to find its own plans.")
    live_options = _live_options(platform, options) if live else {}
    check_budgets(budgets)
    recorded = _recorded(step, args, graph, live)
    device = choose_device(platform, options.get("cost_model"), False)
    counted = on_device(recorded, device, options.get("count"))
    sizes = [
        parse_bytes(budget, plain_peak_bytes=counted.plain_peak_bytes, name="budgets")
        for budget in budgets
    ]
    plain_live = measure_plain(step, count) if live and step is not None else None
    rows = []
    with tqdm(total=len(sizes) * len(names), desc="poet: comparing", disable=not verbose) as bar:
        for size in sizes:
            for name in names:
                bar.set_postfix_str(f"{name}, {format_bytes(size)}")
                row = _plan(
                    recorded,
                    name,
                    size,
                    {"platform": platform, "time_limit_s": limit, **options},
                )
                if live and step is not None and row.peak_bytes is not None:
                    own = {"method": name, "ram_budget": size, "time_limit_s": limit}
                    measured = measure_wrapped(step, count, own | live_options)
                    row = dataclasses.replace(row, live=measured)
                rows.append(row)
                bar.update()
    plain = _C.simulate(counted, None, device)
    return Comparison(rows=tuple(rows), plain=plain, plain_live=plain_live)


def _plan(graph: _C.Graph, method: str, budget: int, options: dict[str, Any]) -> ComparisonRow:
    try:
        schedule = solve(graph=graph, method=method, ram_budget=budget, **options)
    except ArgumentError as error:
        if not str(error).startswith(("method: ", "minimize: ")):
            raise
        return ComparisonRow(method, budget, REFUSED, message=str(error))
    row = ComparisonRow(
        method=method,
        ram_budget_bytes=budget,
        status=str(schedule.status),
        solve_seconds=schedule.solve_seconds,
        least_ram_budget=schedule.least_ram_budget,
        message=schedule.message,
    )
    if not schedule.has_plan:
        return row
    return dataclasses.replace(
        row,
        peak_bytes=schedule.peak_bytes,
        makespan_seconds=schedule.makespan_seconds,
        energy_joules=schedule.energy_joules,
        recomputed_ops=sum(len(action.ops) for action in schedule.actions),
        page_ins=schedule.page_ins,
        plan_bytes=len(schedule.to_bytes()),
        fragmentation=schedule.fragmentation(),
        start=schedule.start,
    )


def _live_options(platform: str, options: dict[str, Any]) -> dict[str, Any]:
    """What `poet.wrap` is told, so that what is measured is what was simulated."""
    strange = sorted(set(options) - _LIVE_OPTIONS)
    if platform != "host" or strange:
        got = f"platform={platform!r}" if platform != "host" else f"{strange[0]}="
        raise ArgumentError(
            "live=True: expected platform='host' and options that training knows as well "
            f"({', '.join(sorted(_LIVE_OPTIONS))}), since each step is measured on this machine; "
            f"got {got}. Leave that out, or live=True."
        )
    told = dict(options)
    if told.get("paging") is None:
        told["paging"] = told.get("page_dir") is not None
    for name in ("paging", "recompute"):
        if name in told:
            told[name] = as_flag(told[name], name)
    return told


def _names(wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        return list(methods())
    if isinstance(wanted, str) or not isinstance(wanted, Sequence) or not wanted:
        raise ArgumentError(
            f"methods: expected a list of names that poet.methods() has, or None; got {wanted!r}."
        )
    return list(dict.fromkeys(check_method(name) for name in wanted))


def _recorded(
    step: Callable[..., Any] | None, args: tuple[Any, ...], graph: object, live: bool
) -> _C.Graph:
    if (step is None) == (graph is None):
        raise ArgumentError(
            f"step, graph: expected one of them; got step={step!r}, graph={graph!r}."
        )
    if step is None:
        return as_graph(graph)
    if not live:
        return _recorded_step(step, args)
    made = step()
    pair = isinstance(made, list | tuple) and len(made) == 2
    if not (pair and callable(made[0]) and isinstance(made[1], list | tuple)):
        raise ArgumentError(
            "live=True: expected a function that makes the step, in each process anew, and returns "
            f"it with a tuple of its arguments; {getattr(step, '__name__', step)!r} returned "
            f"{made!r:.80}."
        )
    return trace(made[0], *made[1])


def _recorded_step(step: Callable[..., Any], args: tuple[Any, ...]) -> _C.Graph:
    makes_step = False

    def noted(*inputs: Any) -> Any:
        nonlocal makes_step
        result = step(*inputs)
        first = result[0] if isinstance(result, tuple) and result else result
        makes_step = callable(first)
        return result

    graph = trace(noted, *args)
    if makes_step:
        raise ArgumentError(
            f"step: expected a training step; {getattr(step, '__name__', step)!r} makes one, as "
            "live=True takes it. Pass live=True, or the step itself."
        )
    return graph


def _extra(value: float | None, plain: float) -> str:
    if value is None:
        return ""
    return f"{100 * (value / plain - 1):+.1f} %" if plain > 0 else f"{value:.4g}"
