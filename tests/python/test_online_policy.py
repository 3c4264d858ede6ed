"""The online policy: steps without a plan stay inside their budget, with the same bits."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import compatibility_zoo
import pytest
import torch
import zoo
from compatibility_zoo import (
    FIRST_CALLS_ABOVE,
    LATER_START,
    OTHER_LIFETIMES,
    UNMEASURED,
    WARM_UP,
)
from own_process import in_a_process_of_its_own, with_counted_op_time
from random_plans import STORE_DEVICE
from resident import Peaks, resident_bytes
from small_steps import square_step
from torch import nn
from zoo import Case, differences, slack_budget

import poet
from poet import _C
from poet._live import run_step
from poet._store import page_folder

pytestmark = pytest.mark.usefixtures("one_thread")

_KINDS = zoo.KINDS | compatibility_zoo.KINDS
_DEVICE = _C.DeviceProfile.by_name("host")


def _build(kind: str) -> Case:
    torch.manual_seed(0)
    case = _KINDS[kind]()
    torch.manual_seed(1)
    return case


class _Online:
    """A step that never has a plan, with a budget that is found from its first call's graph."""

    def __init__(self, case: Case, budget: int, *, paging: bool = False) -> None:
        self.case = case
        self.session = _C.Session(verify=True)
        if paging:
            self.session.set_store(page_folder(None))
        device = STORE_DEVICE if paging else _DEVICE
        if budget:
            self.session.set_budget(budget, True, paging, device, "never")
        self.reports: list[dict[str, Any]] = []

    def __call__(self, *args: Any) -> Any:
        result, report = run_step(self.session, self.case.step, args, {})
        self.reports.append(report)
        return result

    def graphs(self) -> list[poet.Graph | None]:
        return [self.session.graph_of(report["variant"]) for report in self.reports]


def _train(case: Case, step: Callable[..., Any], calls: int) -> dict[str, Any]:
    results = [step(*case.batches(i)) for i in range(calls)]
    return {f"result {i}": r for i, r in enumerate(results)} | case.state()


_OFTEN = {"gan", "gradient_penalty", "in_place_chains", "lstm", "no_sync"}


def _in_turn(kinds: Iterable[str], often: set[str]) -> list[Any]:
    """All of them every night, some always."""
    return [k if k in often else pytest.param(k, marks=pytest.mark.nightly) for k in sorted(kinds)]


@pytest.mark.parametrize("paging", [False, True], ids=["recompute", "paging"])
@pytest.mark.parametrize("kind", _in_turn(_KINDS, _OFTEN))
def test_evicting_all_that_may_leave_keeps_every_bit_and_every_recording(
    kind: str, paging: bool
) -> None:
    """A budget of one byte: before every allocation everything goes that is not in use."""
    calls = 3
    if kind in WARM_UP:
        warm = _build(kind)
        _train(warm, _Online(warm, 0), calls)
    plain = _build(kind)
    free = _Online(plain, 0)
    wanted = _train(plain, free, calls)
    case = _build(kind)
    online = _Online(case, 1, paging=paging)
    assert differences(wanted, _train(case, online, calls)) == []
    for report, other in zip(free.reports, online.reports, strict=True):
        assert report["mode"] == other["mode"] == "traced"
        assert report["num_ops"] == other["num_ops"]
    for graph, other in zip(free.graphs(), online.graphs(), strict=True):
        assert graph is not None and other is not None
        _same(graph, other, held_elsewhere=kind in OTHER_LIFETIMES)
    counters = online.session.counters()
    assert counters["online_evictions"] > 0


def _same(a: poet.Graph, b: poet.Graph, *, held_elsewhere: bool) -> None:
    """Two recordings of the same step; base bytes are whatever else the process has.

    With `held_elsewhere` what may not be evicted may die at another time.
    """
    assert a.signature == b.signature
    for x, y in zip(a.values, b.values, strict=True):
        assert (x.bytes, x.producer, x.kind, x.evictable) == (
            y.bytes,
            y.producer,
            y.kind,
            y.evictable,
        )
        assert x.death == y.death or (held_elsewhere and not x.evictable)
    for p, q in zip(a.ops, b.ops, strict=True):
        assert (p.name, p.inputs, p.outputs, p.mutates, p.random) == (
            q.name,
            q.inputs,
            q.outputs,
            q.mutates,
            q.random,
        )
        assert p.workspace_bytes == q.workspace_bytes, p.name


# ---- measured from outside: what PyTorch's own profiler sees

# The kinds that CI takes.
_CHOSEN = {"accumulation", "attention_and_transformer", "bert"}


