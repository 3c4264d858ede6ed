"""What poet.wrap returns: a training step that records, waits for its plan, and follows it."""

from __future__ import annotations

import atexit
import copy
import functools
import gc
import inspect
import random
import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType
from typing import Any

from poet import _C
from poet._accelerator import count_on_device
from poet._census import Census, leaves_with_gradients
from poet._enums import Status
from poet._errors import BudgetWarning, StoreError
from poet._live import (
    close_session,
    end_watching,
    no_ops_error,
    run_step,
    run_unrecorded,
    shapes_of,
    tensors_behind,
    tensors_in,
    verify_wanted,
)
from poet._planning import StepPlanner
from poet._planning_options import PlanningOptions
from poet._shared_budget import Budget
from poet._stats import StepStats
from poet._waiting import Gate
from poet._warn import PLANNING_THREAD, warn, warn_of_what_waits

_LONGEST_REST = 64  # calls
_LONGEST_REST_FROM_NEW = 256  # likewise, where each of many calls was a stream of its own
_MANY_VARIANTS = 16
# Calls in a row with arguments of one shape and an operator stream that was never met before. Were
# there fewer than some five hundred streams in all, two of so many calls would have been alike.
_ALWAYS_NEW = 32

_wrapped: weakref.WeakSet[WrappedStep] = weakref.WeakSet()


@atexit.register
def _stop_planning() -> None:
    """A thread that came back from the solver when the interpreter ends would abort the process."""
    for step in list(_wrapped):
        step._tell_of_unfinished_plan()
        step._stop_planning()
    warn_of_what_waits()


def _load_plain(step: Callable[..., Any]) -> Callable[..., Any]:
    name = getattr(step, "__qualname__", repr(step))
    warn(
        f"{name} was wrapped by poet when it was saved, and is the plain step now: no memory "
        "budget is kept. Wrap it again: poet.wrap(step, ...).",
        BudgetWarning,
    )
    return step


