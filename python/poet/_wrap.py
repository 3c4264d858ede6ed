"""poet.wrap: an existing training step, made to train inside a memory budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from poet import _C
from poet._budgets import (
    ByteBudget,
    TimeBudget,
    is_share,
    parse_bytes,
    parse_runtime,
    positive_number,
)
from poet._cache import open_cache
from poet._constraints import StepShare, TrainingDeadline, step_share
from poet._devices import HOST
from poet._errors import ArgumentError
from poet._live import check_step
from poet._memory import give_memory_back
from poet._methods import Method, check_method, methods
from poet._names import known_words_only
from poet._planning_options import PlanningOptions
from poet._shared_budget import Budget
from poet._solve import flag, parse_objective
from poet._store import folder_for_method
from poet._waiting import Condition, Gate
from poet._wrapped_step import WrappedStep

_OFF = "0"  # what POET_ONLINE says to switch the online policy off, for every step
_STRICTNESS = {None: "first_call", True: "always", False: "never"}
_HARD = "hard"


@known_words_only
def wrap(
    train_step: Callable[..., Any],
    *,
    ram_budget: ByteBudget | Budget,
    runtime_budget: TimeBudget | None = None,
    method: str = "poet",
    platform: str = "host",
    minimize: str = "energy",
    recompute: bool = True,
    paging: bool = True,
    background: bool = True,
    time_limit_s: float = 60,
    page_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | bool | None = True,
    deadline: TrainingDeadline | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    battery_joules: float | None = None,
    only_while: Condition | Sequence[Condition] | None = None,
    online: bool = True,
    strict: bool | None = None,
    hard: bool = False,
    verbose: bool = False,
) -> WrappedStep:
    """Makes a training step train inside a memory budget, with the same bits as without.

        step = poet.wrap(train_step, ram_budget="2GiB")
        for batch in loader:
            loss = step(batch)

    The first calls are recorded (two alike are needed, which is usually so after the third). Then a
    plan is solved for, and every later call follows it: values are released and recomputed, or
    moved to secondary storage and back, so that no more than `ram_budget` bytes are resident at
    once. A variant of the step that comes again (gradient accumulation) gets a plan of its own.

    An online policy, that of dynamic tensor rematerialization, keeps what follows no plan inside
    the budget: the first calls, those before a plan is ready or where there is none, other shapes,
    other branches, and the rest of a call that does something else than was recorded. It cannot
    look ahead, so it costs more time than a plan, and at tight budgets it may have to go above them
    (`stats.steps_over_budget`; docs/online.md). A budget such as "60%" begins to hold with the
    second call: the first one, which runs without a cap, tells the peak.

    Plans, the times they were made for and the speed of the storage are kept in `cache_dir`. A
    later run of the same script starts planned: its first call that looks as one did before is
    recorded, and the next one follows the plan, which the simulator has checked again.

    The budget counts what PyTorch's tensors and operators hold. The process follows: from the first
    use of wrap on, tensors of 64 KiB and more come from an arena of poet's own, whose resident
    pages are never more than the most that was in use at once, and 1/32 of a plan's peak where the
    plan moves nothing and the budget has that room. The environment variable POET_ARENA=0 leaves
    them to malloc. For the rest the first use fixes the size from which the C
    library unmaps freed blocks at once (M_MMAP_THRESHOLD of glibc) at 32 MiB, where it otherwise
    moves; POET_MMAP_THRESHOLD sets another number of bytes, 0 leaves it alone.

    To wrap a step takes a few tenths of a second: Python's garbage is collected and the tensors
    that exist are counted, so that the first call need not do it.

    Args:
        train_step: runs one training step: forward, backward, and the optimizer's step.
        ram_budget: bytes, "512MiB", or "60%" of the plain step's peak. Parameters, gradients,
            optimizer state and inputs count. A `poet.Budget` is one that several steps share.
        runtime_budget: a ratio to the plain step's time (1.3) or seconds as "1.5s". None: no limit.
        method: what plans: a name that `poet.methods()` has. Another one than "poet" trains with
            its own plans or not at all: where it finds none, this call and all later ones raise.
            One that is `live` there has no plan: its policy decides while each call runs
            (docs/methods.md); with online=False it trains with what that does to the recorded step.
        platform: the device profile; "host" is the only one so far.
        minimize: "energy", "time" or "memory".
        recompute: plans may run operators again.
        paging: plans may move values to secondary storage. The first call measures how fast it is,
            which takes about a second, once for each folder and machine.
        background: solve while training goes on without a plan; False: wait for the plan.
        time_limit_s: seconds that solving may take.
        page_dir: a folder on a disk, for a file without a name that holds paged values; it goes
            when the step does. None: the system's folder for temporary files; where that takes no
            page file (it often lies in RAM), nothing is paged, and a warning says so.
        cache_dir: the folder of what lasts between runs; it may be new. True: the user's cache
            folder ($POET_CACHE_DIR, else $XDG_CACHE_HOME/poet, else ~/.cache/poet). None or False:
            nothing lasts.
        deadline: of the whole training, from now on: seconds, "8h", "90min", a datetime.timedelta,
            or the moment of its end as a datetime.datetime. Divided by the number of steps it is a
            runtime budget; where both are given the tighter one holds.
        steps: of the whole training, for `deadline` and `battery_joules`.
        epochs: in place of `steps`, with `steps_per_epoch`.
        steps_per_epoch: see there.
        battery_joules: that the whole training may draw, by the device's power model. Only with
            minimize="energy". Where the best plan takes more than a step's share there is no plan.
        only_while: what must hold when a step begins: "charging" (the machine is on mains power;
            one without a battery is), "idle" (other programs use less than a quarter of the
            processors), functions that say so, or several of these. Until they hold the call waits,
            looks every few seconds, and has what it can in secondary storage (`pause`). Ctrl-C
            ends it.
        online: whether the online policy keeps calls without a plan inside the budget
            (docs/online.md). False, or POET_ONLINE=0 in the environment: they run without a cap.
        strict: what a call without a plan does that the online policy cannot keep inside the
            budget. None: go on above it, with one warning; only the first call raises BudgetError,
            and only where it is certain that no plan could do. True: any call raises BudgetError
            (refused without the policy, because it would change nothing). False: none does. A call
            that has run an optimizer's operator, or changed anything else that cannot be put back,
            always goes on.
        hard: no operator on the thread that runs the step exceeds the budget, in any call, with or
            without a plan. What would ends the call with BudgetError, as memory that the machine
            does not have would: tensors are as the operators before it left them, and the next call
            works. `ram_budget` must be in bytes, which hold from the first call on. Each
            allocation takes two locks and a table entry more.
        verbose: say on stderr what happens.

    Returns:
        A callable with the same arguments and result as `train_step`. It has `schedule`, `graph`,
        `stats`, `wait_for_plan()`, `pause()` and `close()`, and is a context manager.

    Raises:
        ArgumentError: an argument makes no sense; `page_dir` takes no page file; nothing is left
            that could make room, because recompute and paging are both off.

    The wrapped step raises BudgetError where a named method has no plan within the budget, and as
    `strict` says: then parameters, buffers and generators are as they were before the call.

    Warns:
        BudgetWarning: once, when there is no plan within the budget (training goes on without one);
            once, when a call had to go above the budget.
        StoreWarning: nothing is paged although it was asked for, with the reason.
        CacheWarning: an entry of the cache was damaged and dropped, or nothing can be kept.
    """
    call = check_step(train_step)
    if isinstance(train_step, WrappedStep):
        raise ArgumentError(
            "train_step: expected a plain step; got one that poet.wrap made. Wrap the step itself."
        )
    can = methods()[check_method(method)]
    shared = ram_budget if isinstance(ram_budget, Budget) else None
    if isinstance(ram_budget, Budget):
        ram_budget = ram_budget.ram_budget
    # Found wrong now rather than after the first step.
    if platform != HOST:
        raise ArgumentError(
            f"platform: expected {HOST!r}, the machine that trains; got {platform!r}. poet.solve "
            "plans for other devices."
        )
    parse_bytes(ram_budget, plain_peak_bytes=1 << 40)
    if runtime_budget is not None:
        parse_runtime(runtime_budget, plain_seconds=1.0)
    flag(background, "background")
    flag(verbose, "verbose")
    objective = parse_objective(minimize)
    _C.check_objective(can.name, objective)
    share = step_share(
        deadline=deadline,
        steps=steps,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        battery_joules=battery_joules,
        minimize=objective,
    )
    gate = None if only_while is None else Gate(only_while)
    if not isinstance(strict, bool | None):
        raise ArgumentError(f"strict: expected True, False or None; got {strict!r}.")
    polices = flag(online, "online") and os.environ.get("POET_ONLINE") != _OFF
    if strict and not polices:
        by = "online=False" if not online else f"POET_ONLINE={_OFF} in the environment"
        raise ArgumentError(
            f"strict=True: expected the online policy to be on; got {by}. Only that policy "
            "(docs/online.md) keeps calls without a plan inside the budget; without it strict=True "
            "would change nothing. Leave one of the two out."
        )
    if flag(hard, "hard"):
        _check_hard(ram_budget, strict, can, polices)
    live = can.live and polices
    if live:
        _check_live(can.name, runtime_budget, share)
    options = PlanningOptions(
        platform=platform,
        ram_budget=ram_budget,
        runtime_budget=runtime_budget,
        minimize=objective,
        recompute=flag(recompute, "recompute"),
        page_folder=folder_for_method(can, recompute, flag(paging, "paging"), page_dir),
        cache=open_cache(cache_dir),
        time_limit_s=positive_number(time_limit_s, "time_limit_s", "seconds above 0"),
        method=can.name,
        share=share,
        background=background,
        online=polices,
        live=live,
    )
    give_memory_back()
    strictness = _HARD if hard else _STRICTNESS[strict]
    return WrappedStep(
        call, options, strictness=strictness, verbose=verbose, gate=gate, shared=shared
    )


def _check_hard(ram_budget: ByteBudget, strict: bool | None, can: Method, polices: bool) -> None:
    """Refuses what would leave calls without a limit."""
    if is_share(ram_budget):
        raise ArgumentError(
            f'hard=True: expected a ram_budget in bytes, as "512MiB"; got {ram_budget!r}. A share '
            "of the plain step's peak is known only once a call has run without a limit."
        )
    if strict is False:
        raise ArgumentError(
            "strict=False: expected it to be left out beside hard=True, which lets no call go "
            "above the budget; got both. Leave one of them out."
        )
    is_policed = can.name == "poet" or can.live
    if not is_policed or not polices:
        got = "the online policy off" if is_policed else f"method={can.name!r}"
        raise ArgumentError(
            'hard=True: expected method="poet", or one that decides while the step runs, and the '
            "online policy (docs/online.md), which keeps calls without a plan inside the budget; "
            f"got {got}. Leave one of them out."
        )


def _check_live(method: str, runtime_budget: TimeBudget | None, share: StepShare) -> None:
    """Refuses what only a plan can keep."""
    if runtime_budget is None and share.seconds is None and share.joules is None:
        return
    raise ArgumentError(
        f"method={method!r}: expected no runtime_budget, deadline or battery_joules, since it "
        "decides while a step runs and knows no times beforehand. Leave them out, or take its "
        "policy's plan for the recorded step (online=False)."
    )


__all__ = ["WrappedStep", "wrap"]
