"""What the user is told of plans: as they come, and where one is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from poet import _C
from poet._budgets import format_bytes, format_seconds
from poet._errors import BudgetWarning
from poet._planning_options import PlanningOptions
from poet._warn import warn
from poet._without_plan import told_without_plan


class PlanNews:
    """Of one wrapped step. What it warns of, it warns of once."""

    def __init__(
        self, say: Callable[[str], None], options: PlanningOptions, strictness: str
    ) -> None:
        self._say = say
        self._options = options
        self._strictness = strictness
        self._warned = False
        self._warned_of_excess = False
        self._warned_of_no_solver = False

    def in_force(self, what: str, schedule: _C.Schedule, graph: _C.Graph, budget: int) -> None:
        """A plan is followed from now on; `what` says where it came from."""
        extra = format_seconds(schedule.makespan_seconds - graph.plain_seconds)
        share = 100 * (schedule.makespan_seconds / max(graph.plain_seconds, 1e-12) - 1)
        self._say(
            f"{what}: peak {format_bytes(schedule.peak_bytes)} of {format_bytes(budget)}, "
            f"{share:+.1f} % time predicted ({extra} more a step)"
        )

    def excess(self, report: dict[str, Any] | None) -> None:
        """A call could not be kept inside the budget."""
        if report is None or report["over_bytes"] == 0 or self._warned_of_excess:
            return
        self._warned_of_excess = True
        warn(
            f"poet: a step went above its budget: {report['over_text']}. Training goes on with the "
            "same results; stats.steps_over_budget counts such steps.",
            BudgetWarning,
        )

    def no_solver(self, error: str) -> None:
        """No plan could be looked for, for lack of descriptors or processes, say."""
        self._say(f"no plan yet: {error}")
        if self._warned_of_no_solver:
            return
        self._warned_of_no_solver = True
        warn(
            f"poet could not look for a plan: {error} Training goes on without one, and its memory "
            "may exceed the budget; later calls try again.",
            BudgetWarning,
        )

    def outgrown_plan(self, schedule: _C.Schedule, graph: _C.Graph, budget: int) -> None:
        """Beside the step lies too much for its plan, and `schedule` says why there is no other."""
        goes_on = (
            "Calls that would exceed it end with BudgetError."
            if self._strictness == "hard"
            else "Training goes on with that plan, above the budget."
        )
        warn(
            f"poet found no plan within {budget} bytes ({format_bytes(budget)}) any more: "
            f"{format_bytes(graph.base_bytes)} lie beside the step, more than when its plan was "
            f"made. {schedule.message}. {goes_on}",
            BudgetWarning,
        )

    def without_plan(
        self,
        schedule: _C.Schedule,
        budget: int,
        plain_seconds: float,
        *,
        kept: _C.Schedule | None = None,
        is_policed: bool = False,
    ) -> None:
        """No plan keeps all budgets.

        `kept`: the plan that keeps the memory budget alone; None: there is none, and the online
        policy keeps it where it can, if it `is_policed`.
        """
        if self._warned:
            return
        self._warned = True
        if kept is not None:
            goes_on = (
                "with a plan that keeps the memory budget alone, and takes "
                f"{format_seconds(kept.makespan_seconds)} a step by prediction."
            )
        elif is_policed:
            goes_on = "without a plan: the online policy keeps it inside the budget where it can."
        else:
            goes_on = "without a plan: its memory may exceed the budget."
        told = told_without_plan(
            schedule,
            budget,
            plain_seconds,
            joules=self._options.share.joules,
            time_limit_s=self._options.time_limit_s,
            may_page=self._options.page_folder is not None,
            memory_can_be_kept=kept is not None,
        )
        warn(f"{told} Training goes on {goes_on}", BudgetWarning)


__all__ = ["PlanNews"]
