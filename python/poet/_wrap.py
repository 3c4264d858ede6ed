"""poet.wrap: an existing training step, made to train inside a memory budget."""

from __future__ import annotations

import atexit
import functools
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from poet import _C
from poet._budgets import (
    ByteBudget,
    TimeBudget,
    parse_bytes,
    parse_runtime,
    positive_number,
)
from poet._cache import open_cache
from poet._constraints import TrainingDeadline, step_share
from poet._enums import Status
from poet._errors import ArgumentError, BudgetWarning, NotBuiltError, StoreError, StoreWarning
from poet._live import (
    StepTypeError,
    check_step,
    close_session,
    end_watching,
    leaves_with_gradients,
    no_ops_error,
    run_step,
    run_unrecorded,
    shapes_in,
    verify_wanted,
)
from poet._memory import give_memory_back
from poet._methods import Method, check_method, methods
from poet._planning import PlanningOptions, StepPlanner
from poet._solve import flag, parse_objective
from poet._stats import StepStats
from poet._store import page_folder
from poet._waiting import Condition, Gate
from poet._warn import warn

_LONGEST_REST = 64  # calls
_STRICTNESS = {None: "first_call", True: "always", False: "never"}

_wrapped: weakref.WeakSet[WrappedStep] = weakref.WeakSet()


@atexit.register
def _stop_planning() -> None:
    """A thread that came back from the solver when the interpreter ends would abort the process."""
    for step in list(_wrapped):
        step._stop_planning()


