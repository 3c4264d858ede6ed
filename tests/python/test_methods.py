"""Every method behind one interface: solve, wrap, and what each can do."""

from __future__ import annotations

import functools
import gc
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_steps import KIB, chain_graph, chain_plain_peak
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint_sequential
from zoo import build, differences, plain, run

import poet
from poet import _solve

REPOSITORY = Path(__file__).parents[2]

# Those that plan in a moment; the dense programs and CP-SAT have small steps of their own below.
QUICK = (
    "checkpoint_all",
    "revolve",
    "chen_sqrt",
    "chen_greedy",
    "rotor",
    "pofo",
    "twremat",
    "dtr",
    "dtr_eq",
    "dtr_local",
    "dtr_banish",
    "coop",
    "dtr_placed",
    "capuchin",
    "page_all",
)
DENSE = ("checkmate", "poet_paper", "poet_remat_only", "poet_page_only", "moccasin")
PAGING = {name for name, method in poet.methods().items() if method.pages}
KINDS = (
    "residual_net",
    "gpt2",
    pytest.param("unet_3d", marks=pytest.mark.nightly),
    pytest.param("lstm", marks=pytest.mark.nightly),
)
CALLS = 6


def test_every_method_is_tested_here() -> None:
    assert {"poet", *QUICK, *DENSE} == set(poet.methods())


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["resnet18", "gpt2"])
def test_every_method_ends_within_a_second_of_its_time_limit(model: str) -> None:
    graph = poet.solve(model=model, method="checkpoint_all", platform="a72").traced_graph
    for name in poet.methods():
        begin = time.monotonic()
        poet.solve(graph=graph, platform="a72", method=name, ram_budget="90%", time_limit_s=3)
        assert time.monotonic() - begin < 4, name


def test_the_solver_goes_to_every_method_with_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_solve, "check_solver", lambda *_: None)
    monkeypatch.setattr(_solve, "gurobi_command", lambda: ["false"])  # says nothing and ends
    words = {"graph": chain_graph(4), "ram_budget": "90%", "paging": False, "time_limit_s": 5}
    for name in ("poet_paper", "checkmate", "poet_remat_only"):
        with pytest.warns(poet.SolverWarning, match="solver='gurobi'"):
            poet.solve(method=name, solver="gurobi", **words)  # type: ignore[arg-type]


def test_the_table_says_what_the_code_declares() -> None:
    table = poet.methods()
    assert next(iter(table)) == "poet"
    assert table["rotor"].source == "Beaumont et al. 2019"
    assert not table["rotor"].general_graphs
    assert table["dtr"].online
    text = str(table).splitlines()
    assert len(text) == 1 + len(table)
    assert all(name in line for name, line in zip(table, text[1:], strict=True))
    columns = {line.count("|") for line in table.markdown().splitlines()}
    assert len(columns) == 1


def test_the_manual_has_the_table_of_the_code() -> None:
    manual = (REPOSITORY / "docs" / "methods.md").read_text(encoding="utf-8")
    begin, end = "<!-- methods:begin -->\n", "\n<!-- methods:end -->"
    assert manual.split(begin)[1].split(end)[0] == poet.methods().markdown()


@pytest.mark.parametrize("method", ["poet", *QUICK, *DENSE])
def test_solve_plans_with_the_method_that_was_named(method: str, page_dir: Path) -> None:
    graph = chain_graph(6)
    options = {"page_dir": page_dir} if method in PAGING else {"paging": False}
    schedule = poet.solve(
        graph=graph, ram_budget=chain_plain_peak(6), method=method, time_limit_s=20, **options
    )
    assert schedule.method == method
    assert schedule.has_plan, schedule.message
    assert schedule.peak_bytes == poet.simulate(graph, schedule).peak_bytes
    tight = poet.solve(graph=graph, ram_budget=1, method=method, time_limit_s=20, **options)
    assert tight.method == method
    assert tight.status == "infeasible"
    assert tight.message


