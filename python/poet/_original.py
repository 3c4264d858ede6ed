"""POET's program as its own code states it, for `poet.solve(accounting="original")`.

Paper: Patil et al., "POET: Training Neural Networks on Tiny Devices with Integrated
Rematerialization and Paging", ICML 2022, section 4; its code at commit 6e63098: columns R, S^RAM,
S^SD, M^in, M^out by stage and node, FREE by stage and edge, U by stage and node.

Kept as they are, though they are not so: a page-in takes no memory while it happens, and transfers
take no time out of the deadline; an edge that is listed twice frees its value twice. Changed: costs
are percent of the plain step and bytes shares of the largest value, because joules near 1e-3 meet
the absolute tolerances of solvers; the solver is HiGHS, through SciPy.

Weakness: O(T * edges) rows; beyond linear and transformer (27 and 19 nodes) hardly any program is
solved. A budget that holds everything is answered without a program: no plan costs less.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from poet import _C
from poet._enums import Status
from poet._errors import ArgumentError, PoetRuntimeError

_MOST_COLUMNS = 400_000
_GAP = 1e-9
_ROUNDED = 0.5
_TIMED_OUT, _INFEASIBLE = 1, 2  # scipy.optimize.milp's status


@dataclass(frozen=True)
class OriginalSolution:
    """What POET's own program gives, by its own accounting.

    Attributes:
        status: as of `poet.Schedule`.
        energy_joules: of the step, its transfers included; None without a plan.
        ram_budget: bytes.
        runtime_budget_seconds: None for none.
        peak_bytes: by the original's memory rows; None without a plan.
        true_peak_bytes: with what is being paged in counted as well.
        makespan_seconds: of computation alone, as the original counts; None without a plan.
        transfer_seconds: what it leaves out.
        recomputes: nodes that run again.
        page_ins: their number.
        page_outs: their number.
        solve_seconds: of the search.
        message: why there is no plan.
    """

    __module__ = "poet"

    status: Status
    energy_joules: float | None
    ram_budget: int
    runtime_budget_seconds: float | None
    peak_bytes: int | None
    true_peak_bytes: int | None
    makespan_seconds: float | None
    transfer_seconds: float | None
    recomputes: int
    page_ins: int
    page_outs: int
    solve_seconds: float
    message: str

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan."""
        return self.status in (Status.OPTIMAL, Status.FEASIBLE)


def solve_original(
    graph: _C.Graph,
    device: _C.DeviceProfile,
    *,
    ram_budget_bytes: int,
    runtime_budget_seconds: float | None,
    time_limit_s: float,
) -> OriginalSolution:
    """Solves POET's own program for one of its layer graphs.

    Args:
        graph: a layer graph with the device's seconds: one value a node.
        device: under `cost_model="paper"`.
        ram_budget_bytes: of activations.
        runtime_budget_seconds: of computation; None for none.
        time_limit_s: seconds for the solver.

    Raises:
        ArgumentError: the graph is none of POET's.
        PoetRuntimeError: SciPy is not installed.
    """
    begin = time.monotonic()
    program = _Program(graph, device, ram_budget_bytes, runtime_budget_seconds)
    if graph.plain_peak_bytes() <= ram_budget_bytes:
        status, x = Status.OPTIMAL, program.plain()
        message = ""
    elif program.columns > _MOST_COLUMNS:
        status, x = Status.TIME_LIMIT, None
        message = f"the program has {program.columns} columns, more than {_MOST_COLUMNS}"
    else:
        status, x, message = program.solve(time_limit_s)
    return program.solution(status, x, message, time.monotonic() - begin)


