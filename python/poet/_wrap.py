"""poet.wrap: an existing training step, made to train inside a memory budget."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

from poet import _C
from poet._budgets import (
    ByteBudget,
    TimeBudget,
    format_bytes,
    parse_bytes,
    parse_runtime,
    positive_number,
)
from poet._enums import Status
from poet._errors import ArgumentError, BudgetWarning, NotBuiltError
from poet._live import check_step, no_ops_error, run_step, verify_wanted
from poet._solve import solve


class _LeftOut:
    """A default that can be told from the same value passed on purpose."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


_PAGING: Any = _LeftOut(True)
_PAGE_DIR: Any = _LeftOut(None)
_CACHE_DIR: Any = _LeftOut(None)


@dataclasses.dataclass(frozen=True)
class StepStats:
    """What has happened to a wrapped step so far.

    Attributes:
        steps: calls so far.
        traced_steps: calls that were recorded from beginning to end.
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
        replayed_ops: operators that were run again.
        replay_seconds: time that they took.
        evictions: times that a value's memory was released before its end.
        plan_switches: changes from one variant's plan to another's within a step.
        message: the planner's last word where there is no plan; "" otherwise.
    """

    steps: int
    traced_steps: int
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
    plan_switches: int
    message: str


class WrappedStep:
    """A training step under a memory budget. Call it like the step that it wraps; see `wrap`."""

    __module__ = "poet"

    def __init__(
        self,
        train_step: Callable[..., Any],
        *,
        ram_budget: ByteBudget,
        runtime_budget: TimeBudget | None,
        platform: str,
        background: bool,
        time_limit_s: float,
        verbose: bool,
    ) -> None:
        functools.update_wrapper(self, train_step)
        self._step = train_step
        self._ram_budget = ram_budget
        self._runtime_budget = runtime_budget
        self._platform = platform
        self._background = background
        self._time_limit_s = time_limit_s
        self._verbose = verbose
        self._device = _C.DeviceProfile.by_name(platform)
        self._session = _C.Session(verify=verify_wanted())
        self._lock = threading.Lock()
        self._schedules: dict[int, _C.Schedule] = {}
        self._latest: int | None = None  # variant of the last planned step
        self._last_graph: int | None = None
        self._largest_peak = 0
        self._thread: threading.Thread | None = None
        self._waiting: list[int] = []
        self._error: BaseException | None = None
        self._message = ""
        self._warned = False
        self._closed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step and returns what it returns."""
        self._raise_background_error()
        if (
            self._closed or _C.is_listening()
        ):  # a wrapped step inside a wrapped step: the outer one rules
            return self._step(*args, **kwargs)
        result, report = run_step(self._session, self._step, args, kwargs)
        if report["num_ops"] == 0 and report["mode"] == "traced":
            raise no_ops_error(self._step)
        self._note(report)
        return result

    def _note(self, report: dict[str, Any]) -> None:
        variant = report["variant"]
        if variant is None:
            return
        self._last_graph = variant
        if variant in self._schedules:
            self._latest = variant
        if not report["newly_stable"]:
            return
        self._say(f"step traced: {report['num_ops']} operators; planning")
        if self._background:
            self._plan_later(variant)
        else:
            self._plan(variant)

    def _plan_later(self, variant: int) -> None:
        with self._lock:
            self._waiting.append(variant)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._plan_waiting, name="poet-plan", daemon=True
                )
                self._thread.start()

    def _plan_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._closed:
                    self._thread = None
                    return
                variant = self._waiting.pop(0)
            try:
                self._plan(variant)
            except BaseException as error:  # shown at the next call: a thread has nobody to tell
                with self._lock:
                    self._error = error
                    self._thread = None
                return

    def _plan(self, variant: int) -> None:
        graph = self._session.graph_of(variant)
        self._largest_peak = max(self._largest_peak, graph.plain_peak_bytes())
        budget = parse_bytes(self._ram_budget, plain_peak_bytes=self._largest_peak)
        schedule = solve(
            graph=graph,
            platform=self._platform,
            ram_budget=budget,
            runtime_budget=self._runtime_budget,
            time_limit_s=self._time_limit_s,
        )
        self._schedules[variant] = schedule
        self._latest = variant
        if schedule.status in (Status.OPTIMAL, Status.FEASIBLE):
            self._session.set_plan(variant, schedule, self._device)
            self._message = ""
            extra = 100 * (schedule.makespan_seconds / graph.plain_seconds - 1)
            self._say(
                f"plan in force: peak {format_bytes(schedule.peak_bytes)} of "
                f"{format_bytes(budget)}, {extra:+.1f} % time predicted"
            )
            return
        self._session.set_unplannable(variant)
        self._message = schedule.message or f"the planner ended with status {schedule.status}"
        self._warn_without_plan(schedule, budget)

    def _warn_without_plan(self, schedule: _C.Schedule, budget: int) -> None:
        if self._warned:
            return
        self._warned = True
        least = schedule.least_ram_budget
        advice = (
            f"The least budget that has a plan is {least} bytes ({format_bytes(least)})."
            if least
            else ""
        )
        warnings.warn(
            f"poet found no plan within {budget} bytes ({format_bytes(budget)}), status "
            f"{schedule.status}: {schedule.message} {advice} Training goes on without a plan, "
            "outside the budget.",
            BudgetWarning,
            stacklevel=4,
        )

    def _raise_background_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _say(self, text: str) -> None:
        if self._verbose:
            print(f"poet: {text}", file=sys.stderr, flush=True)

    @property
    def schedule(self) -> _C.Schedule | None:
        """The schedule of the last step's variant, whatever its status; None before the first."""
        return None if self._latest is None else self._schedules.get(self._latest)

    @property
    def graph(self) -> _C.Graph | None:
        """The graph of the last step's variant; None before the first call."""
        variant = self._last_graph
        return None if variant is None else self._session.graph_of(variant)

    @property
    def stats(self) -> StepStats:
        """What has happened so far."""
        counters = self._session.counters()
        with self._lock:
            planning = self._thread is not None
        plans = sum(
            s.status in (Status.OPTIMAL, Status.FEASIBLE) for s in list(self._schedules.values())
        )
        return StepStats(plans=plans, planning=planning, message=self._message, **counters)

    def wait_for_plan(self, timeout: float | None = None) -> bool:
        """Waits until no plan is being solved for; False if `timeout` seconds did not suffice."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        self._raise_background_error()
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        """Ends planning. Calls after this run the plain step. May be called more than once."""
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def __enter__(self) -> WrappedStep:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        name = getattr(self._step, "__qualname__", repr(self._step))
        return f"<poet.WrappedStep of {name}, ram_budget={self._ram_budget!r}>"


def wrap(
    train_step: Callable[..., Any],
    *,
    ram_budget: ByteBudget,
    runtime_budget: TimeBudget | None = None,
    method: str = "poet",
    platform: str = "host",
    recompute: bool = True,
    paging: bool = _PAGING,
    background: bool = True,
    time_limit_s: float = 60,
    page_dir: str | None = _PAGE_DIR,
    cache_dir: str | None = _CACHE_DIR,
    hard: bool = False,
    verbose: bool = False,
) -> WrappedStep:
    """Makes a training step train inside a memory budget, with the same bits as without.

        step = poet.wrap(train_step, ram_budget="2GiB")
        for batch in loader:
            loss = step(batch)

    The first calls run as they are and are recorded (two alike are needed, which is usually so
    after the third). Then a plan is solved for, and every later call follows it: values are
    released and recomputed so that no more than `ram_budget` bytes are resident at once. A call
    that does something else than was recorded is brought back to plain training where it departs;
    a variant of the step that comes again (gradient accumulation) gets a plan of its own.

    Args:
        train_step: runs one training step: forward, backward, and the optimizer's step.
        ram_budget: bytes, "512MiB", or "60%" of the plain step's peak. Parameters, gradients,
            optimizer state and inputs count.
        runtime_budget: a ratio to the plain step's time (1.3) or seconds as "1.5s". None: no limit.
        method: how to plan; "poet" is the only one so far.
        platform: the device profile; "host" is the only one so far.
        recompute: recompute values. Must be True: nothing else can make room so far.
        paging: move values to secondary storage. Not built yet: leave it out or pass False.
        background: solve while training goes on without a plan; False: wait for the plan.
        time_limit_s: seconds that solving may take.
        page_dir: where paged values would go. Not built yet: leave it out.
        cache_dir: where plans would be kept. Not built yet: leave it out.
        hard: stop the step rather than exceed the budget. Not built yet: leave it out.
        verbose: say on stderr what happens.

    Returns:
        A callable with the same arguments and result as `train_step`. It has `schedule`, `graph`,
        `stats`, `wait_for_plan()` and `close()`, and is a context manager.

    Raises:
        ArgumentError: an argument makes no sense.
        NotBuiltError: an option was asked for that does not exist yet.

    Warns:
        BudgetWarning: once, when there is no plan within the budget. Training goes on plainly.
    """
    call = check_step(train_step)
    if isinstance(train_step, WrappedStep):
        raise ArgumentError(
            "train_step: expected a plain step; got one that poet.wrap made. Wrap the step itself."
        )
    _check_method(method)
    _refuse_unbuilt(
        {
            "paging=True": not isinstance(paging, _LeftOut) and paging is not False,
            "page_dir": not isinstance(page_dir, _LeftOut) and page_dir is not None,
            "cache_dir": not isinstance(cache_dir, _LeftOut) and cache_dir is not None,
            "hard=True": hard is not False,
            "recompute=False": recompute is not True,
        }
    )
    # Found wrong now rather than after the first step.
    parse_bytes(ram_budget, plain_peak_bytes=1 << 40)
    if runtime_budget is not None:
        parse_runtime(runtime_budget, plain_seconds=1.0)
    positive_number(time_limit_s, "time_limit_s", "seconds above 0")
    for name, flag in (("background", background), ("verbose", verbose)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name}: expected True or False; got {flag!r}.")
    return WrappedStep(
        call,
        ram_budget=ram_budget,
        runtime_budget=runtime_budget,
        platform=platform,
        background=background,
        time_limit_s=time_limit_s,
        verbose=verbose,
    )


def _check_method(method: object) -> None:
    if method != "poet":
        raise NotBuiltError(
            f'method: expected "poet"; got {method!r}. Other methods are not built yet.'
        )


def _refuse_unbuilt(asked_for: dict[str, bool]) -> None:
    for option, asked in asked_for.items():
        if asked:
            raise NotBuiltError(
                f"{option}: expected it to be left out; this option is not built yet."
            )


__all__ = ["StepStats", "WrappedStep", "wrap"]
