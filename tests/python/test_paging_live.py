"""Live steps whose plans page: the same bits, whatever the program touches and the store does."""

from __future__ import annotations

import copy
import gc
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_process import in_a_process_of_its_own
from random_plans import STORE_DEVICE, random_plan
from resident import has_memory, resident_bytes
from torch import nn
from zoo import KINDS, build, differences, plain

import poet
from poet import _C
from poet._live import close_session, run_step

pytestmark = pytest.mark.usefixtures("one_thread_and_tapped")


class _Trained:
    """A kind of step, trained under random plans that page."""

    def __init__(
        self, kind: str, folder: Path, *, seed: int, eagerness: float, paging: float, away: bool
    ) -> None:
        self.case = build(kind)
        self.session = _C.Session(verify=True)
        self.session.set_store(str(folder))
        self.results: list[Any] = []
        self._plan = {"seed": seed, "eagerness": eagerness, "paging": paging, "away_between": away}

    def train(self, calls: int) -> _Trained:
        for i in range(calls):
            result, report = run_step(self.session, self.case.step, self.case.batches(i), {})
            self.results.append(result)
            if report["newly_stable"]:
                graph = self.session.graph_of(report["variant"])
                plan = random_plan(graph, **self._plan)
                self.session.set_plan(report["variant"], plan, STORE_DEVICE)
        return self


