"""What programs do while weights and an optimizer's state lie in the store: evaluation, forks,
loaders inside the step."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_process import in_a_process_of_its_own
from resident import Peaks, has_memory, resident_bytes
from small_steps import square_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import Case, differences

import poet

_WIDTH = 192
_PLANNED = 5  # calls, after which each follows its plan


class _Training:
    """AdamW over weights that take pages; they and the state are more than the budget."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [
            m for _ in range(5) for m in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Dropout(0.1))
        ]
        self.net = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), foreach=False)
        self.data = torch.randn(128, _WIDTH)

    def step(self, x: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def wrapped(self, folder: Path, step: Callable[..., Any] | None = None) -> poet.WrappedStep:
        of_parameters = sum(p.nbytes for p in self.net.parameters())
        return poet.wrap(
            step or self.step,
            ram_budget=resident_bytes() + int(0.9 * of_parameters),
            page_dir=folder,
            background=False,
            cache_dir=None,
            time_limit_s=3,
        )

    def tensors(self) -> list[torch.Tensor]:
        """Weights and the optimizer's state."""
        states = [t for state in self.optimizer.state.values() for t in state.values()]
        return [*self.net.parameters(), *states]

    def away(self) -> tuple[int, ...]:
        """Weights, and tensors of the optimizer's state, that have no memory."""
        states = [t for state in self.optimizer.state.values() for t in state.values()]
        weights = list(self.net.parameters())
        return tuple(sum(not has_memory(t) for t in ts) for ts in (weights, states))

    def state(self) -> dict[str, Any]:
        return Case(self.step, lambda _: (), [self.net], [self.optimizer]).state()


def _call(step: Callable[[torch.Tensor], float], call: int) -> float:
    """Two trainings in turn share the generator: each call begins with a state of its own."""
    torch.manual_seed(call)
    return step(torch.randn(64, _WIDTH))


def _planned(folder: Path) -> tuple[_Training, _Training, poet.WrappedStep]:
    """Plain, and under poet after calls that end with weights and state in the store."""
    plain = _Training()
    for call in range(_PLANNED):
        _call(plain.step, call)
    training = _Training()
    step = training.wrapped(folder)
    for call in range(_PLANNED):
        _call(step, call)
    weights, states = training.away()
    assert step.stats.followed_steps > 0, step.stats.message
    assert weights > 0 and states > 0, step.stats
    return plain, training, step


# ---------------------------------------------------------------- evaluation


def _evaluate(training: _Training, mode: Any, x: torch.Tensor) -> dict[str, Any]:
    """The outputs, and what was made of the optimizer's state."""
    training.net.eval()
    with mode():
        found = {"outputs": training.net(x).clone()}
        for i, state in enumerate(training.optimizer.state.values()):
            found |= {f"{i}.{key}": value.sum() for key, value in state.items()}
    training.net.train()
    return found


def _check_evaluation(folder: Path, mode_name: str, keeps: bool) -> None:
    mode = getattr(torch, mode_name)
    plain, own, step = _planned(folder)
    kept = []
    for call in range(_PLANNED, _PLANNED + 4):
        assert min(own.away()) > 0, step.stats
        torch.manual_seed(call)
        x = torch.randn(64, _WIDTH)
        assert differences(_evaluate(plain, mode, x), _evaluate(own, mode, x)) == []
        assert own.away() == (0, 0)
        if keeps and not kept:
            kept.append(x)
        del x
        assert _call(step, call) == _call(plain.step, call)
    assert differences(plain.state(), own.state()) == []
    assert step.stats.unplanned_page_ins > 0
    assert step.stats.departures == (1 if keeps else 0), step.stats.last_departure
    assert step.stats.followed_steps >= (3 if keeps else 4)


@pytest.mark.parametrize("mode", ["inference_mode", "no_grad"])
def test_an_evaluation_between_two_steps_reads_what_is_away(mode: str, tmp_path: Path) -> None:
    in_a_process_of_its_own(_check_evaluation, tmp_path, mode, False)


def test_what_an_evaluation_leaves_is_more_than_the_plan_has_room_for(tmp_path: Path) -> None:
    """The call leaves its plan at its first operator, with weights away that it shows next."""
    in_a_process_of_its_own(_check_evaluation, tmp_path, "no_grad", True)


# ---------------------------------------------------------------- forks


def _in_a_fork(check: Callable[[], None]) -> int:
    """The child's process id; it says on stderr what went wrong."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        warnings.simplefilter("ignore", poet.StoreWarning)  # it does not write to the page file
        warnings.simplefilter("ignore", poet.BudgetWarning)
        check()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _check_fork(folder: Path, wrapped: bool) -> None:
    plain, own, step = _planned(folder)

    def child() -> None:
        assert min(own.away()) > 0
        assert differences(plain.state(), own.state()) == []
        assert _call(step if wrapped else own.step, 9) == _call(plain.step, 9)
        assert differences(plain.state(), own.state()) == []

    process = _in_a_fork(child)
    assert os.waitpid(process, 0)[1] == 0, "see what the child says"
    for call in range(_PLANNED, _PLANNED + 3):
        assert min(own.away()) > 0
        assert _call(step, call) == _call(plain.step, call)
    assert differences(plain.state(), own.state()) == []
    assert step.stats.departures == 0, step.stats.last_departure


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain step", "wrapped step"])
def test_a_fork_has_what_is_away_and_both_train_on(wrapped: bool, tmp_path: Path) -> None:
    in_a_process_of_its_own(_check_fork, tmp_path, wrapped)


def _check_late_fork(folder: Path) -> None:
    plain, own, step = _planned(folder)
    reads, writes = os.pipe()

    def child() -> None:
        os.close(writes)
        assert min(own.away()) > 0
        assert os.read(reads, 1) == b""  # the parent has trained on
        lost = []
        for mine, theirs in zip(own.tensors(), plain.tensors(), strict=True):
            try:
                assert torch.equal(mine, theirs)
            except poet.StoreError as error:
                lost.append(str(error))
        assert lost, "nothing was written over: the test shows nothing"
        for text in lost:
            assert f"({os.getpid()}) is a fork" in text and "step.close()" in text, text

    process = _in_a_fork(child)
    os.close(reads)
    for call in range(_PLANNED, _PLANNED + 3):
        _call(step, call)
    os.close(writes)
    assert os.waitpid(process, 0)[1] == 0, "see what the child says"
    assert step.stats.followed_steps >= 3


def test_a_fork_that_reads_after_its_parent_went_on_gets_an_error_and_no_other_bits(
    tmp_path: Path,
) -> None:
    """They share the page file, which the parent goes on to write."""
    in_a_process_of_its_own(_check_late_fork, tmp_path)


# ---------------------------------------------------------------- loaders


def _check_loader(folder: Path, workers: int) -> None:
    """They are forked inside the step, where values are away too."""

    def train(under_poet: bool) -> tuple[list[float], dict[str, Any]]:
        training = _Training()
        loader = DataLoader(
            TensorDataset(training.data),
            64,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context="fork",  # a process that was spawned spawns by default
        )

        def train_step() -> float:
            training.optimizer.zero_grad()
            total = 0.0
            for (x,) in loader:
                loss = training.net(x).square().mean()
                loss.backward()
                total += loss.item()
            training.optimizer.step()
            return total

        step = training.wrapped(folder, train_step) if under_poet else train_step
        torch.manual_seed(2)
        losses = [step() for _ in range(7)]
        if isinstance(step, poet.WrappedStep):
            stats = step.stats
            assert min(training.away()) > 0
            assert stats.planned_page_ins + stats.online_page_ins > 0, stats
            # Whose batch comes first, of two, is another stream of operators.
            assert workers > 1 or stats.followed_steps >= 3, stats.last_departure
        return losses, training.state()

    losses, state = train(False)
    got, ours = train(True)
    assert got == losses
    assert differences(state, ours) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loader_with_workers_is_iterated_inside_a_step_that_pages(
    workers: int, tmp_path: Path
) -> None:
    in_a_process_of_its_own(_check_loader, tmp_path, workers)


# ---------------------------------------------------------------- parameters in other memory


def _swapping() -> Case:
    """Few rows, so that the plan has to page weights, which are other storages in each call."""
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())])
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)
    inner = square_step(net, optimizer)
    x = torch.randn(16, _WIDTH)

    def step(x: torch.Tensor) -> float:
        loss: float = inner(x)
        for p in net.parameters():
            p.data = p.data.clone()
        return loss

    return Case(step, lambda _: (x,), [net], [optimizer])


def _check_swapped(folder: Path) -> None:
    calls = 9
    plain = _swapping()
    losses = [plain.step(*plain.batches(i)) for i in range(calls)]
    probe = _swapping()
    probe.step(*probe.batches(0))
    graph = poet.trace(probe.step, *probe.batches(1))
    least = poet.solve(graph=graph, ram_budget=1, paging=True, time_limit_s=5).least_ram_budget
    assert least is not None
    budget = least + (graph.plain_peak_bytes() - least) // 20
    del probe, graph
    got, followed = [], []
    with Peaks() as peaks:
        own = _swapping()
        step = poet.wrap(
            own.step,
            ram_budget=budget,
            page_dir=folder,
            background=False,
            cache_dir=None,
            time_limit_s=5,
            strict=False,
        )
        for i in range(calls):
            batch = own.batches(i)
            before = step.stats
            peaks.mark()
            got.append(step(*batch))
            if step.stats.followed_steps > before.followed_steps:
                followed.append(i)
                assert step.stats.steps_over_budget == before.steps_over_budget
    assert got == losses
    assert differences(plain.state(), own.state()) == []
    assert len(followed) >= 3, step.stats
    assert max(peaks.bytes[i] for i in followed) <= budget, (budget, peaks.bytes, followed)


def test_weights_that_get_other_memory_in_every_step_leave_when_they_are_known(
    tmp_path: Path,
) -> None:
    in_a_process_of_its_own(_check_swapped, tmp_path)