def test_what_makes_no_sense_is_said() -> None:
    graph = chain_graph(3)
    with pytest.raises(poet.ArgumentError, match=r"'rotor'.*got 'rotar'"):
        poet.solve(graph=graph, method="rotar")
    with pytest.raises(poet.ArgumentError, match="has no store"):
        poet.solve(graph=graph, method="page_all", paging=False)
    with pytest.raises(poet.ArgumentError, match="recompute is off"):
        poet.solve(graph=graph, method="rotor", recompute=False, paging=False)
    with pytest.raises(poet.ArgumentError, match="'dtr'"):
        poet.wrap(lambda: None, ram_budget="1GiB", method="dtr", recompute=False)
    with pytest.raises(poet.ArgumentError, match="got 'best'"):
        poet.wrap(lambda: None, ram_budget="1GiB", method="best")


@functools.cache
def _traced(kind: str) -> tuple[poet.Graph, int]:
    """The step's graph, and the bytes that nothing can take away, by the planner's floor."""
    case = build(kind)
    graph = poet.trace(case.step, *case.batches(0))
    least = poet.solve(graph=graph, ram_budget=1, time_limit_s=5, paging=False).least_ram_budget
    assert least is not None
    return graph, least


@pytest.fixture(scope="module")
def page_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: its speed is measured once."""
    return tmp_path_factory.mktemp("pages")


def _budget(kind: str, method: str, page_dir: Path) -> int:
    """Half of the way down to the least that poet needs, or what the method needs if more."""
    graph, least = _traced(kind)
    half = (graph.plain_peak_bytes() + least) // 2
    options = {"page_dir": page_dir} if method in PAGING else {"paging": False}
    schedule = poet.solve(graph=graph, ram_budget=half, method=method, **options)
    if schedule.has_plan:
        return half - graph.base_bytes
    assert schedule.least_ram_budget is not None
    assert schedule.least_ram_budget > half
    return schedule.least_ram_budget - graph.base_bytes


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", QUICK)
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_trains_to_the_same_bits(kind: str, method: str, page_dir: Path) -> None:
    results, state = plain(kind, CALLS)
    budget = _budget(kind, method, page_dir)
    gc.collect()
    case = build(kind)
    graph = poet.trace(case.step, *case.batches(0))  # for what this process holds beside the step
    base = graph.base_bytes
    del case, graph
    gc.collect()
    case = build(kind)
    with poet.wrap(
        case.step,
        ram_budget=budget + base + 64 * KIB,
        method=method,
        page_dir=page_dir if method in PAGING else None,
        background=False,
        online=False,  # with what a policy does to the recorded step; test_live_methods.py: live
    ) as step:
        under_plan = list(run(case, step, CALLS))
        schedule = step.schedule
        stats = step.stats
        assert schedule is not None
    assert schedule.method == method
    assert stats.plans == 1
    assert stats.followed_steps >= 2
    assert stats.departures == 0, stats.last_departure
    assert differences(state, case.state()) == []
    assert [str(r) for r in under_plan] == [str(r) for r in results]


def _small_training() -> tuple[Callable[..., torch.Tensor], Callable[[], list[torch.Tensor]]]:
    """A step of three layers, and what it leaves behind."""
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
    net = torch.nn.Sequential(*layers, torch.nn.Dropout(0.2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def left() -> list[torch.Tensor]:
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        return [*net.parameters(), *gradients, torch.get_rng_state()]

    return train_step, left


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class _CountsForwards(TorchDispatchMode):
    """How often linear layers run."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.forwards += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))


# What both do is Chen's: of each segment but the last, the layers whose outputs backward reads run
# once more. Nothing but the next layer reads a linear layer's output, so for both that is all but
# a segment's own end; and with a square number of links both cut in the same places. Memory is not
# the same: PyTorch frees what it holds when Python lets go of it, poet after its last use.
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("root", [2, 3, 4])
def test_chen_sqrt_repeats_what_checkpoint_sequential_does(root: int) -> None:
    links = root * root

    def training(segments: int | None) -> tuple[Callable[..., torch.Tensor], torch.nn.Sequential]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(links - 1)], _Sum())

        def train_step(x: torch.Tensor) -> torch.Tensor:
            for parameter in net.parameters():
                parameter.grad = None
            if segments is None:
                loss = net(x)
            else:
                loss = checkpoint_sequential(net, segments, x, use_reentrant=False)
            loss.backward()
            return loss.detach()

        return train_step, net

    def gradients(net: torch.nn.Sequential) -> list[torch.Tensor]:
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    batch = torch.randn(512, 32)
    theirs, their_net = training(root)
    with _CountsForwards() as counts:
        loss = theirs(batch)
    repeated = counts.forwards - (links - 1)
    assert repeated == (root - 1) * (root - 1)

    ours, our_net = training(None)
    graph = poet.trace(ours, batch)
    budget = graph.plain_peak_bytes() + 64 * KIB
    options = {"method": "chen_sqrt", "background": False, "cache_dir": None}
    with poet.wrap(ours, ram_budget=budget, **options) as step:  # type: ignore[arg-type]
        found = [step(batch) for _ in range(CALLS)]
        stats, schedule = step.stats, step.schedule
    assert schedule is not None
    again = [graph.ops[op].name for action in schedule.actions for op in action.ops]
    assert again == ["aten::addmm"] * repeated
    assert stats.followed_steps >= 2
    assert stats.replayed_ops == repeated * stats.followed_steps
    assert all(torch.equal(x, loss) for x in found)
    assert all(
        torch.equal(a, b) for a, b in zip(gradients(our_net), gradients(their_net), strict=True)
    )


