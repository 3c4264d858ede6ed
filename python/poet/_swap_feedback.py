"""Capuchin's feedback: swap-ins that came late in a step begin earlier in the next one."""

from __future__ import annotations

from poet import _C
from poet._store_watch import WAITED_SHARE

METHOD = "capuchin"
# Each round moves a late swap by 5 % of its time; its authors bound nothing. What is late after so
# many has no memory to be back sooner, or waits for the store's other transfers. And a step that
# waits for less than WAITED_SHARE of its time goes on as it is: on a step of GPT-2 at half its peak
# 0.6 % was waited, a little for each swap and never for the same ones, and 20 rounds made nothing
# of it but 20 other plans.
_ROUNDS = 20


class SwapFeedback:
    """The feedback of one variant's steps. Not thread-safe."""

    def __init__(self) -> None:
        self._rounds = 0
        self._steps = 0

    def earlier(
        self,
        session: _C.Session,
        schedule: _C.Schedule,
        graph: _C.Graph,
        device: _C.DeviceProfile,
    ) -> _C.Schedule | None:
        """After a step that followed `schedule`: the plan for the next one.

        Returns:
            None where nothing was late, or no swap can begin earlier
            (`csrc/methods/swap_feedback.h`).
        """
        self._steps += 1
        if self._rounds == _ROUNDS or self._steps == 1:  # a plan's first step finds a cold store
            return None
        awaited = session.awaited_swaps()
        if sum(seconds for *_, seconds in awaited) < WAITED_SHARE * schedule.makespan_seconds:
            return None
        moved = _C.with_earlier_swaps(schedule, graph, device, awaited)
        self._rounds += moved is not None
        return moved


__all__ = ["METHOD", "SwapFeedback"]
