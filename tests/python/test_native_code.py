"""Memory that is read and written past PyTorch's operators: C++ extensions, NumPy, pointers.

Each step is trained plainly, then under random plans that free, recompute and page far more than
solved ones, and by the online policy within one byte: to the same bits.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from native_code import native
from random_plans import STORE_DEVICE, random_plan
from torch import nn
from zoo import Case, differences

from poet import _C
from poet._live import run_step
from poet._store import page_folder

pytestmark = pytest.mark.usefixtures("one_thread")

_ROWS = 512
_HOST = _C.DeviceProfile.by_name("host")


def _deep(width: int = 32, layers: int = 4, classes: int = 4) -> nn.Sequential:
    made = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*made, nn.Linear(width, classes))


def _case(
    net: nn.Module,
    loss_of: Callable[..., torch.Tensor],
    extra: dict[str, torch.Tensor] | None = None,
) -> Case:
    optimizer = torch.optim.SGD(net.parameters(), 0.05, foreach=False)
    batch = torch.randn(_ROWS, 32), torch.randint(0, 4, (_ROWS,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda _: batch, [net], [optimizer], extra or {})


# ---- what native code fills ---------------------------------------------------------------------


def _through(use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Case:
    net, other = _deep(), torch.randn(_ROWS, 32)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = use(net[:4](x), other)
        return F.cross_entropy(net[4:](h.tanh()), y)

    return _case(net, loss)


class _PythonCube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return native().cube(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return native().cube_backward(gradient, x)  # type: ignore[no-any-return]


class _ReadsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**4 / 4

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * native().cube(x)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).detach()
        torch.ops.poet_tests_native.cube_(y)
        ctx.save_for_backward(y)
        return y * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


def empty_like_filled() -> Case:
    return _through(lambda h, t: h * native().cube(t))


def zeros_filled() -> Case:
    return _through(lambda h, t: h * native().cube_of_zeros(t))


def clone_written() -> Case:
    return _through(lambda h, t: h * native().cube_of_clone(t))


def product_written() -> Case:
    return _through(lambda h, t: h * native().product_and_cube(t, t[:32].t().contiguous()))


def filled_in_part() -> Case:
    return _through(lambda h, t: h * native().half_filled(t))


def python_function() -> Case:
    return _through(lambda h, t: _PythonCube.apply(h))


def reads_saved_tensors() -> Case:
    return _through(lambda h, t: _ReadsSaved.apply(h))


def cpp_function() -> Case:
    return _through(lambda h, t: native().cube_function(h))


def custom_operator() -> Case:
    native()
    return _through(lambda h, t: h * torch.ops.poet_tests_native.cube(t))


def custom_operator_in_place() -> Case:
    native()
    return _through(lambda h, t: _InPlace.apply(h))


def compiled_by_inductor() -> Case:
    """Its kernels read their inputs' memory, and write into what operators returned."""
    torch._dynamo.reset()
    inner = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
    )
    compiled = torch.compile(inner)
    head = nn.Sequential(
        nn.Tanh(), nn.Flatten(), nn.Linear(8 * 64, 32), nn.Tanh(), nn.Linear(32, 4)
    )
    first = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Tanh())
    net = nn.ModuleList([first, inner, head])
    optimizer = torch.optim.SGD(net.parameters(), 0.05, foreach=False)
    batch = torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(head(compiled(first(x))), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda _: batch, [net], [optimizer])


