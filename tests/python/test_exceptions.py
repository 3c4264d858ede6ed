"""An error at every operator of a step in turn: nothing is lost, and the next call works."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from native_code import native
from random_plans import STORE_DEVICE, random_plan
from store_faults import HARMLESS, LASTING, Fault, injected, struck
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import Case, build, differences

import poet
from poet import _C
from poet._live import run_step
from poet._store import page_folder

pytestmark = pytest.mark.usefixtures("old_objects_aside", "one_thread_and_tapped")

_ERRORS: tuple[type[BaseException], ...] = (
    RuntimeError,
    KeyboardInterrupt,
    torch.OutOfMemoryError,
)


class _Mode(TorchDispatchMode):
    """Counts the operators that begin, and raises in place of one; -1: of none.

    Autograd and the step see the error like the operator's own. Under a dispatch mode a step is
    another stream of operators: so all calls are made under one.
    """

    def __init__(self, at: int = -1, error: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self.begun = 0
        self._at, self._error = at, error
        self.failed_at = -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "profiler":  # what closes a scope comes after an error, too
            return func(*args, **(kwargs or {}))
        self.begun += 1
        if self.begun == self._at + 1:
            raise self._error(f"injected in place of {func}")
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.failed_at = self.begun - 1
            raise


class _Run:
    """A case, plain, recorded, or under a random plan, that keeps what its modules make."""

    def __init__(
        self, kind: str, session: _C.Session | None, paging: float = 0, planned: bool = True
    ) -> None:
        self.case: Case = build(kind)
        self.session = session
        self._paging = paging
        self._planned = planned
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

    def call(self, i: int, mode: TorchDispatchMode | None = None) -> Any:
        torch.manual_seed(i)
        with mode or _Mode():
            return self._call(self.case.batches(i))

    def _call(self, args: tuple[Any, ...]) -> Any:
        if self.session is None:
            return self.case.step(*args)
        result, report = run_step(self.session, self.case.step, args, {})
        if report["newly_stable"] and self._planned:
            graph = self.session.graph_of(report["variant"])
            plan = random_plan(graph, 1, 0.3, paging=self._paging, away_between=self._paging > 0)
            self.session.set_plan(report["variant"], plan, STORE_DEVICE)
        return result

    def fail(self, i: int, at: int) -> bool:
        """Whether the step was long enough to fail there; the kinds of errors take turns."""
        error = _ERRORS[at % len(_ERRORS)]
        try:
            self.call(i, _Mode(at, error))
        except error as raised:
            if "injected in place of" not in str(raised):
                raise
            return True
        return False

    def seen(self) -> dict[str, Any]:
        """Everything that the program can reach."""
        kept = {name: t.detach().clone() for name, t in self.kept.items()}
        return self.case.state() | kept


def _pair(kind: str, how: str, paging: float) -> list[_Run]:
    """Plain training, and the same under a plan, by the online policy, or recorded."""
    session = _C.Session(verify=False)  # what the program keeps is no part of the plan
    if paging:
        session.set_store(page_folder(None))
    if how == "online":  # everything goes that may
        session.set_budget(1, True, paging > 0, STORE_DEVICE, "never")
    runs = [_Run(kind, None), _Run(kind, session, paging, planned=how == "plan")]
    for i in range(5):
        assert len({str(run.call(i)) for run in runs}) == 1
    followed = session.counters()["followed_steps"]
    assert followed >= 1 if how == "plan" else followed == 0
    return runs


def _evictions(runs: list[_Run]) -> int:
    session = runs[1].session
    assert session is not None
    counters = session.counters()
    return int(counters["evictions"]) + int(counters["online_evictions"])


def _check(kind: str, paging: float, how: str = "plan", stride: int = 1, begin: int = 0) -> None:
    runs = _pair(kind, how, paging)
    before = _evictions(runs)
    at, turn, failed = begin, 0, True
    while failed:
        for run in runs:
            run.keep_in(turn % 2 == 1)
        outcomes = {run.fail(turn, at) for run in runs}
        assert len(outcomes) == 1
        failed = outcomes.pop()
        assert differences(runs[0].seen(), runs[1].seen()) == [], f"after an error at op {at}"
        assert not _C.is_listening()
        for run in runs:
            run.keep_in(False)
        at += stride
        turn += 1
        if turn % 8 == 0:
            assert len({str(run.call(at)) for run in runs}) == 1
    assert at > 100
    _go_on(runs, at)
    if how != "recorded":
        assert _evictions(runs) - before > turn, "nothing was away in the calls that failed"


def _go_on(runs: list[_Run], i: int) -> None:
    """After the errors, three calls as if there had been none."""
    session = runs[1].session
    assert session is not None
    before = session.counters()
    for _ in range(3):
        assert len({str(run.call(i)) for run in runs}) == 1
    after = session.counters()
    if before["followed_steps"] > 0:
        assert after["followed_steps"] > before["followed_steps"], after["last_departure"]
    assert differences(runs[0].seen(), runs[1].seen()) == []


@pytest.mark.parametrize(
    ("kind", "paging"),
    [
        ("in_place_chains", 0.0),
        ("narrow_gpt2", 0.05),
        ("narrow_residual_net", 0.05),
    ],
)
def test_an_error_at_any_op_loses_nothing(kind: str, paging: float) -> None:
    """Three of them: all run whenever CI does (turns.py)."""
    _check(kind, paging)


def test_an_error_at_any_op_of_two_optimizers_loses_nothing() -> None:
    _check("gan", 0.05)


# With a stride that no number of operators in a layer has as a factor.
_WITHOUT_A_PLAN = [
    ("in_place_chains", "online", 0.0),
    ("narrow_gpt2", "online", 0.1),
    ("narrow_residual_net", "online", 0.0),
    ("in_place_chains", "recorded", 0.0),
]


@pytest.mark.parametrize(("kind", "how", "paging"), _WITHOUT_A_PLAN)
def test_an_error_in_a_call_without_a_plan_loses_nothing(
    kind: str, how: str, paging: float
) -> None:
    _check(kind, paging, how, stride=7)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "how", "paging"), _WITHOUT_A_PLAN)
def test_an_error_at_every_op_of_calls_without_a_plan_loses_nothing(
    kind: str, how: str, paging: float
) -> None:
    _check(kind, paging, how)


# ---- memory that the machine does not have


def _run_short(runs: list[_Run], i: int, nth: int) -> tuple[bool, bool]:
    """Whether the nth allocation was reached and failed, and whether the call ended by it.

    Plain training then fails at the operator at which the other did: in its kernel, or because
    something had to come back for it.
    """
    plain, other = runs
    ops = _Mode()
    got, failed = None, False
    native().fail_allocation(nth)
    try:
        got = other.call(i, ops)
    except torch.OutOfMemoryError:
        failed = True
    finally:
        hit = native().fail_allocation(0)
    if failed:
        # Between two operators it fails before the next one, if there is one.
        between = ops.failed_at < 0
        assert plain.fail(i, ops.begun if between else ops.failed_at) or between
    else:
        assert str(got) == str(plain.call(i))
    return hit, failed


def _check_memory(how: str, paging: float) -> None:
    runs = _pair("narrow_gpt2", how, paging)
    before = _evictions(runs)
    nth, turn, failures, hit = 1, 0, 0, True
    while hit:
        for run in runs:
            run.keep_in(turn % 2 == 1)
        hit, failed = _run_short(runs, turn, nth)
        failures += failed
        assert differences(runs[0].seen(), runs[1].seen()) == [], f"after allocation {nth}"
        assert not _C.is_listening()
        for run in runs:
            run.keep_in(False)
        nth += 47  # a prime: no layer has a multiple of it
        turn += 1
        if turn % 8 == 0:
            assert len({str(run.call(nth)) for run in runs}) == 1
    assert failures > 0.5 * turn  # the rest fail as the step ends, and are tried once more
    _go_on(runs, nth)
    assert _evictions(runs) - before > turn


@pytest.mark.parametrize("paging", [0.0, 0.1], ids=["recompute", "paging"])
@pytest.mark.parametrize("how", ["plan", "online"])
def test_an_allocation_that_fails_loses_nothing(how: str, paging: float) -> None:
    """In an operator's kernel, in the replays before it, or in what comes back at the end.

    Of a step without batch norm, whose kernel writes its statistics before it allocates.
    """
    _check_memory(how, paging)


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
    runs = [_Run("in_place_chains", None), _Run("in_place_chains", session)]
    for i in range(4):
        modes = [_Lists(), _Lists()]
        for run, mode in zip(runs, modes, strict=True):
            run.call(i, mode)
        assert modes[0].seen == modes[1].seen
        assert len(modes[0].seen) > 100
    assert session.counters()["followed_steps"] >= 1
    assert nested.is_nested


_PARTS = 8  # of a full step's operators: each an eighth of an hour or so


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("paging", [0.0, 0.1], ids=["recompute", "paging"])
@pytest.mark.parametrize("kind", ["full_resnet18", "full_gpt2", "full_gan", "bert"])
def test_an_error_at_every_op_of_full_steps_loses_nothing(
    kind: str, paging: float, part: int
) -> None:
    _check(kind, paging, stride=_PARTS, begin=part)


# ---- the store's own faults


def _paged_pair(kind: str) -> list[_Run]:
    return _pair(kind, "plan", 0.1)


def _strike(runs: list[_Run], fault: Fault, nth: int) -> tuple[bool, bool]:
    """Whether the fault struck in a call, and whether the call ended in a StoreError.

    Plain training then fails at the operator at which the paged step did.
    """
    plain, paged = runs
    ops = _Mode()
    with injected(fault, nth):
        try:
            got, failed = str(paged.call(nth, ops)), False
        except poet.StoreError:
            failed = True
        hit = struck() > 0
    if failed and ops.failed_at >= 0:
        plain.fail(nth, ops.failed_at)
    elif failed:
        plain.call(nth)
    else:
        assert got == str(plain.call(nth))
    return hit, failed


def _transfers(runs: list[_Run], i: int) -> int:
    """Page-outs of a call that follows its plan: about as many as its page-ins."""
    session = runs[1].session
    assert session is not None
    before = session.counters()["planned_page_outs"]
    assert len({str(run.call(i)) for run in runs}) == 1
    return int(session.counters()["planned_page_outs"]) - int(before)


def _check_faults(kind: str, faults: Sequence[Fault], stride: int) -> None:
    """A fault at every so many transfers of the step, in turn; a pair anew after one that lasts."""
    runs = _paged_pair(kind)
    hits = failures = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", poet.BudgetWarning)  # of values that stay in memory
        for turn, nth in enumerate(range(1, _transfers(runs, 5), stride)):
            fault = faults[turn % len(faults)]
            hit, failed = _strike(runs, fault, nth)
            hits, failures = hits + hit, failures + failed
            assert differences(runs[0].seen(), runs[1].seen()) == [], (fault, nth)
            for i in range(2):
                assert len({str(run.call(nth + i)) for run in runs}) == 1, (fault, nth)
            if failed or fault in LASTING:  # the store may have been given up
                runs = _paged_pair(kind)
    assert hits > 0.7 * turn > 0
    assert (failures > 0) == (Fault.READ_ERROR in faults)


_MENDED = [fault for fault in HARMLESS if fault not in LASTING]
_FULL = [fault for fault in HARMLESS if fault in LASTING]
_UNREADABLE = [Fault.READ_ERROR, Fault.READ_NOTHING]


@pytest.mark.parametrize("kind", ["gan"])
def test_a_fault_of_the_store_loses_nothing(kind: str) -> None:
    _check_faults(kind, _MENDED, 5)
    _check_faults(kind, _FULL, 40)


def test_after_reads_that_fail_for_good_all_that_is_left_can_be_read() -> None:
    """What the store holds is read once the disk answers again; the step ended where it was."""
    _check_faults("gan", _UNREADABLE, 40)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["narrow_gpt2", "narrow_residual_net", "full_gan"])
def test_faults_of_the_store_at_every_transfer_lose_nothing(kind: str) -> None:
    _check_faults(kind, _MENDED, 1)
    _check_faults(kind, _FULL, 10)
    _check_faults(kind, _UNREADABLE, 10)
