"""What is said of a wrapped step for which there is no plan."""

from __future__ import annotations

from poet import _C
from poet._budgets import format_bytes, format_least_bytes, format_seconds
from poet._enums import Status
from poet._errors import BudgetError


def no_plan_error(schedule: _C.Schedule, budget: int, time_limit_s: float) -> BudgetError:
    """What a named method raises that finds none.

    Args:
        schedule: of that method, without a plan.
        budget: in bytes.
        time_limit_s: of the search.
    """
    least = schedule.least_ram_budget
    needs = "" if least is None else f" Its least budget is {least} bytes."
    advice = f"Give it {format_least_bytes(least)} or more" if least else "Give it more memory"
    if schedule.status == Status.TIME_LIMIT:
        advice = f"Give it more time (time_limit_s={time_limit_s:g})"
        if least:
            advice += f", {format_least_bytes(least)} or more"
    return BudgetError(
        f"method={schedule.method!r}: no plan within {budget} bytes ({format_bytes(budget)}), "
        f"status {schedule.status}: {schedule.message}.{needs} {advice}, or choose another method."
    )


def told_without_plan(
    schedule: _C.Schedule,
    budget: int,
    plain_seconds: float,
    *,
    joules: float | None,
    time_limit_s: float,
    may_page: bool,
    memory_can_be_kept: bool,
) -> str:
    """What was asked, why there is no plan for it, and what would help.

    Args:
        schedule: without a plan.
        budget: in bytes.
        plain_seconds: of the step.
        joules: what a battery leaves for the step; None: there is no such limit.
        time_limit_s: of the search.
        may_page: whether the step was wrapped so that it may.
        memory_can_be_kept: a plan keeps the budget in bytes alone.
    """
    limits = [f"within {budget} bytes ({format_bytes(budget)})"]
    if schedule.runtime_budget_seconds is not None:
        limits.append(f"in {format_seconds(schedule.runtime_budget_seconds)} a step")
    if joules is not None:
        limits.append(f"for {joules:.6g} J a step")
    *first, last = limits
    asked = f"{', '.join(first)} and {last}" if first else last
    why = schedule.message
    if schedule.status == Status.TIME_LIMIT:
        over = "the planner's time was over before it had found one"
        why = f"{over} ({why})" if why else over
    if schedule.least_energy_joules is not None:
        advice = "Give it a larger battery, or train for fewer steps"
    elif (schedule.runtime_budget_seconds or plain_seconds) < plain_seconds:
        advice = "Give it more time, or no deadline"
    elif memory_can_be_kept:
        advice = "Give it more time or memory"
    else:
        advice = _more_memory(schedule, time_limit_s, may_page)
    return f"poet found no plan {asked}, status {schedule.status}: {why}. {advice}."


def _more_memory(schedule: _C.Schedule, time_limit_s: float, may_page: bool) -> str:
    least = schedule.least_ram_budget
    advice = f"Give it {format_least_bytes(least)} or more" if least else "Give it more memory"
    if schedule.status == Status.TIME_LIMIT:
        advice += f", or the planner more time (time_limit_s={time_limit_s:g})"
    if not may_page:
        advice += ", or let it page (paging=True)"
    return advice


__all__ = ["no_plan_error", "told_without_plan"]