class _Rest:
    """Calls that are not recorded while recording tells nothing new.

    Recording costs many times a short step. Where a step has no plan, because there is none within
    the budget, or it is still being solved for, or every call is another stream of operators, a
    call is recorded now and then only, and whenever its arguments have other shapes. How many calls
    lie in between is drawn at random and doubles on average, so that no rhythm of variants hides
    from it.
    """

    def __init__(self) -> None:
        self._shapes: tuple[object, ...] = ()  # of the last call
        self.skipped = 0
        self.failed = 0  # of those
        self._left = 0
        self._longest = 1
        self._new = 0  # recorded calls in a row that met a stream for the first time
        self._random = random.Random(0)

    def skips(self, shapes: tuple[object, ...]) -> bool:
        """Whether this call, with arguments of these shapes, may go unrecorded."""
        if shapes != self._shapes:
            self.end()
            self._new = 0
            self._shapes = shapes
        if self._left == 0:
            return False
        self._left -= 1
        self.skipped += 1
        return True

    def met(self, *, first_time: bool) -> None:
        """A call ran a stream of operators that was met for the first time, or was not."""
        self._new = self._new + 1 if first_time else 0

    @property
    def always_new(self) -> bool:
        """Each of many calls with arguments of these shapes was another stream of operators."""
        return self._new >= _ALWAYS_NEW

    def lengthen(self) -> None:
        """A recorded call told nothing new, or nothing that will come again."""
        most = _LONGEST_REST_FROM_NEW if self.always_new else _LONGEST_REST
        self._longest = min(2 * self._longest, most)
        self._left = self._random.randint(self._longest // 2, self._longest)

    def end(self) -> None:
        """Something changed: the next calls count."""
        self._left = 0
        self._longest = 1


def _census_where_none_is_wrapped() -> Census | None:
    """One that the new one takes the place of may hold a model, and goes after the count."""
    gc.collect()  # also wrapped steps that nobody has any more
    return None if len(_wrapped) > 0 else Census()


class WrappedStep:
    """A training step under a memory budget. Call it like the step that it wraps; see `wrap`."""

    __module__ = "poet"

    def __init__(
        self,
        train_step: Callable[..., Any],
        options: PlanningOptions,
        *,
        strictness: str,
        verbose: bool,
        gate: Gate | None = None,
        shared: Budget | None = None,
    ) -> None:
        functools.update_wrapper(self, train_step)
        self._step = train_step
        self._options = options
        self._verbose = verbose
        self._gate = gate
        self._shared = shared
        self._session = _C.Session(verify=verify_wanted())
        if options.page_folder is not None:
            self._session.set_store(options.page_folder)
            end_watching(self._session)  # memory handed out from here on is known
        self._planner = StepPlanner(self._session, options, self._say, strictness)
        self._prepared = False
        self._census = _census_where_none_is_wrapped()
        self._lock = threading.Lock()
        self._seen: set[int] = set()  # variants that the cache was asked about
        self._asked: set[int] = set()  # variants that a plan is or was solved for
        self._interrupted: set[int] = set()  # and those that were kept from one: to be asked again
        self._latest: int | None = None  # variant of the last planned step
        self._last_graph: int | None = None
        self._calls: Counter[int] = Counter()  # by variant
        self._thread: threading.Thread | None = None
        self._waiting: list[int] = []
        self._error: BaseException | None = None
        self._rest = _Rest()
        self._closed = False
        self._warned_of_variants = False
        _wrapped.add(self)
        if shared is not None:
            shared.add(self)
        if options.share.note:
            self._say(options.share.note)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step and returns what it returns."""
        warn_of_what_waits()
        self._raise_background_error()
        if self._planner.no_plan is not None and not self._closed:
            raise self._planner.no_plan
        if (
            self._closed or _C.is_listening()
        ):  # a wrapped step inside a wrapped step: the outer one rules
            return self._step(*args, **kwargs)
        if self._gate is not None:
            self._gate.wait(release=self._release, say=self._say, stopped=lambda: self._closed)
        with nullcontext() if self._shared is None else self._shared.turn(self):
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._prepared:
            self._prepared = True
            device = count_on_device(self._session)
            if device is not None:
                self._planner.use_accelerator(str(device))
            self._planner.prepare()
        batch = tensors_in((args, kwargs))
        shown = batch or tensors_behind((args, kwargs))
        self._plan_anew(self._session.take_grown())  # by calls that failed
        self._session.expect_batch(shown)
        tell = self._planner.news.excess
        if (
            self._session.next_step_is_traced()
            and self._session.may_go_unrecorded()
            and self._rest.skips(shapes_of(shown))
        ):
            try:
                result, excess = run_unrecorded(self._session, self._step, args, kwargs, tell=tell)
            except BaseException:
                self._rest.failed += 1
                raise
            tell(excess)
            return result
        census, self._census = self._census, None
        result, report = run_step(
            self._session, self._step, args, kwargs, inputs=batch, tell=tell, census=census
        )
        tell(report)
        if report["num_ops"] == 0 and report["mode"] == "traced":
            raise no_ops_error(self._step)
        self._note(report)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """A function that was wrapped as a class attribute is a method, as it was before."""
        if instance is None or not inspect.isfunction(self._step):
            return self
        return types.MethodType(self, instance)

    def _plan_anew(self, plans: list[tuple[int, int, bool, int]]) -> None:
        """Of those beside whose steps more lies than they knew of."""
        for grown, more_bytes, keeps_budget, bytes_to_come in plans:
            if keeps_budget:
                self._planner.grow(grown, more_bytes)
                continue
            self._planner.outgrow(grown, bytes_to_come)
            if self._start_planning(grown):
                self._session.move_out()
                end_watching(self._session)

    def _note(self, report: dict[str, Any]) -> None:
        self._plan_anew(report["grown"])
        variant = report["variant"]
        if variant is None:
            return
        self._last_graph = variant
        self._calls[variant] += 1
        self._forget_dropped()
        known = borrowed = False
        self._rest.met(first_time=variant not in self._seen)
        if variant not in self._seen:
            self._seen.add(variant)
            if len(self._seen) >= _MANY_VARIANTS:
                self._warn_of_many_variants()
            self._planner.keep_inside(variant)
            known = self._planner.look_up(variant)
            borrowed = not known and self._planner.borrow(variant)
        if report["mode"] == "followed":
            if self._planner.wants_another_plan(variant):
                known |= self._start_planning(variant)
            else:
                known |= self._planner.feed_back(variant)
            if self._calls[variant] == _C.Session.CALLS_THAT_SHOW_A_STEP:
                self._session.let_go_of_seen_once([variant, *(self._asked | self._interrupted)])
        # The plan of other sizes does for a step that may not come again.
        needs_own = self._planner.is_borrowed(variant) and self._calls[variant] > 1
        if variant in self._planner.schedules:
            self._latest = variant
        if (variant not in self._planner.schedules or needs_own) and (
            (known or report["newly_stable"] or needs_own or variant in self._interrupted)
            and variant not in self._asked
        ):
            self._asked.add(variant)
            self._interrupted.discard(variant)
            does = "its method decides as it runs" if self._options.live else "planning"
            self._say(f"step traced: {report['num_ops']} operators; {does}")
            known |= self._start_planning(variant)
        waits = variant in self._asked | self._interrupted or variant in self._planner.schedules
        traced = report["mode"] == "traced"
        if traced and (self._rest.always_new or (waits and not report["newly_stable"])):
            self._rest.lengthen()  # nothing new, and no plan; or nothing that will come again
        elif not traced or not waits:
            self._rest.end()
        if known or borrowed:  # a plan came into force here, between two steps
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
        kept = set(self._session.variants())
        self._seen &= kept
        self._asked &= kept
        self._interrupted &= kept
        for variant in set(self._planner.schedules) - kept - {self._latest}:
            self._planner.schedules.pop(variant, None)
        for variant in set(self._calls) - kept:
            del self._calls[variant]

    def _warn_of_many_variants(self) -> None:
        """Once: plans are made faster than they are met again."""
        stats = self.stats
        if self._warned_of_variants or 2 * stats.followed_steps > stats.steps:
            return
        self._warned_of_variants = True
        warn(
            f"poet has a plan for few calls only: {stats.followed_steps} of {stats.steps} followed "
            f"one, for {stats.variants} different streams of operators or more ran. Each shape of "
            "a batch needs a plan of its own: pad batches to a few lengths, or bucket them by "
            "length, so that shapes come again. So does each place in a larger tensor where the "
            "step itself takes its batch as a slice of one: slice before the call. And so does "
            "each way in which tensors of a batch are one and the same, as samples of a replay "
            "memory are that were drawn twice: stack or clone them before the call.",
            BudgetWarning,
        )

    def _plan_later(self, variant: int) -> None:
        with self._lock:
            self._waiting.append(variant)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._plan_waiting, name=PLANNING_THREAD, daemon=True
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

    def _tell_of_unfinished_plan(self) -> None:
        """At the end of the program: a script of a few short steps may never see its plan."""
        stats = self.stats
        undecided = stats.planning and not stats.message and stats.followed_steps == 0
        if undecided and not self._closed:
            warn(
                f"the program ended after {stats.steps} steps, before poet had a plan: none of "
                "them was kept inside the budget. background=False waits for the plan instead.",
                BudgetWarning,
            )

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
            if not self._planner.plan(variant):
                self._asked.discard(variant)
                self._interrupted.add(variant)
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
    def schedules(self) -> tuple[_C.Schedule, ...]:
        """The schedules of all streams of operators that were met, that of the most calls first.

        A shorter last batch, an evaluation pass or accumulation give a step several.
        """
        schedules = dict(self._planner.schedules)
        return tuple(schedules[v] for v in sorted(schedules, key=lambda v: -self._calls[v]))

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
        counters["steps"] += self._rest.skipped
        counters["failed_steps"] += self._rest.failed
        counters["paging_trouble"] = counters["paging_trouble"] or self._planner.paging_trouble
        return StepStats(
            plans=plans,
            planning=planning,
            plans_from_cache=self._planner.plans_from_cache,
            plans_of_other_sizes=self._planner.plans_of_other_sizes,
            plans_made_again=self._planner.plans_made_again,
            swap_feedbacks=self._planner.swap_feedbacks,
            message=self._planner.message,
            share=self._options.share.note,
            held_steps=self._gate.held_steps if self._gate is not None else 0,
            held_seconds=self._gate.held_seconds if self._gate is not None else 0.0,
            unrecorded_steps=self._rest.skipped,
            own_bytes=self._session.own_bytes(),
            **counters,
        )

    def wait_for_plan(self, timeout: float | None = None) -> bool:
        """Waits until no plan is being solved for; False if `timeout` seconds did not suffice."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        warn_of_what_waits()
        self._raise_background_error()
        return thread is None or not thread.is_alive()

    def pause(self) -> int:
        """Moves to secondary storage all that can be paged, for as long as nothing needs it.

            step.pause()  # between two calls: somebody else needs the memory for a while
            step(batch)   # everything is back, with the same bits

        That is what the calls so far have shown of it: parameters, buffers, optimizer state and
        gradients. Each comes back by itself when something on this thread touches it (an operator,
        `numpy()`, `torch.save` ...), and all that the next call needs by its end. Call it on the
        thread that runs the steps, between two of them.

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
        warn_of_what_waits()

    def __enter__(self) -> WrappedStep:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __copy__(self) -> Callable[..., Any]:
        """The plain step: a copy is not under this one's budget. Wrap it to have one of its own.

        Trainers copy models for averages and checkpoints, and with them steps that are attributes.
        """
        return self._step

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        """As `copy.deepcopy` of the plain step."""
        return copy.deepcopy(self._step, memo)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickled and loaded it is the plain step, and says so."""
        return _load_plain, (self._step,)

    def __repr__(self) -> str:
        name = getattr(self._step, "__qualname__", repr(self._step))
        return f"<poet.WrappedStep of {name}, ram_budget={self._options.ram_budget!r}>"


__all__ = ["WrappedStep"]
