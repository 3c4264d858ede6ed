"""What has happened to a wrapped step."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class StepStats:
    """What has happened to a wrapped step so far.

    Attributes:
        steps: calls so far.
        traced_steps: calls that were recorded from beginning to end.
        unrecorded_steps: calls that ran as they are, because recording them would tell nothing new:
            there is no plan for the step, or none yet, or each of many calls was another stream of
            operators.
        followed_steps: calls that followed a plan from beginning to end.
        departures: calls that left their plan on the way and went on without one.
        failed_steps: calls that ended in an exception.
        last_departure: why the last departure happened; "" when there was none.
        variants: different operator streams seen (gradient accumulation has two, say).
        plans: variants that have a plan in force.
        planning: a plan is being solved for in the background.
        planned_recomputes: times that a value was recomputed because the plan says so.
        unplanned_recomputes: times that a value was recomputed because something touched it.
        first_unplanned: what needed the first of them; "" when nothing did.
        replayed_ops: operators that were run again, under plans.
        replay_seconds: time that they took.
        evictions: times that a value's memory was released before its end.
        skipped_frees: times that a value's memory stayed although the plan releases it, because
            something else holds it: a NumPy array, another thread, `poet.keep`, the program itself.
        planned_page_outs: times that a value was moved to secondary storage by the plan.
        planned_page_ins: times that a value was read back by the plan.
        unplanned_page_ins: times that a value was read back because something touched it.
        moved_between_steps: values that were put away for the time between two steps.
        skipped_page_outs: times that a value stayed in memory because no op had shown it yet, or
            because the store had failed too often.
        shared_page_outs: times that a value stayed in memory because NumPy, say, shares it.
        failed_page_outs: times that a value stayed in memory because the store failed.
        failed_page_ins: times that the store failed to give a value back.
        paged_out_bytes: bytes written.
        paged_in_bytes: bytes read.
        read_seconds: time that reading took, most of it beside the steps.
        write_seconds: time that writing took, likewise.
        waited_seconds: time that steps waited for transfers.
        repaired_chunks: damaged pieces of the store that were mended.
        paging_trouble: the store's last failure, or why nothing is paged any more; "" when there
            was none.
        online_steps: calls without a plan, or the rest of calls that had departed from theirs, that
            the online policy had to make room in.
        online_evictions: values whose memory it released.
        online_recomputes: times that it recomputed a value.
        online_replayed_ops: operators that it ran again for that.
        online_page_outs: values that it moved to secondary storage.
        online_page_ins: values that it read back.
        online_replay_seconds: time that its recomputes took.
        online_free_share: share of the budget that was free behind its evictions, in the mean: what
            Coop's authors call fragmentation.
        steps_over_budget: calls that had to go above the budget, as far as poet knows: it warns at
            the first of them.
        most_over_bytes: bytes by which the worst of them did.
        arena_peak_bytes: the most that tensors of 64 KiB and more took up at once in the last call
            that followed a plan, in whole pages, as measured; what the step does not touch counts.
            0 with POET_ARENA=0, or where there was no such call.
        own_bytes: what poet itself takes for this step, beside the budget: recordings, plans, what
            is known of values, buffers of the store.
        plan_switches: changes from one variant's plan to another's within a step.
        plans_from_cache: plans that an earlier run had solved for.
        plans_of_other_sizes: plans that the same step with other sizes lent to one that was met for
            the first time.
        plans_made_again: plans that were asked for again, because the store was slower beside the
            steps than it was when it was measured, because ops took far less than when they were
            recorded, or because more lay in memory beside the step.
        swap_feedbacks: times that late page-ins of a plan began earlier from then on
            (method="capuchin").
        message: the planner's last word where there is no plan; "" otherwise.
        share: what deadline= and battery_joules= leave for one step; "" without them.
        held_steps: calls that waited for the conditions of only_while=.
        held_seconds: time that they waited.
    """

    steps: int
    traced_steps: int
    unrecorded_steps: int
    followed_steps: int
    departures: int
    failed_steps: int
    last_departure: str
    variants: int
    plans: int
    planning: bool
    planned_recomputes: int
    unplanned_recomputes: int
    first_unplanned: str
    replayed_ops: int
    replay_seconds: float
    evictions: int
    skipped_frees: int
    planned_page_outs: int
    planned_page_ins: int
    unplanned_page_ins: int
    moved_between_steps: int
    skipped_page_outs: int
    shared_page_outs: int
    failed_page_outs: int
    failed_page_ins: int
    paged_out_bytes: int
    paged_in_bytes: int
    read_seconds: float
    write_seconds: float
    waited_seconds: float
    repaired_chunks: int
    paging_trouble: str
    online_steps: int
    online_evictions: int
    online_recomputes: int
    online_replayed_ops: int
    online_page_outs: int
    online_page_ins: int
    online_replay_seconds: float
    online_free_share: float
    steps_over_budget: int
    most_over_bytes: int
    arena_peak_bytes: int
    own_bytes: int
    plan_switches: int
    plans_from_cache: int
    plans_of_other_sizes: int
    plans_made_again: int
    swap_feedbacks: int
    message: str
    share: str
    held_steps: int
    held_seconds: float

    def __str__(self) -> str:
        """What is not zero, empty or False, one a line; `repr` has everything."""
        shown = {name: value for name, value in dataclasses.asdict(self).items() if value}
        width = max((len(name) for name in shown), default=0)
        return "\n".join(
            f"{name:{width}}  {value:.6g}"
            if isinstance(value, float)
            else f"{name:{width}}  {value}"
            for name, value in shown.items()
        )

    @property
    def transfer_seconds(self) -> float:
        """Time that transfers took, most of it beside the steps."""
        return self.read_seconds + self.write_seconds

    @property
    def hits(self) -> int:
        """Calls that met their plan and followed it to the end."""
        return self.followed_steps

    @property
    def misses(self) -> int:
        """Calls that had no plan, or left it."""
        return self.steps - self.followed_steps - self.failed_steps

    @property
    def restores(self) -> int:
        """Times that a value came back because something touched it, and not by a plan."""
        planned_away = self.unplanned_recomputes + self.unplanned_page_ins
        return planned_away + self.online_recomputes + self.online_page_ins


__all__ = ["StepStats"]