@pytest.mark.parametrize(
    ("eagerness", "paging", "away"), [(0.1, 0.02, False), (0.5, 0.1, True)], ids=["some", "much"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_random_plans_that_page_keep_every_bit(
    kind: str, eagerness: float, paging: float, away: bool, tmp_path: Path
) -> None:
    calls = {"accumulation": 18}.get(kind, 7)
    results, state = plain(kind, calls)
    trained = _Trained(
        kind, tmp_path, seed=len(kind), eagerness=eagerness, paging=paging, away=away
    ).train(calls)
    assert differences(state, trained.case.state()) == []
    assert [str(r) for r in trained.results] == [str(r) for r in results]
    counters = trained.session.counters()
    assert counters["followed_steps"] >= 3
    assert counters["departures"] == 0, counters["last_departure"]
    assert counters["planned_page_outs"] > 0
    assert counters["planned_page_ins"] > 0
    assert counters["failed_page_outs"] == counters["failed_page_ins"] == 0
    if not counters["plan_switches"]:  # a change of plans brings back what the other plan wants
        assert counters["unplanned_recomputes"] == 0, counters["first_unplanned"]
        # The last look at the state is one.
        assert counters["first_unplanned"] == ""


# ------------------------------------------------------------------------------------------------
# a small model whose weights, momentum and activations are all paged


class _Model:
    """Two layers and SGD with momentum; `hook` runs in the middle of the step."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9, foreach=False)
        self.x = torch.randn(32, 64)
        self.hook: Callable[[torch.Tensor], None] = lambda h: None

    def step(self, x: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        hidden = self.net[1](self.net[0](x))
        self.hook(hidden)
        loss = self.net[2](hidden).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def momenta(self) -> list[torch.Tensor]:
        return [state["momentum_buffer"] for state in self.optimizer.state.values()]

    def state(self) -> dict[str, torch.Tensor]:
        found = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        found |= {f"{n}.grad": p.grad.clone() for n, p in self.net.named_parameters()}  # type: ignore[union-attr]
        return found | {f"momentum{i}": m.clone() for i, m in enumerate(self.momenta())}


class _Wrapped(_Model):
    def __init__(self, folder: Path, *, verify: bool = False) -> None:
        super().__init__()
        self.session = _C.Session(verify=verify)
        self.session.set_store(str(folder))

    def run(self, calls: int) -> _Wrapped:
        for _ in range(calls):
            self.session.expect_batch([self.x])
            _, report = run_step(self.session, self.step, (self.x,), {})
            if report["newly_stable"]:
                graph = self.session.graph_of(report["variant"])
                plan = random_plan(graph, 3, 0.6, paging=0.3, away_between=True)
                self.session.set_plan(report["variant"], plan, STORE_DEVICE)
        return self

    def away(self) -> list[torch.Tensor]:
        everything = [*self.net.parameters(), *self.momenta()]
        return [t for t in everything if not has_memory(t)]


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def _plain_state(calls: int, hook: Callable[[torch.Tensor], None] | None = None) -> Any:
    model = _Model()
    if hook is not None:
        model.hook = hook
    for _ in range(calls):
        model.step(model.x)
    return model.state()


def test_an_operator_between_steps_that_needs_a_lost_value_raises_a_store_error(
    tmp_path: Path,
) -> None:
    model = _Wrapped(tmp_path).run(6)
    away = model.away()
    assert away
    descriptors = [f for f in Path("/proc/self/fd").iterdir() if f.is_symlink()]
    page_files = [f for f in descriptors if str(tmp_path) in os.readlink(f)]
    assert page_files
    for file in page_files:
        os.truncate(file, 0)
    with pytest.raises(poet.StoreError, match="cannot read"):
        max(away, key=torch.Tensor.numel).sum()


def test_what_is_away_between_steps_has_no_memory_and_comes_back(tmp_path: Path) -> None:
    model = _Wrapped(tmp_path).run(6)
    assert len(model.away()) >= 3
    assert model.session.counters()["moved_between_steps"] >= 3
    assert _same(model.state(), _plain_state(6))
    assert model.away() == []
    assert _same(model.run(2).state(), _plain_state(8))


@pytest.mark.parametrize(
    "access",
    [
        lambda m: torch.save(m.optimizer.state_dict(), io.BytesIO()),
        lambda m: torch.save(m.net.state_dict(), io.BytesIO()),
        lambda m: copy.deepcopy(m.optimizer.state_dict()),
        lambda m: copy.deepcopy(m.net),
        lambda m: m.net(m.x),
        lambda m: repr([*m.net.parameters(), *m.momenta()]),
        lambda m: [t.detach().numpy().sum() for t in (*m.net.parameters(), *m.momenta())],
        lambda m: [t.tolist() for t in m.momenta()],
        lambda m: m.optimizer.load_state_dict(m.optimizer.state_dict()),
    ],
    ids=["save-state", "save-net", "copy-state", "copy-net", "op", "repr", "numpy", "list", "load"],
)
def test_between_steps_every_access_works(
    access: Callable[[_Wrapped], Any], tmp_path: Path
) -> None:
    model = _Wrapped(tmp_path).run(5)
    assert model.away()
    expected = _Model()
    for _ in range(5):
        expected.step(expected.x)
    before = _flat(access(expected))  # type: ignore[arg-type]
    assert _flat(access(model)) == before
    for _ in range(3):
        expected.step(expected.x)
    assert _same(model.run(3).state(), expected.state())
    # What NumPy shares makes it another step: the first call after that leaves its plan.
    shared = any(not t.untyped_storage().resizable() for t in model.momenta())
    assert (model.session.counters()["departures"] > 0) == shared


def _flat(result: object) -> str:
    if isinstance(result, nn.Module):
        result = result.state_dict()
    return str(result)


@pytest.mark.parametrize("calls", [1, 4], ids=["before the plan", "under the plan"])
def test_memory_that_numpy_shares_stays_where_it_is(tmp_path: Path, calls: int) -> None:
    model = _Wrapped(tmp_path).run(calls)
    shared = [p.detach().numpy() for p in model.net.parameters()]
    model.run(7 - calls)
    for array, parameter in zip(shared, model.net.parameters(), strict=True):
        assert has_memory(parameter)
        assert (array == parameter.detach().numpy()).all()
    assert _same(model.state(), _plain_state(7))


def test_memory_that_numpy_shared_before_the_wrap_stays_where_it_is(tmp_path: Path) -> None:
    class SharedEarly(_Wrapped):
        def __init__(self) -> None:
            _Model.__init__(self)
            self.arrays = [p.detach().numpy() for p in self.net.parameters()]
            self.session = _C.Session(verify=False)
            self.session.set_store(str(tmp_path))

    model = SharedEarly().run(7)
    assert model.session.counters()["planned_page_outs"] > 0
    for array, parameter in zip(model.arrays, model.net.parameters(), strict=True):
        assert has_memory(parameter)
        assert array.ctypes.data == parameter.data_ptr()
        assert (array == parameter.detach().numpy()).all()
    assert _same(model.state(), _plain_state(7))


def test_a_raw_read_in_the_step_brings_paged_values_back(tmp_path: Path) -> None:
    seen: list[float] = []

    def look(h: torch.Tensor) -> None:
        seen.append(float(h.detach().numpy().sum()))

    expected = _plain_state(7, look)
    plainly, seen = seen, []
    model = _Wrapped(tmp_path)
    model.hook = look
    assert _same(model.run(7).state(), expected)
    assert seen == plainly


def test_a_step_that_departs_finds_everything(tmp_path: Path) -> None:
    model = _Wrapped(tmp_path).run(5)
    plainly = _Model()
    for _ in range(5):
        plainly.step(plainly.x)

    def extra(_: torch.Tensor, of: _Model) -> None:
        with torch.no_grad():
            for t in (*of.net.parameters(), *of.momenta()):
                t.mul_(1.25)

    model.hook = lambda h: extra(h, model)
    plainly.hook = lambda h: extra(h, plainly)
    for _ in range(4):  # departs, is traced, stable and planned
        model.run(1)
        plainly.step(plainly.x)
        assert _same(model.state(), plainly.state())
    assert model.session.counters()["departures"] >= 1
    assert _same(model.run(3).state(), _advanced(plainly, 3))


def _advanced(model: _Model, calls: int) -> dict[str, torch.Tensor]:
    for _ in range(calls):
        model.step(model.x)
    return model.state()


def test_an_exception_in_the_step_leaves_everything_in_place(tmp_path: Path) -> None:
    model = _Wrapped(tmp_path).run(5)
    before = {n: p.detach().clone() for n, p in model.net.named_parameters()}

    def fail(_: torch.Tensor) -> None:
        raise KeyError("the user's own")

    model.hook = fail
    with pytest.raises(KeyError, match="the user's own"):
        model.run(1)
    assert model.away() == []
    assert all(torch.equal(before[n], p) for n, p in model.net.named_parameters())
    model.hook = lambda h: None
    assert _same(
        {k: v for k, v in model.run(2).state().items() if "grad" not in k},
        {k: v for k, v in _plain_state(7).items() if "grad" not in k},
    )


def test_tensors_that_were_replaced_between_steps_are_noticed(tmp_path: Path) -> None:
    model, plainly = _Wrapped(tmp_path).run(5), _Model()
    for _ in range(5):
        plainly.step(plainly.x)
    for one in (model, plainly):
        for state in one.optimizer.state.values():
            state["momentum_buffer"] = state["momentum_buffer"] * 2
        one.net[0].weight.data = one.net[0].weight.data.flip(0).contiguous()
    for _ in range(2):
        assert _same(model.run(1).state(), _advanced(plainly, 1))


def test_closing_and_dropping_a_session_bring_everything_back(tmp_path: Path) -> None:
    gc.collect()  # sessions of other tests
    own = torch.Tensor.numpy, torch.Tensor._typed_storage
    model = _Wrapped(tmp_path).run(5)
    assert model.away()
    assert own != (torch.Tensor.numpy, torch.Tensor._typed_storage)
    close_session(model.session)
    assert model.away() == []
    assert own == (torch.Tensor.numpy, torch.Tensor._typed_storage)

    other = _Wrapped(tmp_path).run(5)
    assert other.away()
    del other.session
    assert other.away() == []
    assert _same(other.state(), _plain_state(5))


def test_two_sessions_may_have_values_away_at_once(tmp_path: Path) -> None:
    a, b = _Wrapped(tmp_path).run(5), _Wrapped(tmp_path).run(5)
    assert a.away() and b.away()
    # Each reads the other's weights within its step, and so departs.
    for one, other in ((a, b), (b, a)):
        one.hook = lambda h, other=other: [p.sum() for p in other.net.parameters()]
        one.run(1)
        one.hook = lambda h: None
    assert _same(a.run(2).state(), _plain_state(8))
    assert _same(b.run(2).state(), _plain_state(8))


@pytest.mark.parametrize("policed", [False, True], ids=["uncapped", "policed"])
@pytest.mark.parametrize("expected", [False, True], ids=["departs", "expected"])
def test_a_variant_without_a_plan_brings_back_only_what_it_touches(
    expected: bool, policed: bool, tmp_path: Path
) -> None:
    """State of the optimizer stays in the store while a stream of operators without it runs."""
    model, plainly = _Wrapped(tmp_path).run(6), _Model()
    for _ in range(6):
        plainly.step(plainly.x)
    away = [m for m in model.momenta() if not has_memory(m)]
    assert away
    if policed:
        model.session.set_budget(1, True, True, STORE_DEVICE, "never")

    def evaluate(one: _Model, x: torch.Tensor) -> float:
        with torch.no_grad():
            return one.net(x.relu()).sum().item()

    modes = []
    for call in range(3):
        x = torch.randn(16 if expected else 16 + call, 64)
        model.session.expect_batch([x])
        result, report = run_step(model.session, lambda x=x: evaluate(model, x), (), {})
        assert result == evaluate(plainly, x)
        modes.append(report["mode"])
        assert not any(has_memory(m) for m in away)
    assert modes == ["departed", *(["traced"] * 2 if expected else ["departed"] * 2)]
    assert _same(model.run(2).state(), _advanced(plainly, 2))


def _check_another_steps_state(tmp_path: Path) -> None:
    """Two steps in turn, and one shows what the other has away.

    There is room for little more than one operator: while replays bring one of its inputs back, the
    others must leave again.
    """
    torch.set_num_threads(1)
    away = _Wrapped(tmp_path).run(5)
    other = _Model()
    session = _C.Session(verify=False)
    session.set_store(str(tmp_path))
    x = torch.randn(64, 64)
    budget = resident_bytes() + 2 * x.nbytes  # brings everything back
    away.run(1)
    budget -= sum(t.nbytes for t in away.away())
    assert any(not has_memory(m) for m in away.momenta())
    session.set_budget(budget, True, True, STORE_DEVICE, "never")

    def step(x: torch.Tensor) -> float:
        h = x
        for _ in range(20):
            h = torch.tanh(h @ other.net[0].weight)
        for m in away.momenta():  # which comes back here
            h = h + m.sum()
        loss = h.square().mean()
        loss.backward()
        return loss.item()

    got, report = run_step(session, step, (x,), {})
    counters = session.counters()
    assert counters["online_evictions"] > 0
    assert report["over_bytes"] == 0, report["over_text"]
    other.net[0].weight.grad = None
    assert got == step(x)


def test_another_wrapped_steps_state_comes_back_inside_the_budget(tmp_path: Path) -> None:
    in_a_process_of_its_own(_check_another_steps_state, tmp_path)  # the budget is to the byte


def test_the_folder_may_go_while_training(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    model = _Wrapped(folder).run(5)
    shutil.rmtree(folder)
    assert _same(model.run(3).state(), _plain_state(8))
    assert model.session.counters()["failed_page_outs"] == 0


def _damage(folder: Path) -> None:
    """Writes over every byte of the page file, parity too."""
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and str(link.readlink()).startswith(str(folder)):
            with link.open("r+b", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                os.pwrite(file.fileno(), b"\xff" * size, 0)


def test_values_that_are_lost_in_the_update_are_told_of(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    events: list[str] = []

    def train_step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        if events == ["fails before the update"]:
            raise poet.StoreError("a store of the user's own")
        if events == ["is damaged"]:
            _damage(tmp_path)
        optimizer.step()

    step = poet.wrap(
        train_step,
        # Beside what others left: parameters, gradients, and one of AdamW's two states.
        ram_budget=resident_bytes([model]) + 3 * sum(p.nbytes for p in model.parameters()),
        recompute=False,
        background=False,
        page_dir=tmp_path,
        cache_dir=None,
        time_limit_s=10,
    )
    x = torch.ones(16, 64)
    for _ in range(5):
        step(x)
    assert step.stats.planned_page_ins > 0
    events.append("fails before the update")
    with pytest.raises(poet.StoreError, match=r"own$"):
        step(x)
    events[:] = ["is damaged"]
    with pytest.raises(poet.StoreError, match=r"cannot read .* The optimizer's step had begun"):
        step(x)


@torch.no_grad()
def _overwrite(model: _Model, how: str, saved: tuple[Any, Any, torch.Tensor]) -> None:
    if how == "load_state_dict":
        model.net.load_state_dict(saved[0])
        model.optimizer.load_state_dict(copy.deepcopy(saved[1]))
        model.x.copy_(saved[2])
        return
    for t in (*model.net.parameters(), *model.momenta(), model.x):
        if how == "copy_":
            t.copy_(torch.linspace(-1, 1, t.shape[-1]))
        elif how == "fill_":
            t.fill_(0.125)
        else:
            t.zero_()


@pytest.mark.parametrize("where", ["between the steps", "in the step"])
@pytest.mark.parametrize("how", ["load_state_dict", "copy_", "fill_", "zero_"])
def test_what_was_lost_can_be_overwritten_and_training_goes_on(
    how: str, where: str, tmp_path: Path
) -> None:
    model, plainly = _Wrapped(tmp_path).run(6), _Model()
    for _ in range(6):
        plainly.step(plainly.x)
    _damage(tmp_path)
    if where == "in the step":
        with pytest.raises(poet.StoreError):
            model.run(1)
    lost = model.away() + [t for t in [model.x] if not has_memory(t)]
    assert any(t.requires_grad for t in lost) and any(not t.requires_grad for t in lost)
    with torch.no_grad():
        for t in lost:
            for _ in range(2):
                with pytest.raises(poet.StoreError, match="cannot read"):
                    t.sum()
                with pytest.raises(poet.StoreError, match="cannot read"):
                    t.view(-1)[0].zero_()
                with pytest.raises((poet.StoreError, RuntimeError)):
                    t.copy_(torch.ones(3, 5, 7))
                with pytest.raises(poet.StoreError, match="cannot read"):
                    torch.ones(t.shape).copy_(t)
                for other in lost:  # what is not there overwrites nothing
                    if other is not t and other.shape == t.shape:
                        with pytest.raises(poet.StoreError, match="cannot read"):
                            t.copy_(other)
    saved = copy.deepcopy((plainly.net.state_dict(), plainly.optimizer.state_dict(), plainly.x))
    for one in (model, plainly):
        _overwrite(one, how, saved)
    for _ in range(3):
        assert _same(model.run(1).state(), _advanced(plainly, 1))
    assert model.session.counters()["failed_page_ins"] > 0


@pytest.mark.parametrize("through_a_file", [False, True], ids=["copied", "saved"])
def test_loaded_state_of_the_optimizer_is_no_fault_to_the_debug_mode(
    through_a_file: bool, tmp_path: Path
) -> None:
    model, plainly = _Wrapped(tmp_path / "a", verify=True), _Model()
    (tmp_path / "a").mkdir()
    _advanced(plainly, 4)
    model.run(4)
    for _ in range(4):
        _advanced(plainly, 2)
        model.run(2)
        assert model.away()
        file = io.BytesIO()
        torch.save(plainly.optimizer.state_dict(), file)
        file.seek(0)
        state = torch.load(file) if through_a_file else model.optimizer.state_dict()
        model.optimizer.load_state_dict(state if through_a_file else copy.deepcopy(state))
        del state
    assert _same(model.run(2).state(), _advanced(plainly, 2))
    assert model.session.counters()["departures"] == 0


def test_no_file_is_left_behind(tmp_path: Path) -> None:
    _Wrapped(tmp_path).run(6)
    assert list(tmp_path.iterdir()) == []