def _ctc(lengths_as: Callable[[int], Any]) -> Case:
    net = _deep(classes=20)
    targets = torch.randint(1, 20, (32, 5))

    def loss(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        scores = net(x).view(16, 32, 20).log_softmax(2)
        return F.ctc_loss(scores, targets, lengths_as(16), lengths_as(5))

    return _case(net, loss)


def ctc_loss_with_lists() -> Case:
    """Its mean divides by at::tensor(target_lengths), which shows as `empty`."""
    return _ctc(lambda n: (n,) * 32)


def ctc_loss_with_tensors() -> Case:
    return _ctc(lambda n: torch.full((32,), n))


def tensors_from_lists() -> Case:
    """torch.tensor() fills what shows as `empty` as well."""
    net = _deep()
    numbers = [float(i % 7) for i in range(32)]

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor(numbers)
        return F.cross_entropy(net[4:](net[:4](x) * scale.sin().exp()), y)

    return _case(net, loss)


def filled_by_operators() -> Case:
    """All of it, row by row: that may be computed again."""
    net = _deep()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(4, 32)
        for i in range(4):
            rows[i].copy_(x[i])
        noise = torch.empty_like(x).bernoulli_(0.5)
        return F.cross_entropy(net(x * noise + rows.sin().sum(0)), y)

    return _case(net, loss)


# ---- memory that NumPy or a pointer reaches -----------------------------------------------------


def own_and_shared_batches() -> Case:
    """From the fourth call on NumPy has the batch's memory, and writes it between two passes."""
    net, made = _deep(), np.random.RandomState(3).randn(8, _ROWS, 32).astype(np.float32)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, foreach=False)
    y = torch.randint(0, 4, (_ROWS,))

    def batch(i: int) -> tuple[Any, ...]:
        array = made[i].copy()
        return (
            (torch.from_numpy(array), array) if i > 3 else (torch.from_numpy(array).clone(), None)
        )

    def step(x: torch.Tensor, array: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x.sin()), y)
        if array is not None:
            array[:] = 7
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, batch, [net], [optimizer])


def numpy_buffer_refilled() -> Case:
    net = _deep()
    buffer = np.zeros((_ROWS, 32), np.float32)
    shared = torch.from_numpy(buffer)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, foreach=False)
    y = torch.randint(0, 4, (_ROWS,))

    def step() -> torch.Tensor:
        numbers, total = np.random.RandomState(3), torch.zeros(())
        optimizer.zero_grad()
        buffer[:] = numbers.randn(_ROWS, 32)
        for _ in range(3):
            loss = F.cross_entropy(net(shared / 2), y)
            buffer[:] = numbers.randn(_ROWS, 32)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return Case(step, lambda _: (), [net], [optimizer])


def _written(write: Callable[[torch.Tensor], object], before: str = "") -> Case:
    """What is made of `h` before and after its memory is handed out, and then written."""
    net, seen = _deep(), torch.zeros(3)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net[:4](x).detach() * 1.0
        first = h.sin()
        further = first.cos()
        pointer = getattr(h, before)() if before else h
        second = h.exp()
        write(pointer)
        for i, made in enumerate((first + further, second, h)):
            seen[i] = made.sum()
        return F.cross_entropy(net(x + first * 0.1 + second * 0.01), y)

    return _case(net, loss, {"seen": seen})


def numpy_array_written() -> Case:
    return _written(lambda array: array.__setitem__(slice(None), 0.5), "numpy")  # type: ignore[attr-defined]


def dlpack_written() -> Case:
    def write(h: torch.Tensor) -> None:
        torch.from_dlpack(h)  # whoever has it goes on writing
        ctypes.memset(h.data_ptr(), 0, h.nbytes)

    return _written(write)


def pointer_written() -> Case:
    size = _ROWS * 32 * 4
    return _written(lambda p: ctypes.memset(p, 0, size), "data_ptr")  # type: ignore[arg-type]


def storage_pointer_written() -> Case:
    return _written(lambda s: ctypes.memset(s.data_ptr(), 0, s.nbytes()), "untyped_storage")  # type: ignore[attr-defined]


def storage_filled() -> Case:
    return _written(lambda s: s.fill_(0), "untyped_storage")


# ---- weights and buffers that others write ------------------------------------------------------


def _weights_by_arrays(net: nn.Module, arrays: list[Any], trained_here: bool) -> Case:
    optimizer = torch.optim.SGD(net.parameters(), 0.05, foreach=False)
    batch = torch.randn(_ROWS, 32), torch.randint(0, 4, (_ROWS,))

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, y)
        if not trained_here:
            for array in arrays:
                np.multiply(array, 0.99, out=array)
        loss.backward()
        if trained_here:
            for parameter, array in zip(net.parameters(), arrays, strict=True):
                assert parameter.grad is not None
                np.subtract(array, 0.05 * parameter.grad.numpy(), out=array)
        else:
            optimizer.step()
        return loss.detach(), out.detach()

    return Case(step, lambda _: batch, [net], [optimizer], {})


def weights_scaled_through_arrays() -> Case:
    net = _deep()
    return _weights_by_arrays(net, [p.detach().numpy() for p in net.parameters()], False)