@pytest.mark.parametrize("paging", [False, True], ids=["recompute", "paging"])
@pytest.mark.parametrize("share", [0.5, 0.3])
@pytest.mark.parametrize(
    "kind",
    _in_turn(
        set(_KINDS) - set(UNMEASURED), _CHOSEN | {"checkpoint_inside", "other_shapes_every_step"}
    ),
)
def test_the_first_call_stays_inside_its_budget_or_says_so(
    kind: str, share: float, paging: bool
) -> None:
    probe = _build(kind)
    before = resident_bytes()
    free = _Online(probe, 0)
    free(*probe.batches(0))
    graph = free.graphs()[0]
    assert graph is not None
    budget = slack_budget(graph, share) - before
    del probe, free, graph
    with Peaks() as peaks:
        case = _build(kind)
        budget += resident_bytes()
        online = _Online(case, budget, paging=paging)
        batch = case.batches(0)
        known = resident_bytes()
        peaks.mark()
        peaks.mark()
        online(*batch)
    begun, peak = peaks.bytes
    if kind in LATER_START:
        budget += begun - known
    report = online.reports[0]
    which = f"{share} paging" if paging else f"{share}"
    if not any(which in kinds.get(kind, ()) for kinds in FIRST_CALLS_ABOVE.values()):
        assert report["over_bytes"] == 0, report["over_text"]
    assert (report["over_bytes"] > 0) == bool(report["over_text"])
    assert peak <= budget + report["over_bytes"], online.session.counters()


# ---- departures, shapes, bounded caches


def _net() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1)]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x = torch.randn(4096, 16)

    def step(x: torch.Tensor, extra: bool = False) -> float:
        optimizer.zero_grad()
        h = net[:12](x)
        if extra:
            h = h + torch.sin(h) * 0.01
        loss = net[12:](h).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return (step, net), x


def test_departures_new_shapes_and_hopeless_variants_stay_inside_the_budget() -> None:
    (probe, _), x = _net()
    graph = poet.trace(probe, x)
    before = resident_bytes()
    budget = slack_budget(graph, 0.5) - before
    del probe, graph, x
    (plain, plain_net), _ = _net()
    with Peaks() as peaks, warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        (own, net), x = _net()
        budget += resident_bytes()
        calls: list[Callable[[], tuple[Any, ...]]] = [lambda: (x,)] * 5
        calls += [lambda: (x, True)] * 2
        calls += [lambda: (x[:3000],), lambda: (x[:2000], True), lambda: (x,)]
        step = poet.wrap(
            own, ram_budget=budget, background=False, paging=False, cache_dir=None, time_limit_s=10
        )
        torch.manual_seed(1)
        for args in calls:
            ready = args()
            peaks.mark()
            step(*ready)
    stats = step.stats
    assert stats.followed_steps >= 2 and stats.departures >= 2 and stats.online_steps >= 3
    assert stats.steps_over_budget == 0
    assert max(peaks.bytes) <= budget, [p - budget for p in peaks.bytes]
    assert stats.hits + stats.misses == stats.steps == len(calls)
    torch.manual_seed(1)
    for args in calls:
        plain(*args())
    assert differences(dict(plain_net.state_dict()), dict(net.state_dict())) == []


def _check_state_of_an_optimizer() -> None:
    """AdamW's state, twice the parameters, lies idle until the step's end; no call has a plan."""

    def build() -> tuple[Callable[[torch.Tensor], float], nn.Module]:
        torch.manual_seed(0)
        net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(512, 512), nn.Tanh())])
        optimizer = torch.optim.AdamW(net.parameters())
        step = square_step(net, optimizer)
        return step, net

    def batches() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        rows = [256, *range(1100, 1600, 100)]
        return [torch.randn(n, 512, generator=generator) for n in rows]

    plain, wanted = build()
    losses = [plain(x) for x in batches()]
    of_parameters = sum(p.nbytes for p in wanted.parameters())
    with Peaks() as peaks, warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        xs = batches()
        own, net = build()
        budget = resident_bytes() + int(3.5 * of_parameters)
        step = poet.wrap(own, ram_budget=budget, background=False, cache_dir=None, time_limit_s=1)
        got = []
        for x in xs:
            peaks.mark()
            got.append(step(x))
    assert got == losses
    assert differences(dict(wanted.state_dict()), dict(net.state_dict())) == []
    assert max(peaks.bytes) <= budget, [p - budget for p in peaks.bytes]
    assert step.stats.followed_steps == step.stats.steps_over_budget == 0
    assert step.stats.online_page_outs > 0


def test_the_state_of_an_optimizer_leaves_until_it_is_shown() -> None:
    in_a_process_of_its_own(_check_state_of_an_optimizer)