def _segments_of_algorithm_3(sizes: list[int], most: int) -> list[list[int]]:
    """Algorithm 3 of Chen et al. (arXiv 1604.06174): a segment ends above `most` bytes."""
    segments: list[list[int]] = [[]]
    temp = 0
    for layer, size in enumerate(sizes):
        temp += size
        segments[-1].append(layer)
        if temp > most and layer + 1 < len(sizes):
            segments.append([])
            temp = 0
    return segments


def test_chen_greedy_cuts_where_the_papers_algorithm_3_does() -> None:
    """Its search over the bytes of a segment knows no other segments than those of the paper."""
    torch.manual_seed(0)
    widths = [32, 96, 16, 64, 128, 24, 48, 80, 40, 112, 56, 32]
    pairs = list(itertools.pairwise(widths))
    net = torch.nn.Sequential(*[torch.nn.Linear(a, b) for a, b in pairs], _Sum())
    rows = 512

    def train_step(x: torch.Tensor) -> None:
        for parameter in net.parameters():
            parameter.grad = None
        net(x).backward()

    graph = poet.trace(train_step, torch.randn(rows, widths[0]))
    sizes = [4 * rows * b for _, b in pairs] + [4]  # the sum ends the chain
    papers = set()
    for most in range(0, sum(sizes) + 1, 64):
        # Of all but the last what lies before a segment's end runs once more.
        segments = _segments_of_algorithm_3(sizes, most)[:-1]
        papers.add(tuple(sorted(widths[layer + 1] for each in segments for layer in each[:-1])))
    assert len(papers) > 5, "the sizes give too few segments to tell them apart"

    def again(budget: int) -> tuple[int, ...]:
        plan = poet.solve(model=graph, ram_budget=budget, method="chen_greedy", cache_dir=None)
        assert plan.has_plan
        ops = [graph.ops[op] for action in plan.actions for op in action.ops]
        assert {op.name for op in ops} <= {"aten::addmm"}
        return tuple(sorted(graph.values[op.outputs[0]].shape[1] for op in ops))

    refused = poet.solve(model=graph, ram_budget=1, method="chen_greedy", cache_dir=None)
    assert refused.least_ram_budget is not None
    plain = graph.plain_peak_bytes()
    steps = 6
    plans = [
        again(refused.least_ram_budget + (plain - refused.least_ram_budget) * i // steps)
        for i in range(steps + 1)
    ]
    assert set(plans) <= papers
    assert len(set(plans)) > 2
    assert plans[-1] == ()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", DENSE)
def test_every_dense_program_trains_to_the_same_bits(method: str, page_dir: Path) -> None:
    batches = [torch.randn(512, 32) for _ in range(CALLS)]
    plain_step, plain_left = _small_training()
    torch.manual_seed(1)
    wanted = [plain_step(batch).item() for batch in batches]
    wanted_state = [t.clone() for t in plain_left()]
    graph = poet.trace(_small_training()[0], batches[0])
    budget = graph.base_bytes + (graph.plain_peak_bytes() - graph.base_bytes) * 3 // 4
    del plain_step, plain_left
    gc.collect()
    train_step, left = _small_training()
    torch.manual_seed(1)
    with poet.wrap(
        train_step,
        ram_budget=budget,
        method=method,
        paging=method in PAGING,
        page_dir=page_dir if method in PAGING else None,
        background=False,
        time_limit_s=120,  # a busy machine needs more than the usual few
        cache_dir=None,
    ) as step:
        found = [step(batch).item() for batch in batches]
        schedule, stats = step.schedule, step.stats
    assert schedule is not None
    assert schedule.method == method
    assert any(action.kind != poet.ActionKind.FREE for action in schedule.actions), "it has to act"
    assert stats.followed_steps >= 2
    assert stats.departures == 0, stats.last_departure
    assert found == wanted
    assert all(torch.equal(a, b) for a, b in zip(left(), wanted_state, strict=True))


@pytest.mark.parametrize("method", ["checkmate", "poet_paper", "moccasin"])
def test_what_makes_no_memory_small_refuses_to_at_once(method: str) -> None:
    with pytest.raises(poet.ArgumentError, match=f'"energy" or "time" .* "{method}"'):
        poet.wrap(lambda: None, ram_budget="1GiB", method=method, minimize="memory")


def test_an_unknown_method_is_told_with_those_that_there_are() -> None:
    assert "rotar" not in poet.methods()
    with pytest.raises(KeyError, match=r"expected one of 'poet'.*Did you mean 'rotor'"):
        poet.methods()["rotar"]


def test_without_a_plan_a_named_method_does_not_train() -> None:
    case = build("residual_net")
    options = {"method": "chen_sqrt", "background": False, "strict": False}
    step = poet.wrap(case.step, ram_budget=100_000, **options)
    with pytest.raises(poet.BudgetError, match=r"least budget is [0-9]+ bytes") as caught:
        list(run(case, step, CALLS))
    assert "infeasible" in str(caught.value)
    assert "'chen_sqrt'" in str(caught.value)
    assert step.schedule is not None
    assert step.schedule.method == "chen_sqrt"
    before = case.state()
    with pytest.raises(poet.BudgetError):
        step(*case.batches(0))
    assert differences(before, case.state()) == []


# Where a program is not even built the status is "time_limit" on every machine. 400 links are 1.7
# million columns: more than checkmate relaxes, and more than any machine builds in a millisecond.
@pytest.mark.parametrize(
    ("method", "seconds", "why"),
    [
        ("poet_paper", 0.001, "building it takes longer than the search may"),
        ("checkmate", 20, "not even its relaxation is built"),
    ],
)
def test_a_dense_program_out_of_time_does_not_train(method: str, seconds: float, why: str) -> None:
    weight = torch.randn(16, 16, requires_grad=True)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        x = x @ weight
        for _ in range(400):
            x = torch.tanh(x)
        loss = x.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            weight.sub_(weight.grad)
        return loss.detach()

    batch = torch.randn(16, 16)
    step = poet.wrap(
        train_step,
        ram_budget="60%",
        method=method,
        paging=False,
        background=False,
        time_limit_s=seconds,
        cache_dir=None,
    )
    expected = rf"method='{method}': no plan .* status time_limit: .*{why}"

    def train() -> None:
        for _ in range(CALLS):
            step(batch)

    with pytest.raises(poet.BudgetError, match=expected):
        train()
    assert step.schedule is not None
    assert step.schedule.method == method
    assert step.schedule.status == "time_limit"
    assert step.schedule.least_ram_budget is None
    before = weight.detach().clone()
    with pytest.raises(poet.BudgetError, match=expected):
        step(batch)
    assert torch.equal(weight, before), "the call that is refused does nothing"
    assert step.stats.plans == step.stats.followed_steps == 0


def test_in_the_background_too() -> None:
    case = build("residual_net")
    step = poet.wrap(case.step, ram_budget=100_000, method="checkpoint_all", strict=False)

    def train() -> None:
        for _ in range(CALLS):
            step(*case.batches(0))
            step.wait_for_plan()

    with pytest.raises(poet.BudgetError, match="plain training needs"):
        train()


def test_a_plan_of_one_method_is_not_kept_for_another(tmp_path: Path) -> None:
    methods = ("chen_sqrt", "rotor", "chen_sqrt")
    from_cache = []
    for method in methods:
        case = build("residual_net")
        with poet.wrap(
            case.step, ram_budget="99%", method=method, background=False, cache_dir=tmp_path
        ) as step:
            list(run(case, step, CALLS))
            assert step.schedule is not None
            assert step.schedule.method == method
            from_cache.append(step.stats.plans_from_cache)
    assert from_cache == [0, 0, 1]
