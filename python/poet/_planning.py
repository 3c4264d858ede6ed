"""Where a wrapped step's plans come from: the cache between runs, or the solver."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Sequence

from poet import _C
from poet._accelerator import UNCAPPED
from poet._budgets import (
    format_bytes,
    format_seconds,
    is_share,
)
from poet._enums import Objective, Status
from poet._errors import (
    ArgumentError,
    BudgetError,
    NotBuiltError,
    PoetRuntimeError,
    StoreWarning,
)
from poet._memory import release_free_memory
from poet._plan_news import PlanNews
from poet._planning_options import PlanningOptions
from poet._plans import PlanCache, PlanRequest, budget_bytes, deadline_seconds
from poet._profile import with_known_watts
from poet._solve import solve_on, solve_with_bar
from poet._store import StoreSpeed, host_speed, known_speed, store_speed
from poet._store_watch import StoreWatch
from poet._swap_feedback import METHOD as FEEDS_BACK
from poet._swap_feedback import SwapFeedback
from poet._times_seen import OpTimes
from poet._warn import warn
from poet._without_plan import no_plan_error

_WITH_PLAN = (Status.OPTIMAL, Status.FEASIBLE)
_SHORTEST_SEARCH_S = 1.0
DECIDES_LIVE = "the method {method!r} decides while a step runs: no call has a plan"
FIRST_OF_A_SHARE = (
    "the budget is a share of the plain step's peak, which is known once a call has shown it: the "
    "first call runs without a cap"
)


class StepPlanner:
    """Plans for the variants of one wrapped step.

    Not thread-safe: `plan` may run on another thread than the rest, one call at a time, and for
    variants that `look_up` is not asked about any more.
    """

    def __init__(
        self,
        session: _C.Session,
        options: PlanningOptions,
        say: Callable[[str], None],
        strictness: str,
    ) -> None:
        self.schedules: dict[int, _C.Schedule] = {}
        self.stopped = threading.Event()  # no plan is wanted any more
        self.plans_from_cache = 0
        self.plans_of_other_sizes = 0
        self.message = ""
        self.no_plan: BudgetError | None = None  # of a named method: it trains with its plans only
        self._session = session
        self._options = options
        self._say = say
        self.news = PlanNews(say, options, strictness)
        cache = None if options.live else options.cache
        self._cached = None if cache is None else PlanCache(cache)
        self._op_times = OpTimes(session, self._cached)
        self._device = self._plain_device()
        self._page_folder = options.page_folder
        self.paging_trouble = ""  # why nothing is paged any more
        self._speed: StoreSpeed | None = None
        self._watches: dict[int, StoreWatch] = {}
        self._feedback: dict[int, SwapFeedback] = {}
        self.swap_feedbacks = 0
        self._in_force = threading.Lock()  # while a plan takes another one's place
        self._again: set[int] = set()  # variants whose plan is to be made again
        self._borrowed: set[int] = set()  # and those with the plan of other sizes
        # And those whose plan no longer keeps the budget, with the bytes to come beside them.
        self._outgrown: dict[int, int] = {}
        self._times_outgrown = 0
        self._times_corrected = 0
        self._strictness = strictness
        self._largest_peak = 0
        self._accelerator = ""  # that the step trains on; "": the CPU
        self._policed_bytes = 0

    def use_accelerator(self, device: str) -> None:
        """Before `prepare`: the step trains on that device, whose memory the budget counts.

        Raises:
            ArgumentError: `strict=True` asks for the online policy, which is for the CPU.
            NotBuiltError: `hard=True` does, too.
        """
        if self._strictness == "hard":
            raise NotBuiltError(
                f"hard=True: expected a step that trains on the CPU; got one on {device}. For "
                "other devices the limit is not built yet: leave hard out."
            )
        if self._strictness == "always":
            raise ArgumentError(
                f"strict=True: expected a step that trains on the CPU; got one on {device}. Calls "
                "without a plan run without a cap there: leave strict out."
            )
        self._accelerator = device
        self.message = UNCAPPED.format(device=device)
        self._say(self.message)

    def prepare(self) -> None:
        """Before the first call: how fast the store is, and the budget where it is no share.

        Measuring takes about a second, once for each folder and machine.
        """
        if self._accelerator:
            if self._page_folder is not None:
                self._device = host_speed(self._accelerator).on(self._device)
            return
        self._measure_store()
        if is_share(self._options.ram_budget):
            self.message = FIRST_OF_A_SHARE
            self._say(FIRST_OF_A_SHARE)
        else:
            self._police(budget_bytes(self._request(), 0))

    def keep_inside(self, variant: int) -> None:
        """After a variant was recorded for the first time: a share of its peak is known by now."""
        if not is_share(self._options.ram_budget):
            return
        if self.message == FIRST_OF_A_SHARE:
            self.message = ""
        graph = self._session.graph_of(variant)
        self._largest_peak = max(self._largest_peak, graph.plain_peak_bytes())
        self._police(budget_bytes(self._request(), self._largest_peak))

    def _police(self, budget: int) -> None:
        if not self._options.online or budget == self._policed_bytes or self._accelerator:
            return
        if self._options.method != "poet" and not self._options.live:
            return  # it trains under its own plans and no other method
        self._policed_bytes = budget
        self._session.set_budget(
            budget,
            self._options.recompute,
            self._page_folder is not None,
            self._device,
            self._strictness,
            self._options.method,
        )

    def _measure_store(self) -> None:
        folder = self._page_folder
        if folder is None:
            return
        try:
            if known_speed(folder, self._options.cache) is None:
                self._say(f"measuring how fast {folder} is: once for each folder and machine")
            speed = store_speed(folder, self._options.cache)
        except (ArgumentError, PoetRuntimeError, OSError) as error:
            self._stop_paging(str(error))
            return
        self._speed = speed
        self._device = speed.on(self._device)

    @property
    def plans_made_again(self) -> int:
        """Plans asked for again: for other times or rates than believed, more beside the step."""
        return (
            self._times_outgrown
            + self._times_corrected
            + sum(watch.plans for watch in self._watches.values())
        )

    def wants_another_plan(self, variant: int) -> bool:
        """Looks at a step that followed its plan; whether `plan` should be called again for it.

        See Note [Times from a busy machine] and Note [A store that is slower beside the step].
        """
        schedule = self.schedules.get(variant)
        if schedule is None or variant in self._again:
            return False
        return self._follows_times(variant) or self._follows_store(variant, schedule)

    def feed_back(self, variant: int) -> bool:
        """After a step that followed its plan: whether late swap-ins begin earlier from now on."""
        if self._options.method != FEEDS_BACK:
            return False
        with self._in_force:  # another plan may come from the thread that plans
            schedule, graph = self.schedules.get(variant), self._session.graph_of(variant)
            waits_for_another = variant in self._again or variant in self._outgrown
            if graph is None or schedule is None or not schedule.has_plan or waits_for_another:
                return False
            feedback = self._feedback.setdefault(variant, SwapFeedback())
            moved = feedback.earlier(self._session, schedule, graph, self._device)
            held = None if moved is None else self._options.share.hold(moved)
            if held is None or not held.has_plan:
                return False
            try:
                self._session.move_plan(variant, held, self._device)
            except (ArgumentError, PoetRuntimeError):  # the plan in force is as good as it was
                return False
            self.schedules[variant] = held
        self.swap_feedbacks += 1
        return True

    def _follows_times(self, variant: int) -> bool:
        corrected = self._op_times.correct(variant)
        if corrected is None or not (self._options.background or self._needs_seconds()):
            return False  # training would stand still for the same plan
        believed, seen = map(format_seconds, corrected)
        self._say(
            f"the operators of a step take {seen}, not the {believed} that they were recorded "
            "with: planning again"
        )
        self._again.add(variant)
        self._times_corrected += 1
        return True

    def _needs_seconds(self) -> bool:
        """Whether plans depend on more than how the times of ops compare with one another."""
        request = self._request()
        deadlines = [deadline_seconds(request, plain_seconds) for plain_seconds in (1.0, 2.0)]
        is_fixed = deadlines[0] is not None and deadlines[0] == deadlines[1]
        return request.paging or is_fixed or self._options.share.joules is not None

    def _follows_store(self, variant: int, schedule: _C.Schedule) -> bool:
        if self._speed is None or self._page_folder is None:
            return False
        seconds = max(schedule.solve_seconds, _SHORTEST_SEARCH_S)
        price = 0.0 if self._options.background else seconds
        watch = self._watches.setdefault(variant, StoreWatch())
        if not watch.may_ask:
            return False
        seen = watch.observe(self._session.counters, schedule.makespan_seconds, self._speed, price)
        if seen is None:
            return False
        self._say(
            f"the store reads {format_bytes(int(seen.read_rate))} and writes "
            f"{format_bytes(int(seen.write_rate))} a second beside the step, not "
            f"{format_bytes(int(self._speed.read_rate))} and "
            f"{format_bytes(int(self._speed.write_rate))}: planning again"
        )
        self._speed = seen
        self._device = seen.on(self._plain_device())
        self._again.add(variant)
        return True

    def look_up(self, variant: int) -> bool:
        """Asks the cache about a variant that was recorded for the first time.

        Returns:
            Whether another run knew this step, so that it need not be seen twice. If it also had a
            plan, that is in force now.
        """
        if self._cached is None:
            return False
        graph = self._cached.profiled(self._session.graph_of(variant))
        if graph is None:
            return False
        self._use_kept(variant, graph)
        return True

    def borrow(self, variant: int) -> bool:
        """Puts a plan in force that was made for the same step with other sizes, where one does.

        For a variant that was recorded for the first time, until `plan` is called for it. That of
        the next larger step, else of the largest; the simulator has seen it with the new sizes
        (`csrc/schedule/other_sizes.h`).
        """
        if self._options.method != "poet":
            return False
        graph, request = self._session.graph_of(variant), self._request()
        if graph is None:
            return False
        peak = graph.plain_peak_bytes()
        budget = budget_bytes(request, max(self._largest_peak, peak))
        deadline = deadline_seconds(request, graph.plain_seconds)
        for donor in sorted(self.schedules, key=lambda v: self._distance(v, peak)):
            known = self._session.graph_of(donor)
            if donor == variant or known is None:
                continue
            found = _C.with_other_sizes(
                self.schedules[donor], known, graph, self._device, budget, deadline
            )
            if found is None or found.peak_bytes > budget:
                continue
            if deadline is not None and found.makespan_seconds > deadline:
                continue
            held = self._options.share.hold(found)
            if held.has_plan and self._put_in_force(variant, held):
                self._borrowed.add(variant)
                self.plans_of_other_sizes += 1
                self.news.in_force("plan of other sizes in force", held, graph, budget)
                return True
        return False

    def _distance(self, variant: int, peak_bytes: int) -> tuple[bool, int]:
        """Orders plans of other sizes: larger ones from the nearest on, then smaller ones."""
        graph = self._session.graph_of(variant)
        more = (0 if graph is None else graph.plain_peak_bytes()) - peak_bytes
        return more < 0, abs(more)

    def is_borrowed(self, variant: int) -> bool:
        """Whether the plan in force was made for other sizes."""
        return variant in self._borrowed

    def outgrow(self, variant: int, bytes_to_come: int) -> None:
        """The plan in force no longer keeps the budget: `plan` is to find another one.

        It leaves room for what is still to come beside the step, where there is a plan that does.
        """
        self._again.discard(variant)
        self._outgrown[variant] = bytes_to_come
        self._times_outgrown += 1
        self._say("more lies beside the step than when its plan was made: planning again")

    def grow(self, variant: int, more_bytes: int) -> None:
        """That much more lies beside the step, and the plan in force keeps the budget: it stays."""
        schedule, graph = self.schedules.get(variant), self._session.graph_of(variant)
        if schedule is not None and graph is not None:
            self.schedules[variant] = _C.beside_more(schedule, graph, more_bytes)

    def plan(self, variant: int) -> bool:
        """Puts a plan in force for the variant, or notes that there is none.

        Returns:
            False where the solver could not be asked, for lack of descriptors or processes, say:
            the step is none the worse for it, and later there may be enough.
        """
        graph = self._session.graph_of(variant)
        if graph is None:  # dropped in the meantime: the session keeps the latest variants
            return True
        if self._options.live and not self._accelerator:
            self._session.set_unplannable(variant)
            self.message = DECIDES_LIVE.format(method=self._options.method)
            return True
        graph = self._op_times.best(variant, graph)
        looks = self._cached is not None and variant not in self._again
        if looks and self._use_kept(variant, graph):
            self._outgrown.pop(variant, None)
            return True
        try:
            self._solve(variant, graph)
        except PoetRuntimeError as error:
            if self._options.method != "poet":
                raise
            self.message = str(error)
            self.news.no_solver(self.message)
            return False
        finally:
            self._again.discard(variant)
            self._outgrown.pop(variant, None)
            self._borrowed.discard(variant)
            self._feedback.pop(variant, None)
            if variant in self._watches:
                self._watches[variant].restart()
        return True

    def _use_kept(self, variant: int, graph: _C.Graph) -> bool:
        """Puts the plan in force that the cache has for this request."""
        assert self._cached is not None
        request = self._request()
        peak = max(self._largest_peak, graph.plain_peak_bytes())
        budget = budget_bytes(request, peak)
        schedule = self._cached.find(graph, request, budget)
        if schedule is None:
            return False
        schedule = self._options.share.hold(schedule)
        if not schedule.has_plan or not self._put_in_force(variant, schedule):
            return False
        self._largest_peak = peak
        self.plans_from_cache += 1
        self.news.in_force("plan of an earlier run in force", schedule, graph, budget)
        return True

    def _solve(self, variant: int, graph: _C.Graph) -> None:
        begin, request = time.monotonic(), self._request()
        again = variant in self._again
        in_force = again or variant in self._borrowed
        if again and not self._options.background:  # what wants_another_plan reckoned with
            seconds = max(self.schedules[variant].solve_seconds, _SHORTEST_SEARCH_S)
            request = dataclasses.replace(request, time_limit_s=min(seconds, request.time_limit_s))
        self._largest_peak = max(self._largest_peak, graph.plain_peak_bytes())
        budget = budget_bytes(request, self._largest_peak)
        # The other methods take no plan to start from, their own neither.
        starts = [self.schedules[variant]] if in_force and request.method == "poet" else []
        roomy = self._leaving_room(variant, graph, request, budget)
        if roomy is not None:
            found = schedule = roomy
        else:
            left = max(_SHORTEST_SEARCH_S, request.time_limit_s - (time.monotonic() - begin))
            found = self._search(
                graph,
                dataclasses.replace(request, time_limit_s=min(request.time_limit_s, left)),
                budget,
                runtime_budget_seconds=deadline_seconds(request, graph.plain_seconds),
                starts=starts,
            )
            schedule = self._options.share.hold(found)
        if self.stopped.is_set():
            return
        if schedule.status not in _WITH_PLAN:
            if in_force:
                return  # the plan in force keeps the budget all the same
            if variant in self._outgrown:
                self.message = schedule.message
                self.news.outgrown_plan(schedule, graph, budget)
                return
            kept = self._within_memory_alone(graph, request, budget, found)
            if self.stopped.is_set():
                return
            if kept is None:
                self._do_without(variant, schedule, budget)
                return
            self.news.without_plan(schedule, budget, graph.plain_seconds, kept=kept)
            schedule = _C.held_to(kept, f"within the memory budget alone: {schedule.message}", None)
        elif self._cached is not None and roomy is None:
            self._cached.keep(graph, request, found)
        if self._put_in_force(variant, schedule):
            self.news.in_force("plan in force", schedule, graph, budget)
        else:  # paging has just been given up
            self._solve(variant, graph)

    def _leaving_room(
        self, variant: int, graph: _C.Graph, request: PlanRequest, budget: int
    ) -> _C.Schedule | None:
        """A plan that leaves room for what is still to come beside the variant's step.

        None where nothing is to come, or no such plan keeps all budgets.
        """
        room = min(self._outgrown.get(variant, 0), budget // _C.LEAST_SHARE_OF_ROOM)
        if room <= 0 or request.method != "poet":
            return None
        schedule = self._search(
            graph,
            request,
            budget - room,
            runtime_budget_seconds=deadline_seconds(request, graph.plain_seconds),
        )
        if schedule.status not in _WITH_PLAN or self.stopped.is_set():
            return None
        roomy = _C.leaving_room(schedule, graph, request.device, budget)
        held = self._options.share.hold(roomy)
        return held if held.status in _WITH_PLAN else None

    def _search(
        self,
        graph: _C.Graph,
        request: PlanRequest,
        budget: int,
        *,
        runtime_budget_seconds: float | None,
        minimize: str | None = None,
        starts: Sequence[_C.Schedule] = (),
    ) -> _C.Schedule:
        search = solve_with_bar if self._shows_bar() else solve_on
        return search(
            graph,
            request.device,
            ram_budget_bytes=budget,
            runtime_budget_seconds=runtime_budget_seconds,
            minimize=minimize or request.minimize,
            recompute=request.recompute,
            paging=request.paging,
            away_between_steps=request.away_between_steps,
            parameters_away=request.away_between_steps,
            time_limit_s=request.time_limit_s,
            method=request.method,
            should_stop=self.stopped.is_set,
            starts=starts,
            niceness=_C.BACKGROUND_NICENESS if self._options.background else 0,
        )

    def _within_memory_alone(
        self, graph: _C.Graph, request: PlanRequest, budget: int, found: _C.Schedule
    ) -> _C.Schedule | None:
        """The best plan for the memory budget where deadline or battery cannot be kept as well.

        `found` is what was found before the battery was looked at. None where memory alone is too
        much to ask for, and for a named method, which trains with what it was asked for only.
        """
        if request.method != "poet":
            return None
        if found.status in _WITH_PLAN:
            return found
        if deadline_seconds(request, graph.plain_seconds) is None:
            return None
        quickest = self._search(
            graph, request, budget, runtime_budget_seconds=None, minimize=Objective.TIME
        )
        return quickest if quickest.status in _WITH_PLAN else None

    def _do_without(self, variant: int, schedule: _C.Schedule, budget: int) -> None:
        self.schedules[variant] = schedule
        self._session.set_unplannable(variant)
        self.message = schedule.message or f"the planner ended with status {schedule.status}"
        if self._options.method != "poet":
            self.no_plan = no_plan_error(schedule, budget, self._options.time_limit_s)
            raise self.no_plan
        plain_seconds = self._session.graph_of(variant).plain_seconds
        self.news.without_plan(schedule, budget, plain_seconds, is_policed=self._policed_bytes > 0)

    def _shows_bar(self) -> bool:
        """Training stands still meanwhile, and somebody watches."""
        return not self._options.background and sys.stderr is not None and sys.stderr.isatty()

    def _request(self) -> PlanRequest:
        paging = self._page_folder is not None
        return PlanRequest(
            device=self._device,
            ram_budget=self._options.ram_budget,
            runtime_budget=self._options.runtime_budget,
            minimize=self._options.minimize,
            recompute=self._options.recompute,
            paging=paging,
            away_between_steps=paging,
            time_limit_s=self._options.time_limit_s,
            method=self._options.method,
            step_seconds=self._options.share.seconds,
        )

    def _put_in_force(self, variant: int, schedule: _C.Schedule) -> bool:
        """False where the store has no room for what the plan pages: nothing is paged then."""
        try:
            with self._in_force:
                self._session.set_plan(variant, schedule, self._device)
                self.schedules[variant] = schedule
        except (ArgumentError, PoetRuntimeError) as error:
            if self._page_folder is None:
                raise
            self._stop_paging(str(error))
            return False
        self.message = ""
        release_free_memory()
        return True

    def _stop_paging(self, why: str) -> None:
        self._page_folder = None
        self.paging_trouble = why
        self._device = self._plain_device()
        warn(
            f"poet pages nothing to secondary storage in this run: {why}",
            StoreWarning,
        )

    def _plain_device(self) -> _C.DeviceProfile:
        """Without a store."""
        device = _C.DeviceProfile.by_name(self._options.platform)
        return with_known_watts(device, self._options.cache)


__all__ = ["StepPlanner"]
