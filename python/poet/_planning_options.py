"""What a wrapped step's plans are asked for."""

from __future__ import annotations

import dataclasses

from poet._budgets import ByteBudget, TimeBudget
from poet._cache import Cache
from poet._constraints import NO_SHARE, StepShare


@dataclasses.dataclass(frozen=True)
class PlanningOptions:
    """What `poet.wrap` was asked for, checked.

    Attributes:
        platform: name of the device profile.
        ram_budget: as the user gave it.
        runtime_budget: as the user gave it.
        minimize: the objective.
        recompute: plans may recompute.
        page_folder: where paged values go; None: nothing is paged.
        cache: what lasts between runs; None: nothing.
        time_limit_s: seconds that solving may take.
        method: what plans.
        share: what constraints on the whole training leave for a step.
        background: training goes on while a plan is solved for.
        online: the online policy keeps calls without a plan inside the budget.
        live: no call has a plan: the method's own policy decides while each runs.
    """

    platform: str
    ram_budget: ByteBudget
    runtime_budget: TimeBudget | None
    minimize: str
    recompute: bool
    page_folder: str | None
    cache: Cache | None
    time_limit_s: float
    method: str = "poet"
    share: StepShare = NO_SHARE
    background: bool = True
    online: bool = True
    live: bool = False


__all__ = ["PlanningOptions"]
