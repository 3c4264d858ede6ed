"""Whether the store is as fast beside the steps as it was when it was measured alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from poet._store import StoreSpeed

# Note [A store that is slower beside the step]
# The rates that a plan believes in were measured with nothing else running, within a second. Beside
# a step the store shares memory bandwidth and, where all cores compute, a core; and many disks are
# fast for the first gigabytes only. A plan that believes too much waits. So what the transfers
# of a few steps really took is compared with what was believed, and where the steps have waited for
# a slower store, a plan is made again with the rates that were seen.
# Where training stands still meanwhile (background=False) that has a price, and nobody knows how
# many steps are to come. So the steps must have waited for as long as the plan in force took to
# solve, and the next one is given no longer: at most as much is lost as was lost anyway (the rule
# of the ski rental problem; Karlin et al. 1988).
STEPS = 3  # looked at together; the first one of a plan, which moves more, is not
WAITED_SHARE = 0.02  # of the steps' time: less is not worth a plan
_SLOWER = 0.85  # of the believed rate
MOST_PLANS = 3  # made again for one variant


class StoreWatch:
    """What the transfers of a variant's steps took. Not thread-safe."""

    def __init__(self) -> None:
        self.plans = 0  # that were made again
        self._steps = -1
        self._before: dict[str, Any] = {}
        self._first: dict[str, Any] = {}  # after the plan's first step

    @property
    def may_ask(self) -> bool:
        """Whether another plan may be made."""
        return self.plans < MOST_PLANS

    def restart(self) -> None:
        """Another plan is in force."""
        self._steps = -1

    def observe(
        self,
        read_counters: Callable[[], dict[str, Any]],
        step_seconds: float,
        believed: StoreSpeed,
        price: float = 0.0,
    ) -> StoreSpeed | None:
        """Looks at one more step in the plan.

        Args:
            read_counters: gives the session's, after the step; asked now and then only.
            step_seconds: what the plan takes for one step.
            believed: the rates that it was made with.
            price: seconds that training stands still for another plan.

        Returns:
            The rates that were seen, if they are worth another plan.
        """
        self._steps += 1
        if self._steps % STEPS != 0:
            return None
        counters = read_counters()
        before, self._before = self._before, counters
        if self._steps == 0:
            self._first = counters
            return None

        def risen(name: str) -> float:
            return float(counters[name] - before[name])

        def rate(moved: str, seconds: str, promised: float) -> float:
            seen = risen(moved) / risen(seconds) if risen(seconds) > 0 else promised
            return seen if 0 < seen < _SLOWER * promised else promised

        if risen("waited_seconds") < WAITED_SHARE * STEPS * step_seconds:
            return None
        if counters["waited_seconds"] - self._first["waited_seconds"] < price:
            return None
        seen = dataclasses.replace(
            believed,
            read_rate=rate("paged_in_bytes", "read_seconds", believed.read_rate),
            write_rate=rate("paged_out_bytes", "write_seconds", believed.write_rate),
        )
        if seen == believed:
            return None
        self.plans += 1
        return seen


__all__ = ["MOST_PLANS", "STEPS", "WAITED_SHARE", "StoreWatch"]
