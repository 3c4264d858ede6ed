"""Ways to a tensor's memory that lead past PyTorch's operators, and poet.keep."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_code import native
from own_process import in_a_process_of_its_own
from random_plans import STORE_DEVICE, random_plan
from resident import Peaks, budget_at, has_memory
from torch import nn
from torch.utils.dlpack import from_dlpack, to_dlpack

import poet
from poet import _C
from poet._live import run_step
from poet._store import page_folder


def _saved(t: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return torch.load(file).numpy().tobytes()


def _bytes_at(t: torch.Tensor, address: int) -> bytes:
    return ctypes.string_at(address, t.untyped_storage().nbytes())


DOORS: dict[str, Callable[[torch.Tensor], bytes]] = {
    "numpy": lambda t: t.numpy().tobytes(),
    "asarray": lambda t: np.asarray(t).tobytes(),
    "memoryview": lambda t: bytes(memoryview(t.numpy())),
    "tolist": lambda t: np.array(t.tolist(), np.float32).tobytes(),
    "data_ptr": lambda t: _bytes_at(t, t.data_ptr()),
    "untyped_storage": lambda t: bytes(t.untyped_storage().tolist()),
    "storage_data_ptr": lambda t: _bytes_at(t, t.untyped_storage().data_ptr()),
    "__dlpack__": lambda t: np.from_dlpack(t).tobytes(),
    "from_dlpack": lambda t: torch.from_dlpack(t).clone().numpy().tobytes(),
    "to_dlpack": lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)).numpy().tobytes(),
    "torch.to_dlpack": lambda t: torch.from_dlpack(torch.to_dlpack(t)).numpy().tobytes(),
    "torch.save": _saved,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)).numpy().tobytes(),
    "deepcopy": lambda t: copy.deepcopy(t).numpy().tobytes(),
    "item": lambda t: np.array([[x.item() for x in row] for row in t], np.float32).tobytes(),
    "keep": lambda t: poet.keep(t).numpy().tobytes(),
}


class _Trained:
    """A small step that hands an activation to a door when the plan has it away."""

    def __init__(self, door: Callable[[torch.Tensor], bytes] | None) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(8, 8), nn.Tanh())])
        self.x = torch.randn(16, 8)
        self.door = door
        self.read: list[bytes] = []
        self.found_away = 0

    def step(self) -> torch.Tensor:
        for p in self.net.parameters():
            p.grad = None
        kept = self.net[:2](self.x)
        alias = kept.detach()  # now: later it would be an operator that brings the memory back
        loss = self.net[2:](kept).square().mean()
        loss.backward()
        if self.door is not None:
            self.found_away += not has_memory(alias)
            self.read.append(self.door(alias))
        return loss.detach()


def _eager(graph: poet.Graph, seed: int) -> poet.Schedule:
    return random_plan(graph, seed, 0.9)


@pytest.mark.parametrize("door", DOORS)
def test_a_door_hands_out_the_values(door: str) -> None:
    """The step was recorded without the reader, so that no plan sees it coming."""
    plain = _Trained(DOORS["numpy"])
    expected = plain.step()
    trained = _Trained(None)
    session = _C.Session(verify=False)
    for seed in range(6):
        _, report = run_step(session, trained.step, (), {})
        if report["newly_stable"]:
            graph = session.graph_of(report["variant"])
            session.set_plan(report["variant"], _eager(graph, seed), STORE_DEVICE)
            trained.door = DOORS[door]
    assert trained.read == [plain.read[0]] * len(trained.read)
    assert len(trained.read) == 4
    assert torch.equal(trained.step(), expected)
    assert session.counters()["evictions"] > 0
    assert trained.found_away > 0


def test_what_is_kept_is_never_evicted() -> None:
    trained = _Trained(None)
    session = _C.Session(verify=False)
    addresses = []

    def step() -> None:
        kept = poet.keep(trained.net[:2](trained.x))
        before = kept.data_ptr()
        loss = trained.net[2:](kept).square().mean()
        loss.backward()
        addresses.append(before)
        # As a library would that was given the pointer: past Python's doors too.
        trained.read.append(ctypes.string_at(before, 16 * 8 * 4))

    for _ in range(6):
        _, report = run_step(session, step, (), {})
        if report["newly_stable"]:
            graph = session.graph_of(report["variant"])
            session.set_plan(report["variant"], _eager(graph, 1), STORE_DEVICE)
    assert session.counters()["followed_steps"] >= 3
    assert session.counters()["evictions"] > 0
    assert len(set(trained.read)) == 1


def _pointer(t: torch.Tensor) -> bytes:
    return ctypes.string_at(torch._C.TensorBase.data_ptr(t), 4)  # not through one of the doors


def _extension(t: torch.Tensor) -> bytes:
    return np.float32(native().first_of(t)).tobytes()


class _ReadsRaw:
    """A step that reads an activation before backward, in a way that nobody sees coming."""

    def __init__(self, read: Callable[[torch.Tensor], bytes], *, catches: bool = False) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())])
        self.x = torch.randn(64, 32)
        self.read = read
        self.catches = catches
        self.reads = False
        self.messages: list[str] = []

    def step(self) -> tuple[torch.Tensor, bytes]:
        for p in self.net.parameters():
            p.grad = None
        kept = self.net[:2](self.x)
        alias = kept.detach()
        loss = self.net[2:](kept).square().mean()
        seen = b""
        try:
            if self.reads:
                seen = self.read(alias)
        except RuntimeError as error:
            self.messages.append(str(error))
            if not self.catches:
                raise
        loss.backward()
        return loss.detach(), seen


class _Call:
    """A step that reads once it has a plan, or, without plans, from its second call on."""

    def __init__(self, step: Any, seed: int, paging: float = 0, *, online: bool = False) -> None:
        self.step, self.seed, self.paging, self.online = step, seed, paging, online
        self.session = _C.Session(verify=False)
        if paging:
            self.session.set_store(page_folder(None))
        if online:  # everything goes that may
            self.session.set_budget(1, True, paging > 0, STORE_DEVICE, "never")

    def __call__(self) -> Any:
        result, report = run_step(self.session, self.step.step, (), {})
        if self.online:
            self.step.reads = True
        elif report["newly_stable"]:
            graph = self.session.graph_of(report["variant"])
            plan = random_plan(graph, self.seed, 0.9, paging=self.paging)
            self.session.set_plan(report["variant"], plan, STORE_DEVICE)
            self.step.reads = True
        return result

    def check(self, followed: int) -> None:
        """That values were away, and that this many calls followed the plan, if there are any."""
        counters = self.session.counters()
        assert counters["evictions"] + counters["online_evictions"] > 0
        assert self.online or counters["followed_steps"] >= followed, counters["last_departure"]


_CALLS: dict[str, Callable[[Any, int], _Call]] = {
    "plan": _Call,
    "plan, paging": lambda step, seed: _Call(step, seed, 0.3),
    "online": lambda step, seed: _Call(step, seed, online=True),
    "online, paging": lambda step, seed: _Call(step, seed, 0.3, online=True),
}


# What goes on sharing the memory, and how it is read later.
_HANDLES: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], bytes]]] = {
    "numpy": (lambda t: t.numpy(), lambda a: a.tobytes()),
    "asarray": (np.asarray, lambda a: a.tobytes()),
    "memoryview": (lambda t: memoryview(t.numpy()), bytes),
    "__dlpack__": (np.from_dlpack, lambda a: a.tobytes()),
    "from_dlpack": (torch.from_dlpack, lambda t: t.numpy().tobytes()),
    "to_dlpack": (
        lambda t: to_dlpack(t),
        lambda capsule: torch.from_dlpack(capsule).numpy().tobytes(),
    ),
    "data_ptr": (lambda t: t.data_ptr(), lambda at: ctypes.string_at(at, 64 * 32 * 4)),
    "untyped_storage": (
        lambda t: t.untyped_storage(),
        lambda s: ctypes.string_at(s.data_ptr(), s.nbytes()),
    ),
    "storage": (lambda t: t.storage(), lambda s: ctypes.string_at(s.data_ptr(), s.nbytes())),
    "storage's pointer": (
        lambda t: t.untyped_storage().data_ptr(),
        lambda at: ctypes.string_at(at, 64 * 32 * 4),
    ),
    "share_memory_": (
        lambda t: torch._C.TensorBase.data_ptr(t.share_memory_()),
        lambda at: ctypes.string_at(at, 64 * 32 * 4),
    ),
    "ForkingPickler": (
        lambda t: bytes(ForkingPickler.dumps(t)),
        lambda data: pickle.loads(data).numpy().tobytes(),
    ),
    "keep": (
        lambda t: torch._C.TensorBase.data_ptr(poet.keep(t)),
        lambda at: ctypes.string_at(at, 64 * 32 * 4),
    ),
}


class _HoldsOn:
    """A step that is given a handle to an activation before backward, and reads it after that."""

    def __init__(self, handle: str) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())])
        self.x = torch.randn(64, 32)
        self.take, self.read = _HANDLES[handle]
        self.reads = False

    def step(self) -> tuple[torch.Tensor, bytes]:
        for p in self.net.parameters():
            p.grad = None
        kept = self.net[:2](self.x)
        alias = kept.detach()
        loss = self.net[2:](kept).square().mean()
        handle = self.take(alias) if self.reads else None
        loss.backward()
        return loss.detach(), self.read(handle) if self.reads else b""

    def gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.net.parameters() if p.grad is not None]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("handle", _HANDLES)
@pytest.mark.parametrize("how", _CALLS)
def test_what_a_door_has_handed_out_stays_where_it_is(how: str, handle: str) -> None:
    """No plan sees the reader coming; what it was given holds the values until it lets go."""
    plain = _HoldsOn(handle)
    plain.reads = True
    expected = plain.step()
    step = _HoldsOn(handle)
    call = _CALLS[how](step, 0)
    results = [call() for _ in range(6)]
    assert [read for _, read in results][-3:] == [expected[1]] * 3
    assert all(torch.equal(loss, expected[0]) for loss, _ in results)
    for ours, wanted in zip(step.gradients(), plain.gradients(), strict=True):
        assert torch.equal(ours, wanted)
    call.check(followed=0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("read", [_pointer, _extension])
@pytest.mark.parametrize("how", _CALLS)
def test_an_unannounced_read_names_poet_keep_once(
    how: str, read: Callable[[torch.Tensor], bytes], seed: int
) -> None:
    """Native code that nobody sees coming gets a clear error; what it reads stays from then on."""
    plain = _ReadsRaw(read)
    plain.reads = True
    expected = plain.step()
    step = _ReadsRaw(read)
    call = _CALLS[how](step, seed)
    seen, raised = [], []
    for _ in range(8):
        try:
            seen.append(call())
        except RuntimeError as error:
            raised.append(str(error))
    assert len(raised) == len(step.messages) == 1
    assert "poet.keep(tensor)" in raised[0]
    assert all(torch.equal(loss, expected[0]) for loss, _ in seen)
    assert [bytes_read for _, bytes_read in seen][-4:] == [expected[1]] * 4
    call.check(followed=4)


def test_an_unannounced_read_whose_error_is_caught() -> None:
    step = _ReadsRaw(_pointer, catches=True)
    call = _Call(step, 0)
    losses = [call()[0] for _ in range(6)]
    assert len(step.messages) == 4
    assert all("poet.keep(tensor)" in message for message in step.messages)
    assert all(torch.equal(loss, losses[0]) for loss in losses)


def test_keep_takes_tensors_only() -> None:
    with pytest.raises(poet.ArgumentError, match="got list"):
        poet.keep([1.0])  # type: ignore[arg-type]
    t = torch.ones(3)
    assert poet.keep(t) is t


def test_the_doors_are_pytorchs_own_when_no_step_needs_them() -> None:
    own: dict[str, Any] = dict(vars(torch.Tensor))
    trained = _Trained(None)
    session = _C.Session(verify=False)
    for _ in range(4):
        _, report = run_step(session, trained.step, (), {})
        if report["newly_stable"]:
            graph = session.graph_of(report["variant"])
            session.set_plan(report["variant"], _eager(graph, 3), STORE_DEVICE)
    assert dict(vars(torch.Tensor)) == own
    # A function may have been imported by name, and so stays watched wherever it is.
    assert to_dlpack is torch.to_dlpack is torch.utils.dlpack.to_dlpack is torch._C._to_dlpack
    assert torch.equal(torch.from_dlpack(to_dlpack(torch.arange(3))), torch.arange(3))


@pytest.mark.parametrize("how", ["numpy", "apply_", "map_"])
def test_what_was_made_from_a_batch_before_numpy_writes_it_is_not_made_from_it_again(
    how: str,
) -> None:
    def build() -> Callable[..., torch.Tensor]:
        torch.manual_seed(0)
        layers = [m for _ in range(5) for m in (nn.Linear(16, 16), nn.Tanh())]
        net = nn.Sequential(*layers, nn.Linear(16, 8))
        optimizer = torch.optim.SGD(net.parameters(), 0.05)

        def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            h = net(x.sin())
            if how == "numpy":
                x.numpy()[:] = 7
            elif how == "apply_":
                x.apply_(lambda value: value + 1)
            else:
                x.map_(torch.ones(64, 16), lambda a, b: a - b)
            loss = nn.functional.cross_entropy(h, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train_step

    def losses(step: Callable[..., torch.Tensor]) -> list[float]:
        generator = torch.Generator().manual_seed(1)
        found = []
        for _ in range(8):
            x = torch.randn(64, 16, generator=generator)
            found.append(step(x, torch.randint(0, 8, (64,), generator=generator)).item())
        return found

    batch = torch.randn(64, 16), torch.randint(0, 8, (64,))
    budget = budget_at(0.85, build(), *batch)
    step = poet.wrap(
        build(), ram_budget=budget, background=False, cache_dir=None, paging=False, time_limit_s=5
    )
    assert losses(step) == losses(build())
    assert step.stats.followed_steps >= 4
    assert step.stats.evictions > 0


def _capsule(t: torch.Tensor) -> torch.Tensor:
    shared: torch.Tensor = from_dlpack(to_dlpack(t))
    return shared


_READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda t: t.numpy(),
    "tolist": lambda t: t.tolist(),
    "to_dlpack, imported by name": _capsule,
}


def _check_arrays_of_every_call(door: str, paging: bool) -> None:
    """An activation that NumPy shares, or only reads, at every call: the plan knows of it."""
    torch.set_num_threads(1)
    with Peaks() as peaks:
        torch.manual_seed(0)
        layers = [m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())]
        head, tail = nn.Sequential(*layers[:4]), nn.Sequential(*layers[4:])
        optimizer = torch.optim.SGD([*head.parameters(), *tail.parameters()], 0.01)

        def train_step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            h = head(x)
            seen = _READERS[door](h.detach())
            loss = tail(h).square().mean()
            loss.backward()
            optimizer.step()
            del seen
            return loss.detach()

        budget = budget_at(0.85, train_step, torch.randn(256, 64))
        step = poet.wrap(
            train_step,
            ram_budget=budget,
            paging=paging,
            background=False,
            cache_dir=None,
            time_limit_s=5,
        )
        for _ in range(6):
            step(torch.randn(256, 64))
        x = torch.randn(256, 64)
        schedule = step.schedule
        peaks.mark()
        step(x)
    assert schedule is not None
    assert step.stats.followed_steps >= 3
    assert step.stats.unplanned_recomputes + step.stats.unplanned_page_ins == 0
    assert peaks.bytes[-1] <= schedule.ram_budget
    assert peaks.bytes[-1] == pytest.approx(schedule.peak_bytes, rel=0.005)


@pytest.mark.parametrize("paging", [False, True])
@pytest.mark.parametrize("door", _READERS)
def test_what_is_read_at_every_call_is_planned_for(door: str, paging: bool) -> None:
    in_a_process_of_its_own(_check_arrays_of_every_call, door, paging)


def test_a_capsule_made_before_the_first_call_keeps_its_tensor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())])
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(1024, 64)
    step = poet.wrap(
        train_step, ram_budget="60%", page_dir=tmp_path, background=False, cache_dir=None
    )
    shared = [from_dlpack(to_dlpack(p.detach())) for p in net.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", poet.BudgetWarning)  # weights that stay take their room
        for _ in range(6):
            step(x)
            for seen, p in zip(shared, net.parameters(), strict=True):
                assert torch.equal(seen, p)
    assert step.stats.followed_steps >= 2


# ---- tensors that are swapped


def _train_with_swaps(
    wrap: Callable[[Any, torch.Tensor], Any], calls_an_update: int = 2
) -> tuple[list[float], Any, Any]:
    """Every third call new weights take the place of the old ones, gradients and all."""
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(5) for m in (nn.Linear(64, 64), nn.Tanh())])
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    x = torch.randn(512, 64)
    calls = 0

    def train_step(x: torch.Tensor) -> float:
        nonlocal calls
        loss = net(x).square().mean()
        loss.backward()
        calls += 1
        if calls % calls_an_update == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    step = wrap(train_step, x)
    losses = []
    for call in range(15):
        losses.append(step(x))
        if call % 3 == 2:
            weights = {name: 0.9 * w.clone() for name, w in net.state_dict().items()}
            net.load_state_dict(weights)
    return losses, net.state_dict(), step


def _check_swapped_parameters(paging: bool) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    wanted, wanted_state, _ = _train_with_swaps(lambda step, x: step)

    def wrap(step: Callable[[torch.Tensor], float], x: torch.Tensor) -> poet.WrappedStep:
        probe = _train_with_swaps(lambda step, x: step, calls_an_update=1)[2]
        budget = budget_at(0.7, probe, x)
        return poet.wrap(
            step,
            ram_budget=budget,
            paging=paging,
            background=False,
            cache_dir=None,
            time_limit_s=2,
        )

    got, state, step = _train_with_swaps(wrap)
    assert got == wanted
    assert all(torch.equal(state[name], weight) for name, weight in wanted_state.items())
    assert step.stats.followed_steps >= 3


@pytest.mark.parametrize("paging", [False, True], ids=["recompute", "paging"])
def test_parameters_that_load_state_dict_swaps(paging: bool) -> None:
    in_a_process_of_its_own(_check_swapped_parameters, paging)


def test_what_cannot_be_swapped_is_refused_by_pytorch_and_known_as_before() -> None:
    def train_step() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss.detach()

    weight = torch.ones(64, requires_grad=True)
    step = poet.wrap(train_step, ram_budget="1GiB", paging=False, cache_dir=None)
    step()
    also = torch._C._WeakTensorRef(weight)  # PyTorch's own
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(weight, torch.ones(64, requires_grad=True))
    del also
    torch.utils.swap_tensors(weight, torch.full((64,), 2.0, requires_grad=True))
    assert step().item() == 256
    with pytest.raises(RuntimeError, match="THPVariable_Check"):
        torch._C._swap_tensor_impl(weight, 1)