def _check_larger_than_its_budget(known: bool) -> None:
    """Parameters and gradients alone take more than the budget, with AdamW's state twice as much.

    Calls without a plan leave in the store what does not fit, and so does a plan.
    """
    torch.set_num_threads(1)

    def build() -> tuple[Callable[[torch.Tensor], float], nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Sequential(*[m for _ in range(16) for m in (nn.Linear(512, 512), nn.Tanh())])
        optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
        step = square_step(net, optimizer)
        return step, net, optimizer

    def batches() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        rows = [64] * 6 if known else [64, 80, 96, 72]
        return [torch.randn(n, 512, generator=generator) for n in rows]

    def state(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        found = {name: p.detach() for name, p in net.named_parameters()}
        for name, p in net.named_parameters():
            assert p.grad is not None
            found |= {f"{name} gradient": p.grad}
            found |= {f"{name} {key}": value for key, value in optimizer.state[p].items()}
        return found

    plain, *wanted = build()
    losses = [plain(x) for x in batches()]
    with Peaks() as peaks, warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        xs = batches()
        own, *ours = build()
        of_parameters = sum(p.nbytes for p in ours[0].parameters())
        budget = resident_bytes() + int(0.7 * of_parameters)
        step = poet.wrap(own, ram_budget=budget, background=False, cache_dir=None, time_limit_s=5)
        got = []
        for x in xs:
            peaks.mark()
            got.append(step(x))
    assert got == losses
    assert differences(state(*wanted), state(*ours)) == []
    assert max(peaks.bytes) <= budget, [p - budget for p in peaks.bytes]
    stats = step.stats
    assert stats.steps_over_budget == stats.departures == 0
    assert stats.followed_steps == (3 if known else 0), stats.message
    assert stats.moved_between_steps > 0 or not known


@pytest.mark.parametrize("known", [False, True], ids=["without a plan", "planned"])
def test_a_training_whose_state_is_larger_than_its_budget(known: bool) -> None:
    in_a_process_of_its_own(_check_larger_than_its_budget, known)


def _check_no_pressure() -> None:
    """Small calls fit beside each other twice over; one of eight times their rows does not."""
    small, large = 512, 4096
    (probe, _), x = _net()
    graph = poet.trace(probe, x[:small])
    own_peak = graph.plain_peak_bytes() - graph.base_bytes
    del probe, graph, x
    rows = [small] * 6 + [large] * 2

    def batches() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        return [torch.randn(n, 16, generator=generator) for n in rows]

    (plain, wanted), x = _net()
    del x  # of what goes later the profiler would not know
    torch.manual_seed(1)
    losses = [plain(x) for x in batches()]
    with Peaks() as peaks, warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        xs = batches()
        own, net = _net()[0]
        budget = resident_bytes() + 3 * own_peak
        step = poet.wrap(
            own, ram_budget=budget, background=False, paging=False, cache_dir=None, time_limit_s=10
        )
        torch.manual_seed(1)
        got, evicted, met_plan = [], [], []
        for x in xs:
            peaks.mark()
            got.append(step(x))
            evicted.append(step.stats.online_evictions)
            met_plan.append(step.stats.followed_steps)
    assert got == losses
    assert differences(dict(wanted.state_dict()), dict(net.state_dict())) == []
    assert evicted[:6] == [0] * 6, "the small calls were to be without pressure"
    assert evicted[6] > 0, "the first large one was to be under pressure"
    assert evicted[7] > evicted[6] or met_plan[7] > met_plan[6]
    assert max(peaks.bytes) <= budget, [p - budget for p in peaks.bytes]
    assert step.stats.steps_over_budget == 0


def test_without_pressure_nothing_leaves_and_a_later_larger_call_is_caught() -> None:
    in_a_process_of_its_own(_check_no_pressure)


def test_a_call_that_raises_tells_what_it_went_above_its_budget_by() -> None:
    (own, _), x = _net()

    def failing(x: torch.Tensor) -> None:
        own(x)
        raise KeyError("the program's own")

    def wrapped() -> Callable[..., None]:
        return poet.wrap(failing, ram_budget=4096, paging=False, cache_dir=None, strict=False)

    with pytest.warns(poet.BudgetWarning, match="above its budget"), pytest.raises(KeyError):
        wrapped()(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", poet.BudgetWarning)
        with pytest.raises(KeyError):
            wrapped()(x)


def _share_above(budget: str) -> float:
    """By how much a step without a store or plan goes above its budget, of its plain peak."""
    net = nn.Sequential(
        *(layer for _ in range(9) for layer in (nn.Linear(128, 128), nn.GELU())), nn.Linear(128, 10)
    )
    optimizer = torch.optim.AdamW(net.parameters())

    def own(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = torch.randn(512, 128), torch.randint(10, (512,))
    with (
        warnings.catch_warnings(),
        poet.wrap(
            own, ram_budget=budget, background=False, paging=False, cache_dir=None, time_limit_s=0.5
        ) as step,
    ):
        warnings.simplefilter("ignore", poet.BudgetWarning)
        step(x, y)
        step(x, y)
        stats, peak = step.stats, step.graph.plain_peak_bytes()
    assert stats.online_steps == 1
    assert stats.online_recomputes > 0
    return stats.most_over_bytes / peak


def _check_gradients_come_back() -> None:
    # 16 % where all that comes back on the way to them stays until they are there.
    assert _share_above("60%") < 0.05
    assert _share_above("70%") == 0


def test_gradients_come_back_before_the_weights_change_with_little_beside_them() -> None:
    """Without a store: all of them at once, by replays as deep as the step, at the first update."""
    in_a_process_of_its_own(with_counted_op_time, _check_gradients_come_back)


def test_a_share_holds_from_the_second_call_on() -> None:
    (own, _), x = _net()
    step = poet.wrap(own, ram_budget="80%", paging=False, cache_dir=None, time_limit_s=1)
    step(x)
    assert step.stats.online_steps == 0
    step(x)
    assert step.stats.online_steps == 1
    step.close()


def test_another_shape_at_every_call_keeps_a_bounded_number_of_variants() -> None:
    w = torch.randn(4, 4, requires_grad=True)

    def own(x: torch.Tensor) -> float:
        loss = (x @ w).sum()
        loss.backward()
        return loss.item()

    step = poet.wrap(own, ram_budget="1GiB", paging=False, cache_dir=None)

    def train() -> None:
        for rows in range(1, 200):
            step(torch.randn(rows, 4))

    with pytest.warns(poet.BudgetWarning, match="a plan for few calls only") as told:
        train()
    assert len(told) == 1
    assert step.stats.variants <= _C.Session.MOST_VARIANTS
    assert len(step._seen) <= 2 * _C.Session.MOST_VARIANTS + 1
    step.close()


def test_what_lies_beside_a_first_call_counts_once_for_what_is_impossible() -> None:
    """Values that NumPy shares cannot leave: above the budget, though a plan might keep it."""
    x = torch.randn(256, 1024)
    beside = torch.ones(256, 1024)
    views = [beside[i:] for i in range(8)]

    def train(x: torch.Tensor) -> float:
        arrays = [(x + i).numpy() for i in range(3)]
        return float(sum(array[0, 0] for array in arrays))

    wanted = train(x)
    budget = resident_bytes() + 5 * x.nbytes // 2
    step = poet.wrap(train, ram_budget=budget, paging=False, background=False, cache_dir=None)
    with pytest.warns(poet.BudgetWarning, match="went above its budget"):
        assert step(x) == wanted
    assert step.stats.steps_over_budget == 1
    assert len(views) == 8


def _check_deep(online: bool) -> None:
    """On a stack of 1 MiB, where a call within a call for each replay would take several."""
    deep, rows, calls, odd_one = 4_000, 256, 8, 6

    def step(x: torch.Tensor, odd: bool) -> float:
        with torch.no_grad():
            h = x
            for _ in range(deep):
                h = -h
            many = x.repeat(20)  # nothing else has room beside it
            total = many.sum()
            del many
            return float((h.abs() if odd else h).sum() + total)

    def train() -> None:
        x = torch.randn(rows)
        plain = [step(x, odd) for odd in (False, True)]
        wrapped = poet.wrap(
            step,
            ram_budget=resident_bytes() + 20 * x.nbytes + 512,
            paging=False,
            online=online,
            background=False,
            cache_dir=None,
            time_limit_s=5,
        )
        for i in range(calls):
            assert wrapped(x, i == odd_one) == plain[i == odd_one]
        stats = wrapped.stats
        assert stats.planned_recomputes >= deep  # and in the odd call all of them unplanned
        assert stats.departures == 1
        assert (stats.online_recomputes >= deep) == online
        assert (stats.unplanned_recomputes >= deep) != online
        passed.append(True)

    passed: list[bool] = []
    torch.set_num_threads(1)
    threading.stack_size(1 << 20)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert passed


@pytest.mark.parametrize("online", [True, False])
def test_a_value_at_the_end_of_thousands_of_operators_comes_back(online: bool) -> None:
    """By the policy, and after a departure without one; the stack does not grow with the chain."""
    in_a_process_of_its_own(_check_deep, online)
