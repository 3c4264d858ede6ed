"""An error at every operator of a step in turn: nothing is lost, and the next call works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from random_plans import STORE_DEVICE, random_plan
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import Case, build, differences

from poet import _C
from poet._live import run_step
from poet._store import page_folder


class _InjectedError(Exception):
    pass


class _FailsAt(TorchDispatchMode):
    """Raises in place of the operator of that index; autograd and the step see it like its own."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.left = index

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.left == 0:
            raise _InjectedError(str(func))
        self.left -= 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    _C.tap_for_good()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class _Run:
    """A case, plain or under a random plan, that keeps what its modules make."""

    def __init__(self, kind: str, session: _C.Session | None, paging: float) -> None:
        self.case: Case = build(kind)
        self.session = session
        self._paging = paging
        self.kept: dict[str, torch.Tensor] = {}
        self._hooks: list[Any] = []

    def _keep(self) -> None:
        """From now on every module's result stays with the program."""
        for m, module in enumerate(self.case.modules):
            for name, child in module.named_modules():

                def hook(_: Any, __: Any, out: Any, name: str = f"{m}.{name}") -> None:
                    if isinstance(out, torch.Tensor):
                        self.kept[name] = out

                self._hooks.append(child.register_forward_hook(hook))

    def keep_in(self, on: bool) -> None:
        self.kept.clear()
        if on:
            self._keep()
        else:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()

    def call(self, i: int) -> Any:
        torch.manual_seed(i)
        args = self.case.batches(i)
        if self.session is None:
            return self.case.step(*args)
        result, report = run_step(self.session, self.case.step, args, {})
        if report["newly_stable"]:
            graph = self.session.graph_of(report["variant"])
            plan = random_plan(graph, 1, 0.3, paging=self._paging, away_between=self._paging > 0)
            self.session.set_plan(report["variant"], plan, STORE_DEVICE)
        return result

    def fail(self, i: int, at: int) -> bool:
        """Whether the step was long enough to fail there."""
        try:
            with _FailsAt(at):
                self.call(i)
        except _InjectedError:
            return True
        return False

    def seen(self) -> dict[str, Any]:
        """Everything that the program can reach."""
        kept = {name: t.detach().clone() for name, t in self.kept.items()}
        return self.case.state() | kept


def _check(kind: str, paging: float, stride: int) -> None:
    session = _C.Session(verify=False)  # what the program keeps is no part of the plan
    if paging:
        session.set_store(page_folder(None))
    runs = [_Run(kind, None, 0), _Run(kind, session, paging)]
    for i in range(5):
        assert len({str(run.call(i)) for run in runs}) == 1
    assert session.counters()["followed_steps"] >= 1
    at, failed = 0, True
    while failed:
        for run in runs:
            run.keep_in(at % 2 == 1)
        outcomes = {run.fail(at, at) for run in runs}
        assert len(outcomes) == 1
        failed = outcomes.pop()
        assert differences(runs[0].seen(), runs[1].seen()) == [], f"after an error at op {at}"
        assert not _C.is_listening()
        for run in runs:
            run.keep_in(False)
        at += stride
        if at % 8 < stride:
            assert len({str(run.call(at)) for run in runs}) == 1
    assert at > 100
    followed = session.counters()["followed_steps"]
    for _ in range(3):  # the last call was recorded: the dispatch mode makes it another step
        assert len({str(run.call(at)) for run in runs}) == 1
    assert session.counters()["followed_steps"] > followed, session.counters()["last_departure"]
    assert differences(runs[0].seen(), runs[1].seen()) == []


@pytest.mark.parametrize(
    ("kind", "paging", "stride"),
    [("in_place_chains", 0.0, 1), ("gpt2", 0.1, 5), ("residual_net", 0.1, 11)],
)
def test_an_error_at_any_op_loses_nothing(kind: str, paging: float, stride: int) -> None:
    _check(kind, paging, stride)


class _Lists(TorchDispatchMode):
    """Lists the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_ops_of_the_step_alone() -> None:
    """A nested tensor, alive beside the step, answers in Python what its layout is."""
    nested = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=torch.jagged)
    session = _C.Session(verify=False)
    runs = [_Run("in_place_chains", None, 0), _Run("in_place_chains", session, 0)]
    for i in range(4):
        modes = [_Lists(), _Lists()]
        for run, mode in zip(runs, modes, strict=True):
            with mode:
                run.call(i)
        assert modes[0].seen == modes[1].seen
        assert len(modes[0].seen) > 100
    assert session.counters()["followed_steps"] >= 1
    assert nested.is_nested


@pytest.mark.nightly
@pytest.mark.parametrize("paging", [0.0, 0.1], ids=["recompute", "paging"])
@pytest.mark.parametrize("kind", ["residual_net", "gpt2", "gan", "in_place_chains", "bert"])
def test_an_error_at_every_op_of_more_steps_loses_nothing(kind: str, paging: float) -> None:
    _check(kind, paging, stride=1)
