"""No call goes above its budget without a word: what steps keep, and calls that raise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from inside_budget import Watched
from own_process import in_a_process_of_its_own
from torch import nn
from zoo import differences

import poet

_WIDTH, _ROWS, _CALLS = 64, 512, 14
_ODD = (7, 10)  # calls in which something happens
_GRAPH_AT_TIMES = ("graph at times", "second order at times")


class _Steps:
    """A step that keeps `what` in some calls, or raises."""

    def __init__(self, what: str) -> None:
        torch.manual_seed(0)
        layers = [m for _ in range(5) for m in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())]
        self.net = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-3, foreach=False)
        self.kept: list[torch.Tensor] = []
        self.more: list[Any] = []
        self.calls = 0
        self._what = what

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        call = self.calls
        self.calls += 1
        self.optimizer.zero_grad()
        if self._what == "second order at times":
            x = x.clone().requires_grad_()
        h = self._forward(x, call in _ODD)
        if self._what == "interrupt in backward" and call in _ODD:
            h.register_hook(_interrupt)
        if self._what == "error" and call in _ODD:
            raise ValueError("of the step's own")
        loss = h.square().mean()
        if self._what == "second order at times":
            (slope,) = torch.autograd.grad(h.sum(), x, create_graph=True)
            loss = loss + (slope.norm(dim=1) - 1).square().mean()
        graph_stays = self._what == "graph" or (call in _ODD and self._what in _GRAPH_AT_TIMES)
        loss.backward(retain_graph=graph_stays)
        self.optimizer.step()
        if call in _ODD and self._what in _GRAPH_AT_TIMES:
            self.kept.append(loss)
        if call >= 6 and self._what in ("graph", "output"):
            self.kept.append(loss if self._what == "graph" else h.detach())
        if len(self.kept) > 3:
            self.kept.clear()
        return loss.detach()

    def _forward(self, x: torch.Tensor, odd: bool) -> torch.Tensor:
        """What it makes is the same, odd or not; what is kept of it is not."""
        h = x
        for layer in self.net:
            h = layer(h)
            if isinstance(layer, nn.Tanh) and self._what == "gradients in a hook at times":
                h.register_hook(self.kept.append if odd else _look)
            if isinstance(layer, nn.Linear) and odd and self._what == "activations at times":
                self.kept.append(h)
        return h

    def between(self, call: int) -> None:
        """What the program does after the call."""
        if self._what == "activations at times":
            self.kept.clear()
        if call not in _ODD:
            return
        if self._what == "copies of the state":
            self.more.append(copy.deepcopy(self.net.state_dict()))
        if self._what == "small tensors":
            self.more.append([torch.zeros(15_000) for _ in range(20)])

    def state(self) -> dict[str, Any]:
        return dict(self.net.state_dict())


def _look(grad: torch.Tensor) -> None:
    """Keeps nothing."""


def _interrupt(grad: torch.Tensor) -> None:
    raise KeyboardInterrupt


def _batch(call: int) -> torch.Tensor:
    return torch.randn(_ROWS, _WIDTH, generator=torch.Generator().manual_seed(call))


def _result(step: Callable[[torch.Tensor], torch.Tensor], call: int) -> str:
    try:
        return str(step(_batch(call)).item())
    except (ValueError, KeyboardInterrupt) as error:
        return type(error).__name__


def _check(what: str, paging: bool) -> None:
    plain = _Steps(what)
    results = []
    for i in range(_CALLS):
        results.append(_result(plain, i))
        plain.between(i)
    probe = _Steps(what if what.startswith("second order") else "")
    probe(_batch(0))
    graph = poet.trace(probe, _batch(1))
    del probe
    plain.kept.clear()
    plain.more.clear()
    asked: dict[str, Any] = {"paging": paging, "cache_dir": None, "time_limit_s": 1}
    least = poet.solve(graph=graph, ram_budget=1, **asked).least_ram_budget
    assert least is not None
    budget = least + 3 * (graph.plain_peak_bytes() - least) // 10
    with Watched(measured=True) as watched:
        own = _Steps(what)
        step = poet.wrap(own, ram_budget=budget, background=False, **asked)
        got = []
        for i in range(_CALLS):
            got.append(_result(lambda x: watched.call(step, (x,)), i))
            own.between(i)
    assert got == results
    assert differences(plain.state(), own.state()) == []
    assert step.stats.followed_steps > 0 or what == "graph"  # a graph that is kept is in no plan
    watched.check(budget, planned=False)


_WHATS = (
    "output",
    "graph",
    "error",
    "interrupt in backward",
    *_GRAPH_AT_TIMES,
    "gradients in a hook at times",
    "activations at times",
    "copies of the state",
    "small tensors",
)
# Copying the state brings back between two calls what is away: that is there when the next begins.
_CASES = [(w, p) for w in _WHATS for p in (False, True) if not p or w != "copies of the state"]


@pytest.mark.parametrize(("what", "paging"), _CASES)
def test_calls_are_inside_or_told_of(what: str, paging: bool) -> None:
    """Outputs are kept, let go of and kept again; what an error brings back takes memory, too."""
    in_a_process_of_its_own(_check, what, paging)


def _check_less_is_seen() -> None:
    """The copy takes more than there is room for, and less than that beside what has gone."""
    probe = _Steps("")
    probe(_batch(0))
    room = 80_000
    budget = poet.trace(probe, _batch(1)).plain_peak_bytes() + room
    del probe
    with Watched(measured=True) as watched:
        step = poet.wrap(
            _Steps(""),
            ram_budget=budget,
            method="checkpoint_all",
            background=False,
            cache_dir=None,
        )
        held: list[Any] = [torch.zeros(9_500).untyped_storage()]  # of no tensor that is known
        for i in range(_CALLS):
            if i == 6:  # they are counted after 1, 2 and 4 calls under the plan
                held = [torch.zeros(4_100) for _ in range(5)]
                assert room < sum(x.nbytes for x in held) < room + 12_000
            watched.call(step, (_batch(i),))
    assert step.stats.followed_steps > 0
    watched.check(budget, planned=False)


def test_what_a_copy_takes_is_seen_beside_what_has_gone() -> None:
    """How much more there is in all is less than what came: half of the room is reason to count."""
    in_a_process_of_its_own(_check_less_is_seen)


class _LetsGo(_Steps):
    """Lets go of what lay beside it, after its first operator."""

    def __init__(self) -> None:
        super().__init__("")
        self.left = [torch.zeros(25_000)]

    def _forward(self, x: torch.Tensor, odd: bool) -> torch.Tensor:
        x = x * 1.0
        self.left.clear()
        return super()._forward(x, odd)


def _check_what_went_is_no_room() -> None:
    """Recorded beside 100,000 bytes that go midway; followed beside 60,000 others that stay."""
    probe = _LetsGo()
    probe(_batch(0))
    graph = poet.trace(probe, _batch(1))
    budget = graph.plain_peak_bytes() + 20_000
    del probe, graph
    with Watched(measured=True) as watched:
        own = _LetsGo()
        step = poet.wrap(
            own, ram_budget=budget, method="checkpoint_all", background=False, cache_dir=None
        )
        held = []
        for i in range(8):
            if i < 3:  # the optimizer has no state in the first
                own.left.append(torch.zeros(25_000))
            else:
                held = held or [torch.zeros(15_000)]
            watched.call(step, (_batch(i),))
    assert step.stats.followed_steps + step.stats.departures > 0
    watched.check(budget, planned=False)


def test_what_a_recording_saw_go_is_no_room() -> None:
    """What is not there again is not counted as if it were, and had made room."""
    in_a_process_of_its_own(_check_what_went_is_no_room)


def _check_small_pieces() -> None:
    """Kept of each call: 4,000 bytes, with room for some hundred."""
    probe = _Steps("")
    probe(_batch(0))
    graph = poet.trace(probe, _batch(1))
    asked: dict[str, Any] = {"paging": False, "cache_dir": None, "time_limit_s": 1}
    least = poet.solve(graph=graph, ram_budget=1, **asked).least_ram_budget
    assert least is not None
    budget = least + 3 * (graph.plain_peak_bytes() - least) // 10
    del probe, graph
    with Watched(measured=True) as watched:
        step = poet.wrap(_Steps(""), ram_budget=budget, background=False, **asked)
        kept = []
        for i in range(24):
            watched.call(step, (_batch(i),))
            kept.append(torch.zeros(1000))
    assert step.stats.followed_steps >= 8  # 14 to 20, three such processes on two cores
    watched.check(budget, planned=False)


def test_small_pieces_of_each_call_are_told_of() -> None:
    """Too small to be seen at once; at the pace at which they came they are expected."""
    in_a_process_of_its_own(_check_small_pieces)


def _check_a_rest_ends() -> None:
    """Calls of one shape have a plan, of another none; one of the former raises."""
    small, large, fails = 192, 512, -192
    rows = [small, small, small, *4 * [large], fails, large, large]
    with Watched(measured=True) as watched:
        own = _Steps("error")
        step = poet.wrap(
            own, ram_budget=780_000, paging=False, background=False, cache_dir=None, time_limit_s=1
        )
        for count in rows:
            own.calls = _ODD[0] if count < 0 else 0
            with suppress(ValueError):
                watched.call(step, (_batch(0)[: abs(count)].clone(),))
    assert step.stats.failed_steps == 1
    assert step.stats.unrecorded_steps > 0
    watched.check(780_000, planned=False)


def test_a_call_after_one_that_left_its_plan_by_an_error_is_told_of() -> None:
    """What is resident was not counted in the planned call: the next one is recorded."""
    in_a_process_of_its_own(_check_a_rest_ends)


class _Short(_Steps):
    """Of four layers; its first operator tells the shape."""

    def __init__(self) -> None:
        super().__init__("")
        del self.net[8:]

    def _forward(self, x: torch.Tensor, odd: bool) -> torch.Tensor:
        return super()._forward(x * 1.0, odd)


def _check_another_shape_beside_copies(hard: bool) -> None:
    """It leaves the plan at its first operator, before which nobody had counted the copies."""
    budget = 1_280_000
    with Watched(measured=True) as watched:
        own = _Short()
        step = poet.wrap(
            own,
            ram_budget=budget,
            hard=hard,
            paging=False,
            background=False,
            cache_dir=None,
            time_limit_s=1,
        )
        copies = []
        for i in range(8):
            if i == 6:
                copies += [copy.deepcopy(own.net.state_dict()) for _ in range(3)]
            watched.call(step, (_batch(i)[: 512 if i < 6 else 500],))
    assert step.stats.departures > 0
    watched.check(budget, planned=False)


@pytest.mark.parametrize("hard", [False, True])
def test_what_has_come_is_counted_where_a_call_leaves_its_plan_at_once(hard: bool) -> None:
    in_a_process_of_its_own(_check_another_shape_beside_copies, hard)


class _KeepsItsGradients(_Steps):
    """They are there all the time, set to zero in the middle.

    The policy gets by, and the search has no plan for a second or more.
    """

    def __init__(self) -> None:
        super().__init__("")
        del self.net[8:]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        h = self.net[:5](x * 1.0)
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.net[5:](h).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _check_copies_beside_rests() -> None:
    """There is no plan, so that most calls are not recorded; then copies of the model come."""
    budget = 816_000
    with Watched(measured=True) as watched:
        own = _KeepsItsGradients()
        step = poet.wrap(
            own,
            ram_budget=budget,
            paging=False,
            background=False,
            cache_dir=None,
            time_limit_s=0.1,  # in 1 s a run had a plan after all, once
        )
        copies = []
        for i in range(16):
            if 8 <= i < 11:
                copies.append(copy.deepcopy(own.net.state_dict()))
            watched.call(step, (_batch(i),))
    assert step.stats.followed_steps == 0
    assert step.stats.unrecorded_steps > 0
    watched.check(budget, planned=False)


def test_copies_that_come_where_calls_are_not_recorded_are_seen() -> None:
    in_a_process_of_its_own(_check_copies_beside_rests)


class _ZeroesMidway(_Short):
    """Lets go of its gradients in the forward pass, or before it; of what lies beside it, too."""

    def __init__(self, midway: bool) -> None:
        super().__init__()
        self.left: list[torch.Tensor] = []
        self._midway = midway

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._midway:
            self.optimizer.zero_grad()
        h = x * 1.0
        self.left.clear()
        h = self.net[:5](h)
        if self._midway:
            self.optimizer.zero_grad()
        loss = self.net[5:](h).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _check_a_swap(midway: bool, first: int, swap: Callable[[_ZeroesMidway, int], Any]) -> None:
    """`swap` prepares each call but for the first ones."""
    budget = 1_273_582
    with Watched(measured=True) as watched:
        own = _ZeroesMidway(midway)
        step = poet.wrap(
            own, ram_budget=budget, paging=False, background=False, cache_dir=None, time_limit_s=1
        )
        held = []
        for i in range(first + 12):
            if i < first and not midway:
                own.left.append(torch.zeros(25_000))
            if i >= first:
                held.append(swap(own, i - first))
            watched.call(step, (_batch(i),))
    assert step.stats.plans_made_again > 0
    assert step.stats.steps_over_budget <= 2  # at the end it is seen, and then counted
    assert step.stats.followed_steps >= first - 3 + 8
    watched.check(budget, planned=False)


def _one_tensor(size: int, own: _ZeroesMidway, call: int) -> torch.Tensor | None:
    return torch.zeros(size) if call == 0 else None


def _one_copy(own: _ZeroesMidway, call: int) -> Any:
    """Of the model; the gradients of the call before are let go of."""
    own.optimizer.zero_grad()
    return copy.deepcopy(own.net.state_dict()) if call == 0 else None


@pytest.mark.parametrize("first", [3, 13])  # under its first plan; between two counts
@pytest.mark.parametrize("size", [25_000, 24_000, 15_000])
def test_what_stays_in_place_of_what_went_midway_is_told_of(size: int, first: int) -> None:
    """As much is in use when the call begins, or less; at its end more is."""
    in_a_process_of_its_own(_check_a_swap, False, first, partial(_one_tensor, size))


@pytest.mark.parametrize("midway", [False, True])
def test_a_copy_in_place_of_gradients_is_told_of(midway: bool) -> None:
    """Both take as much; those are gone where the call reaches its peak."""
    in_a_process_of_its_own(_check_a_swap, midway, 13, _one_copy)


def _check_no_false_alarm(midway: bool) -> None:
    budget = 1_273_582
    with Watched(measured=True) as watched:
        own = _ZeroesMidway(midway)
        step = poet.wrap(
            own, ram_budget=budget, paging=False, background=False, cache_dir=None, time_limit_s=1
        )
        for i in range(20):
            own.left.append(torch.zeros(25_000))
            if i == 3:  # the first under its plan
                own.optimizer.zero_grad()
            watched.call(step, (_batch(i),))
    assert step.stats.followed_steps == 17
    assert step.stats.steps_over_budget == step.stats.plans_made_again == 0
    watched.check(budget)


@pytest.mark.parametrize("midway", [False, True])
def test_what_goes_midway_in_every_call_is_no_alarm(midway: bool) -> None:
    in_a_process_of_its_own(_check_no_false_alarm, midway)


class _Wide(_Short):
    """Under paging its plans have part of it away between calls."""

    def __init__(self) -> None:
        super().__init__()
        layers = [m for _ in range(3) for m in (nn.Linear(96, 96), nn.Tanh())]
        self.net = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-3, foreach=False)


def _check_begins_above() -> None:
    """What it begins with is above its budget; old gradients are gone by its first operator."""
    budget = 567_931
    with Watched(measured=True) as watched:
        step = poet.wrap(
            _Wide(),
            ram_budget=budget,
            paging=True,
            background=False,
            cache_dir=None,
            time_limit_s=1,
        )
        held = []
        for i in range(8):
            if i == 3:
                held.append(torch.zeros(27_900))
            watched.call(step, (torch.randn(256, 96),))
    assert step.stats.departures > 0
    watched.check(budget, planned=False)


def test_a_call_that_begins_above_its_budget_and_leaves_its_plan_is_told_of() -> None:
    in_a_process_of_its_own(_check_begins_above)


class _UpdatesAtTimes(_Short):
    """Every other call updates: two streams of operators in turn."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        call = self.calls
        self.calls += 1
        self.optimizer.zero_grad()
        h = self._forward(x, odd=False)
        if call == 15:
            h.register_hook(_interrupt)
        loss = h.square().mean()
        loss.backward()
        if call % 2:
            self.optimizer.step()
        return loss.detach()