class _Rest:
    """Calls that are not recorded while recording tells nothing new.

    Recording costs many times a short step. Where a step has no plan, because there is none within
    the budget or it is still being solved for, a call is recorded now and then only, and whenever
    its arguments have other shapes. How many calls lie in between is drawn at random and doubles on
    average, so that no rhythm of variants hides from it.
    """

    def __init__(self) -> None:
        self._shapes: tuple[object, ...] = ()  # of the last call
        self.skipped = 0
        self._left = 0
        self._longest = 1
        self._random = random.Random(0)

    def skips(self, shapes: tuple[object, ...]) -> bool:
        """Whether this call, with arguments of these shapes, may go unrecorded."""
        if shapes != self._shapes:
            self.end()
            self._shapes = shapes
        if self._left == 0:
            return False
        self._left -= 1
        self.skipped += 1
        return True

    def lengthen(self) -> None:
        """A recorded call told nothing new."""
        self._longest = min(2 * self._longest, _LONGEST_REST)
        self._left = self._random.randint(self._longest // 2, self._longest)

    def end(self) -> None:
        """Something changed: the next calls count."""
        self._left = 0
        self._longest = 1


class WrappedStep:
    """A training step under a memory budget. Call it like the step that it wraps; see `wrap`."""

    __module__ = "poet"

    def __init__(
        self,
        train_step: Callable[..., Any],
        options: PlanningOptions,
        *,
        strict: bool | None,
        verbose: bool,
        gate: Gate | None = None,
    ) -> None:
        functools.update_wrapper(self, train_step)
        self._step = train_step
        self._options = options
        self._verbose = verbose
        self._gate = gate
        self._session = _C.Session(verify=verify_wanted())
        if options.page_folder is not None:
            self._session.set_store(options.page_folder)
            end_watching(self._session)  # memory handed out from here on is known
        self._planner = StepPlanner(self._session, options, self._say, _STRICTNESS[strict])
        self._prepared = False
        self._lock = threading.Lock()
        self._seen: set[int] = set()  # variants that the cache was asked about
        self._asked: set[int] = set()  # variants that a plan is or was solved for
        self._interrupted: set[int] = set()  # and those that Ctrl-C kept one from
        self._latest: int | None = None  # variant of the last planned step
        self._last_graph: int | None = None
        self._thread: threading.Thread | None = None
        self._waiting: list[int] = []
        self._error: BaseException | None = None
        self._rest = _Rest()
        self._closed = False
        self._warned_of_variants = False
        _wrapped.add(self)
        if options.share.note:
            self._say(options.share.note)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step and returns what it returns."""
        self._raise_background_error()
        if self._planner.no_plan is not None and not self._closed:
            raise self._planner.no_plan
        if (
            self._closed or _C.is_listening()
        ):  # a wrapped step inside a wrapped step: the outer one rules
            return self._step(*args, **kwargs)
        if self._gate is not None:
            self._gate.wait(release=self._release, say=self._say, stopped=lambda: self._closed)
        if not self._prepared:
            self._prepared = True
            self._planner.prepare()
        if self._session.next_step_is_traced() and self._rest.skips(shapes_in((args, kwargs))):
            self._session.bring_back()  # what pause() moved out
            result, excess = run_unrecorded(self._session, self._step, args, kwargs)
            self._planner.tell_of_excess(excess)
            return result
        result, report = run_step(self._session, self._step, args, kwargs)
        self._planner.tell_of_excess(report)
        if report["num_ops"] == 0 and report["mode"] == "traced":
            raise no_ops_error(self._step)
        self._note(report)
        return result

    def _note(self, report: dict[str, Any]) -> None:
        variant = report["variant"]
        if variant is None:
            return
        self._last_graph = variant
        self._forget_dropped()
        known = False
        if variant not in self._seen:
            self._seen.add(variant)
            self._planner.keep_inside(variant)
            known = self._planner.look_up(variant)
        if report["mode"] == "followed" and self._planner.wants_another_plan(variant):
            known |= self._start_planning(variant)
        if variant in self._planner.schedules:
            self._latest = variant
        elif (
            known or report["newly_stable"] or variant in self._interrupted
        ) and variant not in self._asked:
            self._asked.add(variant)
            self._interrupted.discard(variant)
            self._say(f"step traced: {report['num_ops']} operators; planning")
            known |= self._start_planning(variant)
        waits = variant in self._asked or variant in self._planner.schedules
        if report["mode"] == "traced" and waits and not report["newly_stable"]:
            self._rest.lengthen()  # nothing new, and no plan
        elif report["mode"] != "traced" or not waits:
            self._rest.end()
        if known:  # a plan came into force here, between two steps
            self._session.move_out()
            end_watching(self._session)

    def _start_planning(self, variant: int) -> bool:
        """Whether it is over."""
        if self._options.background:
            self._plan_later(variant)
            return False
        try:
            self._plan(variant)
        except KeyboardInterrupt:  # the next call plans again
            self._asked.discard(variant)
            self._interrupted.add(variant)
            raise
        return True

    def _forget_dropped(self) -> None:
        """The session keeps the latest variants of a step that is another one at every call."""
        if len(self._seen) <= 2 * _C.Session.MOST_VARIANTS:
            return
        self._warn_of_many_variants()
        kept = set(self._session.variants())
        self._seen &= kept
        self._asked &= kept
        self._interrupted &= kept
        for variant in set(self._planner.schedules) - kept - {self._latest}:
            self._planner.schedules.pop(variant, None)

    def _warn_of_many_variants(self) -> None:
        """Once: plans are made faster than they are met again."""
        stats = self.stats
        if self._warned_of_variants or 2 * stats.followed_steps > stats.steps:
            return
        self._warned_of_variants = True
        warn(
            f"poet has a plan for few calls only: {stats.followed_steps} of {stats.steps} followed "
            f"one, for {stats.variants} different streams of operators or more ran. Each shape of "
            "a batch needs a plan of its own. Pad batches to a few lengths, or bucket them by "
            "length, so that shapes come again.",
            BudgetWarning,
        )

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

    def _stop_planning(self) -> None:
        """Ends the solver, and waits for the thread that waits for it."""
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        self._planner.stopped.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _plan(self, variant: int) -> None:
        try:
            self._planner.plan(variant)
        finally:  # without a plan its schedule says why
            self._latest = variant

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
        return None if self._latest is None else self._planner.schedules.get(self._latest)

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
            s.status in (Status.OPTIMAL, Status.FEASIBLE)
            for s in list(self._planner.schedules.values())
        )
        return StepStats(
            plans=plans,
            planning=planning,
            plans_from_cache=self._planner.plans_from_cache,
            plans_made_again=self._planner.plans_made_again,
            message=self._planner.message,
            share=self._options.share.note,
            held_steps=self._gate.held_steps if self._gate is not None else 0,
            held_seconds=self._gate.held_seconds if self._gate is not None else 0.0,
            unrecorded_steps=self._rest.skipped,
            **{**counters, "steps": counters["steps"] + self._rest.skipped},
        )

    def wait_for_plan(self, timeout: float | None = None) -> bool:
        """Waits until no plan is being solved for; False if `timeout` seconds did not suffice."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        self._raise_background_error()
        return thread is None or not thread.is_alive()

    def pause(self) -> int:
        """Moves to secondary storage all that can be paged, for as long as nothing needs it.

            step.pause()  # between two calls: somebody else needs the memory for a while
            step(batch)   # everything is back, with the same bits

        That is what the calls so far have shown of it: parameters, buffers, optimizer state and
        gradients. Each comes back by itself when something on this thread touches it (an operator,
        `numpy()`, `torch.save` ...), and all of them at the next call. Call it on the thread that
        runs the steps, between two of them.

        Returns:
            Bytes that this released. 0 where nothing is left to release, before the first call,
            and where there is no storage to page to (paging=False, or no folder for it).

        Raises:
            PoetRuntimeError: a step is running.
            StoreError: the storage has no room. Nothing has changed then.
        """
        if self._closed:
            return 0
        released = self._session.pause(leaves_with_gradients())
        end_watching(self._session)
        return released

    def _release(self) -> int:
        """`pause`, for a step that waits: without room in the store it waits all the same."""
        try:
            return self.pause()
        except StoreError as error:
            self._say(f"nothing is released meanwhile: {error}")
            return 0

    def close(self) -> None:
        """Ends planning, and brings back what is away between steps.

        Calls after this run the plain step. May be called more than once.

        Raises:
            StoreError: a value could not be read back; it is still in the store.
        """
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self._planner.stopped.set()
        close_session(self._session)

    def __enter__(self) -> WrappedStep:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise StepTypeError(
            f"{self!r} cannot be copied or pickled: it holds what is away from memory. Copy the "
            "model and the optimizer, and wrap the copy's step."
        )

    def __repr__(self) -> str:
        name = getattr(self._step, "__qualname__", repr(self._step))
        return f"<poet.WrappedStep of {name}, ram_budget={self._options.ram_budget!r}>"


def wrap(
    train_step: Callable[..., Any],
    *,
    ram_budget: ByteBudget,
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

    What follows no plan runs without a cap on memory: the first calls, those before a plan is ready
    or where there is none, other shapes, other branches, and the rest of a call that does something
    else than was recorded. With POET_ONLINE=1 in the environment (on trial, docs/online.md) an
    online policy keeps them inside the budget too, the one of dynamic tensor rematerialization. It
    cannot look ahead, so it costs more time than a plan, and at tight budgets it may have to go
    above them (`stats.steps_over_budget`). A budget such as "60%" then begins to hold with the
    second call: the first one, which runs without a cap, tells the peak.

    Plans, the times they were made for and the speed of the storage are kept in `cache_dir`. A
    later run of the same script starts planned: its first call that looks as one did before is
    recorded, and the next one follows the plan, which the simulator has checked again.

    The budget counts what PyTorch's tensors and operators hold. The process follows: from the first
    use of wrap on, tensors of 64 KiB and more come from an arena of poet's own, whose resident
    pages are never more than the most that was in use at once. The environment variable
    POET_ARENA=0 leaves them to malloc. For the rest the first use fixes the size from which the C
    library unmaps freed blocks at once (M_MMAP_THRESHOLD of glibc) at 32 MiB, where it otherwise
    moves; POET_MMAP_THRESHOLD sets another number of bytes, 0 leaves it alone.

    Args:
        train_step: runs one training step: forward, backward, and the optimizer's step.
        ram_budget: bytes, "512MiB", or "60%" of the plain step's peak. Parameters, gradients,
            optimizer state and inputs count.
        runtime_budget: a ratio to the plain step's time (1.3) or seconds as "1.5s". None: no limit.
        method: what plans: a name that `poet.methods()` has. Another one than "poet" trains with
            its own plans or not at all: where it finds none, this call and all later ones raise.
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
        strict: where POET_ONLINE=1 in the environment turns the online policy on (docs/online.md):
            what a call without a plan does that cannot be kept inside the budget. None: go on above
            it, with one warning; only the first call raises BudgetError, and only where it is
            certain that no plan could do. True: any call raises BudgetError. False: none does. A
            call that has run an optimizer's operator, or changed anything else that cannot be put
            back, always goes on.
        hard: stop the step rather than exceed the budget. Not built yet: leave it out.
        verbose: say on stderr what happens.

    Returns:
        A callable with the same arguments and result as `train_step`. It has `schedule`, `graph`,
        `stats`, `wait_for_plan()`, `pause()` and `close()`, and is a context manager.

    Raises:
        ArgumentError: an argument makes no sense; `page_dir` takes no page file; nothing is left
            that could make room, because recompute and paging are both off.
        NotBuiltError: an option was asked for that does not exist yet.

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
    if hard is not False:
        raise NotBuiltError("hard=True: expected it to be left out; this option is not built yet.")
    # Found wrong now rather than after the first step.
    _C.DeviceProfile.by_name(platform)
    parse_bytes(ram_budget, plain_peak_bytes=1 << 40)
    if runtime_budget is not None:
        parse_runtime(runtime_budget, plain_seconds=1.0)
    flag(background, "background")
    flag(verbose, "verbose")
    objective = parse_objective(minimize)
    share = step_share(
        deadline=deadline,
        steps=steps,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        battery_joules=battery_joules,
        minimize=objective,
    )
    gate = None if only_while is None else Gate(only_while)
    if strict is not None:
        flag(strict, "strict")
    options = PlanningOptions(
        platform=platform,
        ram_budget=ram_budget,
        runtime_budget=runtime_budget,
        minimize=objective,
        recompute=flag(recompute, "recompute"),
        page_folder=_folder_for_method(can, recompute, flag(paging, "paging"), page_dir),
        cache=open_cache(cache_dir),
        time_limit_s=positive_number(time_limit_s, "time_limit_s", "seconds above 0"),
        method=can.name,
        share=share,
        background=background,
    )
    give_memory_back()
    return WrappedStep(call, options, strict=strict, verbose=verbose, gate=gate)


def _folder_for_pages(
    recompute: bool, paging: bool, page_dir: str | os.PathLike[str] | None
) -> str | None:
    """The folder for paged values; None where nothing is to be paged."""
    if not paging:
        if page_dir is not None:
            raise ArgumentError(
                f"page_dir: expected None beside paging=False; got {page_dir!r}. Leave one of "
                "them out."
            )
        if not recompute:
            raise ArgumentError(
                "recompute, paging: expected at least one of them to be on; with both off nothing "
                "could make room. Leave one of them out."
            )
        return None
    try:
        return page_folder(page_dir)
    except ArgumentError as error:
        if page_dir is not None:
            raise
        if not recompute:
            raise ArgumentError(
                f"recompute=False: expected a folder for paged values then. {error}"
            ) from error
        _warn_of_no_folder(str(error))
        return None


@functools.cache  # once for each reason
def _warn_of_no_folder(why: str) -> None:
    warn(
        f"poet pages nothing to secondary storage, it only recomputes: {why} Pass page_dir= a "
        "folder on a disk, or paging=False to say that this is fine.",
        StoreWarning,
    )


def _folder_for_method(
    can: Method, recompute: bool, paging: bool, page_dir: str | os.PathLike[str] | None
) -> str | None:
    """As `_folder_for_pages`, for a method that may not page, or do nothing else."""
    if can.pages or page_dir is not None:
        return _folder_for_pages(recompute and can.recomputes, paging, page_dir)
    if can.recomputes and not recompute:
        raise ArgumentError(
            f"recompute=False: the method {can.name!r} makes room by recomputing. Leave it out, or "
            "choose another method."
        )
    return None


__all__ = ["StepStats", "WrappedStep", "wrap"]