def weights_trained_through_arrays() -> Case:
    net = _deep()
    return _weights_by_arrays(net, [p.detach().numpy() for p in net.parameters()], True)


def weights_made_of_arrays() -> Case:
    net = _deep()
    arrays = [p.detach().numpy().copy() for p in net.parameters()]
    for parameter, array in zip(net.parameters(), arrays, strict=True):
        parameter.data = torch.from_numpy(array)
    return _weights_by_arrays(net, arrays, True)


def pointer_kept_for_later_calls() -> Case:
    net, buffer, pointers = _deep(), torch.zeros(_ROWS, 32), list[int]()
    fills = torch.randn(8, _ROWS, 32).numpy()
    calls = itertools.count()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not pointers:
            pointers.append(buffer.data_ptr())
        ctypes.memmove(pointers[0], fills[next(calls) % 8].ctypes.data, fills[0].nbytes)
        return F.cross_entropy(net(x + (buffer * 2).tanh()), y)

    return _case(net, loss)


_CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        empty_like_filled,
        zeros_filled,
        clone_written,
        product_written,
        filled_in_part,
        python_function,
        reads_saved_tensors,
        cpp_function,
        custom_operator,
        custom_operator_in_place,
        compiled_by_inductor,
        ctc_loss_with_lists,
        ctc_loss_with_tensors,
        tensors_from_lists,
        filled_by_operators,
        own_and_shared_batches,
        numpy_buffer_refilled,
        numpy_array_written,
        dlpack_written,
        pointer_written,
        storage_pointer_written,
        storage_filled,
        weights_scaled_through_arrays,
        weights_trained_through_arrays,
        weights_made_of_arrays,
        pointer_kept_for_later_calls,
    )
}


class _Planned:
    """A step that follows a random plan from its third call on."""

    def __init__(self, case: Case, seed: int, eagerness: float, paging: float = 0.0) -> None:
        self.case, self.seed, self.eagerness, self.paging = case, seed, eagerness, paging
        self.session = _C.Session(verify=False)
        if paging:
            self.session.set_store(page_folder(None))

    def __call__(self, *args: Any) -> Any:
        result, report = run_step(self.session, self.case.step, args, {})
        if report["newly_stable"]:
            graph = self.session.graph_of(report["variant"])
            plan = random_plan(
                graph, self.seed, self.eagerness, paging=self.paging, away_between=self.paging > 0
            )
            self.session.set_plan(report["variant"], plan, STORE_DEVICE)
            self.session.move_out()
        return result


class _Online(_Planned):
    """A step within one byte: everything goes that may."""

    def __init__(self, case: Case, paging: bool) -> None:
        super().__init__(case, 0, 0, 0.1 if paging else 0)
        self.session.set_budget(1, True, paging, STORE_DEVICE if paging else _HOST, "never")

    def __call__(self, *args: Any) -> Any:
        return run_step(self.session, self.case.step, args, {})[0]


_MODES: dict[str, Callable[[Case], _Planned]] = {
    "plan, eager": lambda case: _Planned(case, 1, 0.9),
    "plan": lambda case: _Planned(case, 2, 0.4),
    "plan, paging": lambda case: _Planned(case, 3, 0.4, 0.3),
    "online": lambda case: _Online(case, paging=False),
    "online, paging": lambda case: _Online(case, paging=True),
}


def _train(
    make: Callable[[], Case], stepper: Callable[[Case], Callable[..., Any]]
) -> dict[str, Any]:
    torch.manual_seed(0)
    case = make()
    torch.manual_seed(1)
    step = stepper(case)
    results = [step(*case.batches(i)) for i in range(8)]
    return {f"result {i}": result for i, result in enumerate(results)} | case.state()


@functools.cache
def _plain(name: str) -> dict[str, Any]:
    return _train(_CASES[name], lambda case: case.step)


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("name", _CASES)
def test_trains_as_without_poet(name: str, mode: str) -> None:
    steps: list[_Planned] = []

    def stepper(case: Case) -> Callable[..., Any]:
        steps.append(_MODES[mode](case))
        return steps[0]

    assert differences(_plain(name), _train(_CASES[name], stepper)) == []
    counters = steps[0].session.counters()
    assert counters["failed_steps"] == 0
    assert counters["evictions"] + counters["online_evictions"] > 0
    if "plan" in mode:
        assert counters["followed_steps"] >= 3