def _check_the_other_stream_above() -> None:
    """No plan has room for what lies beside it, and there is no policy: its calls go above."""
    probe = _Short()
    probe(_batch(0))
    graph = poet.trace(probe, _batch(1))
    asked: dict[str, Any] = {"paging": False, "cache_dir": None, "time_limit_s": 1}
    least = poet.solve(graph=graph, ram_budget=1, **asked).least_ram_budget
    assert least is not None
    budget = least + (graph.plain_peak_bytes() - least) // 2
    del probe, graph
    with Watched(measured=True) as watched:
        step = poet.wrap(
            _UpdatesAtTimes(), ram_budget=budget, background=False, online=False, **asked
        )
        held = []
        for i in range(18):
            if i in (6, 10):  # after the first there is another plan, and soon after that none
                held.append(torch.zeros(25_000 if i == 6 else 200_000))
            with suppress(KeyboardInterrupt):
                watched.call(step, (_batch(i),))
    assert step.stats.failed_steps == 1
    assert step.stats.steps_over_budget >= 7
    for i, (before, after) in enumerate(zip(watched.stats, watched.stats[1:], strict=False), 1):
        if i >= 10:
            assert after.steps_over_budget == before.steps_over_budget + 1, f"call {i} is untold"


def test_a_call_that_changes_streams_above_its_budget_is_told_of() -> None:
    """After a call that was interrupted the other stream was expected."""
    in_a_process_of_its_own(_check_the_other_stream_above)