class _Program:
    def __init__(
        self, graph: _C.Graph, device: _C.DeviceProfile, budget: int, deadline: float | None
    ) -> None:
        nodes = len(graph)
        one_each = all(op.outputs == (k,) for k, op in enumerate(graph.ops))
        if len(graph.values) != nodes or not one_each or not device.has_store:
            raise ArgumentError(
                'accounting="original": expected a layer graph of POET\'s code (graph="paper"); '
                "this step has in-place ops or several outputs."
            )
        self._nodes = nodes
        self._edges = [(u, k) for k, op in enumerate(graph.ops) for u in op.inputs]
        self._bytes = np.array([value.bytes for value in graph.values], dtype=float)
        self._seconds = np.array([op.seconds for op in graph.ops])
        reads = device.store_read_latency_seconds + self._bytes / device.store_read_rate
        writes = device.store_write_latency_seconds + self._bytes / device.store_write_rate
        self._transfer_seconds = (reads, writes)
        self._joules = self._seconds * device.compute_watts
        self._in_joules = reads * device.store_watts
        self._out_joules = writes * device.store_watts
        self._budget = budget
        self._deadline = deadline
        square = nodes * nodes
        self.columns = 6 * square + nodes * len(self._edges)
        self._rows: list[tuple[list[tuple[int, float]], float, float]] = []

    # Columns: R, S^RAM, S^SD, M^in, M^out, U by (stage, node), then FREE by (stage, edge).

    def _column(self, block: int, t: int, i: int) -> int:
        return (block * self._nodes + t) * self._nodes + i

    def _free(self, t: int, e: int) -> int:
        return 6 * self._nodes * self._nodes + t * len(self._edges) + e

    def _add(
        self, terms: list[tuple[int, float]], low: float = -np.inf, high: float = np.inf
    ) -> None:
        self._rows.append((terms, low, high))

    def plain(self) -> Any:
        """Everything runs once and is kept to its last use."""
        n = self._nodes
        x = np.zeros((6, n, n))
        x[0] = np.eye(n)
        for u, v in self._edges:
            x[1, u + 1 : v + 1, u] = 1
        return x

    def solve(self, time_limit_s: float) -> tuple[Status, Any, str]:
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415  optional
            from scipy.sparse import coo_matrix  # noqa: PLC0415
        except ImportError as error:
            raise PoetRuntimeError(
                'accounting="original" needs SciPy: pip install scipy.'
            ) from error
        self._correctness()
        self._memory()
        self._time()
        rows = [r for r, (terms, _, _) in enumerate(self._rows) for _ in terms]
        columns = [c for terms, _, _ in self._rows for c, _ in terms]
        entries = [a for terms, _, _ in self._rows for _, a in terms]
        matrix = coo_matrix((entries, (rows, columns)), shape=(len(self._rows), self.columns))
        low, high = self._bounds()
        square = self._nodes * self._nodes
        integral = np.ones(self.columns)
        integral[5 * square : 6 * square] = 0
        found = milp(
            self._costs(),
            constraints=LinearConstraint(
                matrix.tocsr(), [row[1] for row in self._rows], [row[2] for row in self._rows]
            ),
            bounds=Bounds(low, high),
            integrality=integral,
            options={"time_limit": time_limit_s, "mip_rel_gap": _GAP},
        )
        if found.status == _INFEASIBLE:
            return Status.INFEASIBLE, None, "the program has no solution"
        if found.x is None:
            return Status.TIME_LIMIT, None, "the time ran out before a plan was found"
        status = Status.FEASIBLE if found.status == _TIMED_OUT else Status.OPTIMAL
        return status, found.x[: 6 * square].reshape(6, self._nodes, self._nodes), ""

    def _bounds(self) -> tuple[Any, Any]:
        n = self._nodes
        low, high = np.zeros((6, n, n)), np.ones((6, n, n))
        low[0] = np.eye(n)
        high[0] = np.tri(n, n)
        high[1] = high[2] = np.tri(n, n, -1)
        high[5] = self._budget / self._bytes.max()
        frees = n * len(self._edges)
        return (
            np.concatenate([low.ravel(), np.zeros(frees)]),
            np.concatenate([high.ravel(), np.ones(frees)]),
        )

    def _costs(self) -> Any:
        n = self._nodes
        costs = np.zeros((6, n, n))
        percent = 100 / self._joules.sum()
        costs[0], costs[3], costs[4] = (
            row * percent for row in (self._joules, self._in_joules, self._out_joules)
        )
        return np.concatenate([costs.ravel(), np.zeros(n * len(self._edges))])

    def _correctness(self) -> None:
        """What a stage needs is computed in it or kept; what is kept was there; stores likewise."""
        c, n = self._column, self._nodes
        for t in range(n):
            for i in range(n):
                if t + 1 < n:
                    kept = [(c(1, t + 1, i), 1.0), (c(1, t, i), -1.0), (c(0, t, i), -1.0)]
                    self._add([*kept, (c(3, t, i), -1.0)], high=0)
                    stored = [(c(2, t + 1, i), 1.0), (c(2, t, i), -1.0), (c(4, t, i), -1.0)]
                    self._add(stored, high=0)
                self._add([(c(3, t, i), 1.0), (c(2, t, i), -1.0)], high=0)
                self._add([(c(4, t, i), 1.0), (c(1, t, i), -1.0)], high=0)
            for u, v in self._edges:
                self._add([(c(0, t, v), 1.0), (c(0, t, u), -1.0), (c(1, t, u), -1.0)], high=0)

    def _memory(self) -> None:
        """Checkmate's recurrence (Jain et al., MLSys 2020, equations 2 to 5)."""
        c, n = self._column, self._nodes
        share = self._bytes / self._bytes.max()
        users: list[set[int]] = [set() for _ in range(n)]
        for u, v in self._edges:
            users[u].add(v)
        for t in range(n):
            for e, (i, k) in enumerate(self._edges):
                later = [j for j in users[i] if j > k]
                hazards = [(c(0, t, k), -1.0)] + [(c(0, t, j), 1.0) for j in later]
                if t + 1 < n:
                    hazards.append((c(1, t + 1, i), 1.0))
                most = 2.0 + len(later)
                opposite = [(column, -entry) for column, entry in hazards]
                self._add([(self._free(t, e), -1.0), *opposite], high=0)
                self._add([(self._free(t, e), most), *hazards], high=most - 1)
            start = [(c(1, t, i), -share[i]) for i in range(n)]
            self._add([(c(5, t, 0), 1.0), (c(0, t, 0), -share[0]), *start], 0, 0)
            for k in range(n - 1):
                freed = [
                    (self._free(t, e), share[i]) for e, (i, at) in enumerate(self._edges) if at == k
                ]
                grown = [(c(5, t, k + 1), 1.0), (c(5, t, k), -1.0)]
                self._add([*grown, (c(0, t, k + 1), -share[k + 1]), *freed], 0, 0)

    def _time(self) -> None:
        if self._deadline is None:
            return
        total = self._seconds.sum()
        n = self._nodes
        terms = [
            (self._column(0, t, i), self._seconds[i] / total)
            for t in range(n)
            for i in range(t + 1)
        ]
        self._add(terms, high=self._deadline / total)

    def solution(
        self, status: Status, x: Any, message: str, solve_seconds: float
    ) -> OriginalSolution:
        if x is None:
            nothing = OriginalSolution(
                status, None, self._budget, self._deadline, None, None, None, None, 0, 0, 0,
                solve_seconds, message,
            )  # fmt: skip
            return nothing
        runs, _, _, ins, outs = (x[b] > _ROUNDED for b in range(5))
        joules = (runs @ self._joules).sum()
        joules += (ins @ self._in_joules).sum() + (outs @ self._out_joules).sum()
        by_stage = self._peaks(x)
        moving = ins @ self._bytes
        reads, writes = self._transfer_seconds
        return OriginalSolution(
            status=status,
            energy_joules=float(joules),
            ram_budget=self._budget,
            runtime_budget_seconds=self._deadline,
            peak_bytes=round(by_stage.max()),
            true_peak_bytes=round((by_stage + moving).max()),
            makespan_seconds=float((runs.sum(axis=0) * self._seconds).sum()),
            transfer_seconds=float((ins @ reads).sum() + (outs @ writes).sum()),
            recomputes=int(runs.sum()) - self._nodes,
            page_ins=int(ins.sum()),
            page_outs=int(outs.sum()),
            solve_seconds=solve_seconds,
            message=message,
        )

    def _peaks(self, x: Any) -> Any:
        """Bytes of each stage at its fullest, by the recurrence; from R and S^RAM alone."""
        n = self._nodes
        runs, kept = x[0] > _ROUNDED, x[1] > _ROUNDED
        peaks = np.zeros(n)
        for t in range(n):
            used = float(kept[t] @ self._bytes)
            last = {i: k for i, k in self._edges if runs[t, k]}
            last = {i: max(k for j, k in self._edges if j == i and runs[t, k]) for i in last}
            peaks[t] = used
            for k in range(n):
                if not runs[t, k]:
                    continue
                used += self._bytes[k]
                peaks[t] = max(peaks[t], used)
                for i, at in self._edges:
                    stays = t + 1 < n and kept[t + 1, i]
                    if at == k and last[i] == k and not stays:
                        used -= self._bytes[i]
        return peaks


__all__ = ["OriginalSolution", "solve_original"]
