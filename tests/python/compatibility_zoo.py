"""What eager PyTorch offers a training step, one small step for each: see test_compatibility.py.

A kind is a function that returns a `zoo.Case`; `FEATURES` says which line of docs/compatibility.md
it stands for. Kinds that are of use to other tests too are in zoo.py.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import zoo
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from zoo import Case

_ROWS = 256


def _deep(width: int = 16, depth: int = 4, out: int = 4) -> nn.Sequential:
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, out))


def _batch(width: int = 16, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(_ROWS, width), torch.randint(0, classes, (_ROWS,))


def _fixed(*tensors: torch.Tensor) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda _: tensors


def _sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for m in modules for p in m.parameters() if p.requires_grad]
    return torch.optim.SGD(parameters, 0.05, momentum=0.9, foreach=False)


def _trains(
    net: nn.Module,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    batch: tuple[torch.Tensor, ...] | None = None,
    extra: dict[str, torch.Tensor] | None = None,
) -> Case:
    """The usual step around a loss."""
    chosen = optimizer if optimizer is not None else _sgd(net)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chosen.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        chosen.step()
        return loss.detach()

    return Case(step, _fixed(*(batch or _batch())), [net], [chosen], extra or {})


def recurrent_nets() -> Case:
    """A packed sequence through a bidirectional GRU and an RNN, then cells in a loop."""
    nets = nn.ModuleDict(
        {
            "gru": nn.GRU(6, 8, bidirectional=True),
            "rnn": nn.RNN(16, 8, 2, nonlinearity="relu", dropout=0.1),
            "gru_cell": nn.GRUCell(8, 8),
            "lstm_cell": nn.LSTMCell(8, 8),
            "rnn_cell": nn.RNNCell(8, 8),
            "head": nn.Linear(8, 4),
        }
    )
    lengths = torch.tensor([9, 9, 7, 4, 1])

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        packed, _ = nets["rnn"](nets["gru"](packed)[0])
        padded, _ = nn.utils.rnn.pad_packed_sequence(packed)
        h = c = torch.zeros(len(lengths), 8)
        for row in padded:
            h = nets["gru_cell"](row, h)
            h, c = nets["lstm_cell"](h, (h, c))
            h = nets["rnn_cell"](h, c)
        return F.cross_entropy(nets["head"](h), y)

    batch = (torch.randn(9, len(lengths), 6), torch.randint(0, 4, (len(lengths),)))
    return _trains(nets, loss_of, batch=batch)


# ---------------------------------------------------------------- derivatives


def per_sample_gradients() -> Case:
    """torch.func: vmap of grad gives a gradient for each sample; their mean is applied."""
    from torch.func import functional_call, grad, vmap

    net = _deep(8, 3)
    optimizer = _sgd(net)
    x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))

    def loss_of(parameters: Any, one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        out = functional_call(net, parameters, (one.unsqueeze(0),))
        return F.cross_entropy(out, label.unsqueeze(0))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parameters = {name: p.detach() for name, p in net.named_parameters()}
        gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
        norms = []
        for name, p in net.named_parameters():
            norms.append(gradients[name].flatten(1).norm(dim=1))
            p.grad = gradients[name].mean(0)
        optimizer.step()
        return torch.stack(norms).sum()

    return Case(step, _fixed(x, y), [net], [optimizer])


def hessian_vector_product() -> Case:
    """torch.func: jvp of grad beside an ordinary backward pass."""
    from torch.func import functional_call, grad, jvp

    net = _deep(8, 2)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parameters = {n: p.detach() for n, p in net.named_parameters()}
        tangents = {n: torch.ones_like(p) for n, p in parameters.items()}

        def plain(current: Any) -> torch.Tensor:
            return F.cross_entropy(functional_call(net, current, (x,)), y)

        _, product = jvp(grad(plain), (parameters,), (tangents,))
        curvature = sum(p.square().sum() for p in product.values())
        return F.cross_entropy(net(x), y) * (1 + curvature)

    return _trains(net, loss_of, batch=_batch(8))


def inputs_with_gradients() -> Case:
    """The batch requires a gradient, and x.grad is read and used."""
    net = _deep()
    optimizer = _sgd(net)
    seen = torch.zeros(_ROWS, 16)
    x, y = _batch()
    x.requires_grad_()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        x.grad = None
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        seen.add_(x.grad)
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(x, y), [net], [optimizer], {"seen": seen})


def retained_graph() -> Case:
    """Two backward passes through one graph."""
    net = _deep()
    optimizer = _sgd(net)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, y)
        loss.backward(retain_graph=True)
        out.square().mean().backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(*_batch()), [net], [optimizer])


def tensor_and_module_hooks() -> Case:
    """Hooks on tensors, modules and nodes; one keeps gradients for later."""
    net = _deep()
    seen = torch.zeros(_ROWS, 16)
    net[2].register_full_backward_hook(lambda m, i, o: (i[0] * 2,))
    net[3].register_forward_hook(lambda m, i, o: o + 0.1 * i[0])

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net[:4](x)
        h.retain_grad()

        def look(gradient: torch.Tensor) -> None:
            seen.copy_(gradient)

        h.register_hook(look)
        out = net[4:](h)
        out.grad_fn.register_prehook(lambda grads: (grads[0] * 0.5,))
        return F.cross_entropy(out, y)

    return _trains(net, loss_of, extra={"seen": seen})


def saved_tensor_hooks() -> Case:
    """Saved tensors packed as bfloat16 by the user's hooks, and kept on the CPU by PyTorch's."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def pack(t: torch.Tensor) -> Any:
            return t.to(torch.bfloat16) if t.is_floating_point() else t

        def unpack(t: torch.Tensor) -> torch.Tensor:
            return t.float() if t.is_floating_point() else t

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            h = net[:4](x)
        with torch.autograd.graph.save_on_cpu():
            return F.cross_entropy(net[4:](h), y)

    return _trains(net, loss_of)


class _ThroughNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = torch.from_numpy(np.tanh(x.detach().numpy()))
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (result,) = ctx.saved_tensors
        return torch.from_numpy(grads[0].numpy() * (1 - result.numpy() ** 2))


def numpy_in_a_function() -> Case:
    """A custom Function that computes with NumPy, forward and backward."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net[4:](_ThroughNumPy.apply(net[:4](x))), y)

    return _trains(net, loss_of)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.kept = x.detach().clone()  # not by save_for_backward
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return 2 * grads[0] + 0 * ctx.kept


def dirty_function() -> Case:
    """A custom Function that works in place and keeps a tensor on its context."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net[3:](_Doubled.apply(net[:3](x))), y)

    return _trains(net, loss_of)


def optimizer_in_backward() -> Case:
    """register_post_accumulate_grad_hook: every parameter is updated inside backward."""
    net = _deep()
    optimizers = {p: torch.optim.SGD([p], 0.05, momentum=0.9) for p in net.parameters()}

    def update(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss.detach()

    return Case(step, _fixed(*_batch()), [net], list(optimizers.values()))


def anomaly_mode() -> Case:
    """torch.autograd.detect_anomaly around forward and backward."""
    net = _deep()
    optimizer = _sgd(net)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autograd.set_detect_anomaly(True):
            loss = F.cross_entropy(net(x), y)
            loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(*_batch()), [net], [optimizer])


# ---------------------------------------------------------------- precision


def fp16_scaler() -> Case:
    """float16 autocast with a GradScaler; now and then a step is skipped for an overflow."""
    net = _deep()
    optimizer = _sgd(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=2)
    scale = torch.zeros(1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scale.fill_(scaler.get_scale())
        return loss.detach()

    return Case(step, _fixed(*_batch()), [net], [optimizer], {"scale": scale})


def complex_numbers() -> Case:
    """Complex parameters, conjugate and real views."""
    net = nn.Module()
    net.weight = nn.Parameter(torch.randn(16, 16, dtype=torch.complex64) / 4)
    net.head = nn.Linear(16, 4)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x.flip(0))
        for _ in range(3):
            z = torch.tanh(z @ net.weight.conj().resolve_conj())
        pairs = torch.view_as_real(z.conj().resolve_conj())
        return F.cross_entropy(net.head(z.abs() + pairs[..., 1]), y)

    return _trains(net, loss_of)


def quantization_aware() -> Case:
    """Fake quantization with moving-average observers."""
    from torch.ao.quantization import (
        FakeQuantize,
        MovingAverageMinMaxObserver,
        MovingAveragePerChannelMinMaxObserver,
    )

    net = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Linear(16, 4)})
    net["of_input"] = FakeQuantize(
        observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8
    )
    net["of_weight"] = FakeQuantize(
        observer=MovingAveragePerChannelMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
    )

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = net["of_weight"](net["a"].weight)
        h = torch.relu(F.linear(net["of_input"](x), weight, net["a"].bias))
        return F.cross_entropy(net["b"](h), y)

    return _trains(net, loss_of, _sgd(net["a"], net["b"]))


def quantized_teacher() -> Case:
    """A dynamically quantized teacher runs within the step (its tensors are opaque)."""
    net = _deep()
    engines = torch.backends.quantized.supported_engines
    torch.backends.quantized.engine = "fbgemm" if "fbgemm" in engines else engines[-1]
    teacher = torch.ao.quantization.quantize_dynamic(_deep().eval(), {nn.Linear})

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
            scaled = torch.quantize_per_tensor(wanted, 0.01, 0, torch.quint8).dequantize()
        return F.cross_entropy(net(x), scaled)

    return _trains(net, loss_of)


def mkldnn_teacher() -> Case:
    """mkldnn (opaque) tensors beside ordinary ones."""
    net = _deep()
    weight = torch.randn(4, 16).to_mkldnn()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = torch._C._nn.mkldnn_linear(x.to_mkldnn(), weight, None).to_dense().softmax(1)
        return F.cross_entropy(net(x), wanted)

    return _trains(net, loss_of)


# ---------------------------------------------------------------- parameters


def frozen_layers() -> Case:
    """A frozen trunk and a trained head."""
    net = _deep()
    for p in net[:6].parameters():
        p.requires_grad_(False)
    return _trains(net, lambda x, y: F.cross_entropy(net(x), y))


class _Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(F.dropout(self.down(x), 0.1, self.training))


def low_rank_adapters() -> Case:
    """LoRA: frozen weights with trained low-rank additions."""
    net = nn.Sequential(*[m for _ in range(3) for m in (_Adapted(nn.Linear(16, 16)), nn.GELU())])
    net.append(nn.Linear(16, 4))
    return _trains(net, lambda x, y: F.cross_entropy(net(x), y))


class _Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


def parametrized() -> Case:
    """nn.utils.parametrize with a cache, weight norm and spectral norm, orthogonal weights."""
    net = _deep()
    parametrize.register_parametrization(net[0], "weight", _Symmetric())
    parametrizations.weight_norm(net[2])
    parametrizations.spectral_norm(net[4])
    parametrizations.orthogonal(net[6])

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with parametrize.cached():
            return F.cross_entropy(net(net[0](x)), y)

    return _trains(net, loss_of)


def old_norms() -> Case:
    """The older weight and spectral norms, which assign weights in a hook."""
    import warnings

    net = _deep()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(net[0])
        nn.utils.spectral_norm(net[2])
    return _trains(net, lambda x, y: F.cross_entropy(net(x), y))


def pruned() -> Case:
    """nn.utils.prune: masks are applied by hooks."""
    net = _deep()
    prune.l1_unstructured(net[0], "weight", amount=0.3)
    prune.random_structured(net[2], "weight", amount=0.25, dim=0)
    return _trains(net, lambda x, y: F.cross_entropy(net(x), y))


def tied_weights() -> Case:
    """One weight as embedding and as projection."""
    net = nn.ModuleDict({"embed": nn.Embedding(32, 16), "mix": _deep(16, 3, 16)})
    words = torch.randint(0, 32, (_ROWS,))

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net["mix"](net["embed"](x))
        return F.cross_entropy(F.linear(h, net["embed"].weight), y)

    return _trains(net, loss_of, batch=(words, words.roll(1)))


def sparse_adam() -> Case:
    """SparseAdam on an embedding bag, Adam on the rest."""
    bag = nn.EmbeddingBag(50, 16, sparse=True, mode="sum")
    net = _deep()
    optimizers = [
        torch.optim.SparseAdam(list(bag.parameters()), 0.01),
        torch.optim.Adam(net.parameters(), foreach=False),
    ]
    words, y = torch.randint(0, 50, (_ROWS, 5)), torch.randint(0, 4, (_ROWS,))

    def step(words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.cross_entropy(net(bag(words)), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    return Case(step, _fixed(words, y), [bag, net], optimizers)


def stochastic_weight_averaging() -> Case:
    """SWA: an averaged model with a schedule of its own."""
    from torch.optim.swa_utils import SWALR, AveragedModel

    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), _deep())
    averaged = AveragedModel(net, use_buffers=True)
    optimizer = _sgd(net)
    schedule = SWALR(optimizer, swa_lr=0.01, anneal_epochs=3)
    case = _trains(net, lambda x, y: F.cross_entropy(net(x), y), optimizer)
    inner = case.step

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = inner(x, y)
        averaged.update_parameters(net)
        schedule.step()
        return loss

    case.step = step
    case.modules.append(averaged)
    return case


# ---------------------------------------------------------------- loops


def lbfgs() -> Case:
    """L-BFGS calls its closure several times within one step, as often as it likes."""
    net = _deep(8, 2)
    optimizer = torch.optim.LBFGS(
        net.parameters(), lr=0.1, max_iter=4, history_size=3, line_search_fn="strong_wolfe"
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return Case(step, _fixed(*_batch(8)), [net], [optimizer])


def no_sync() -> Case:
    """DistributedDataParallel in one process: two micro-batches, the first under no_sync."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net = _deep()
    wrapped = DistributedDataParallel(net)
    optimizer = _sgd(net)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        half = len(x) // 2
        with wrapped.no_sync():
            first = F.cross_entropy(wrapped(x[:half]), y[:half])
            first.backward()
        second = F.cross_entropy(wrapped(x[half:]), y[half:])
        second.backward()
        optimizer.step()
        return (first + second).detach()

    return Case(step, _fixed(*_batch()), [net], [optimizer])


def evaluation_between() -> Case:
    """Evaluation, no-grad and inference-mode passes inside the steps."""
    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), _deep())
    scores = torch.zeros(3)
    case = _trains(net, lambda x, y: F.cross_entropy(net(x), y), extra={"scores": scores})
    inner, calls = case.step, [0]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = inner(x, y)
        calls[0] += 1
        if calls[0] % 3 == 0:
            net.eval()
            with torch.inference_mode():
                scores[0] += net(x).argmax(1).eq(y).float().mean()
            with torch.no_grad():
                scores[1] += F.cross_entropy(net(x), y)
            net.train()
        return loss

    case.step = step
    return case


def data_dependent_branches() -> Case:
    """Branches, loops and an early exit that depend on values."""
    net = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))
    head = nn.Linear(16, 4)
    optimizer = _sgd(net, head)

    def batches(i: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(i % 3)
        return (
            torch.randn(_ROWS, 16, generator=generator) * (1 + i % 3),
            torch.randint(0, 4, (_ROWS,), generator=generator),
        )

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        h = x
        for layer in net:
            h = torch.tanh(layer(h)) + h
            if h.abs().mean().item() > 1.5:
                break
        loss = F.cross_entropy(head(h), y)
        if loss > 1.4:
            loss = loss + 0.01 * h.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, batches, [net, head], [optimizer])


def mixture_of_experts() -> Case:
    """Top-1 routing: how many rows an expert gets depends on the data."""
    net = nn.ModuleDict(
        {
            "router": nn.Linear(16, 3),
            "experts": nn.ModuleList(_deep(16, 1, 16) for _ in range(3)),
            "head": nn.Linear(16, 4),
        }
    )

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weights, chosen = net["router"](x).softmax(1).max(1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(net["experts"]):
            rows = torch.nonzero(chosen == e).squeeze(1)
            if len(rows):
                out.index_add_(0, rows, weights[rows, None] * expert(x[rows]))
        return F.cross_entropy(net["head"](out), y)

    return _trains(net, loss_of)


def other_shapes_every_step() -> Case:
    """A batch of another length at every call."""
    net = _deep()
    case = _trains(net, lambda x, y: F.cross_entropy(net(x), y))

    def batches(i: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(i)
        rows = 128 + 32 * (i * 7 % 5)
        return (
            torch.randn(rows, 16, generator=generator),
            torch.randint(0, 4, (rows,), generator=generator),
        )

    case.batches = batches
    return case


def several_models() -> Case:
    """A student and two teachers, one of which follows the student."""
    student, fixed, follower = _deep(), _deep().eval(), _deep()
    follower.load_state_dict(student.state_dict())
    case = _trains(
        student,
        lambda x, y: (
            F.cross_entropy(student(x), y)
            + F.mse_loss(student(x), fixed(x).detach())
            + F.mse_loss(student(x.flip(0)), follower(x).detach())
        ),
        _sgd(student),
    )
    inner = case.step

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = inner(x, y)
        with torch.no_grad():
            for mine, theirs in zip(follower.parameters(), student.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
        return loss

    case.step = step
    case.modules += [fixed, follower]
    return case


def changing_thread_count() -> Case:
    """torch.set_num_threads changes inside the step."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = torch.get_num_threads()
        h = net[:4](x)
        torch.set_num_threads(2)
        h = net[4:6](h)
        torch.set_num_threads(before)
        return F.cross_entropy(net[6:](h), y)

    return _trains(net, loss_of)


def under_the_profiler() -> Case:
    """torch.profiler records shapes and memory of every step."""
    net = _deep()
    case = _trains(net, lambda x, y: F.cross_entropy(net(x), y))
    inner = case.step

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.profiler.profile(record_shapes=True, profile_memory=True):
            return inner(x, y)

    case.step = step
    return case


def saved_in_the_middle() -> Case:
    """Deep copies, state_dict, torch.save and pickle between forward and backward."""
    net = _deep()
    read = torch.zeros(4)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net[:4](x)
        out = net[4:](h)
        file = io.BytesIO()
        torch.save({"net": net.state_dict(), "h": h}, file)
        file.seek(0)
        loaded = torch.load(file)
        read[0] = loaded["h"].sum().detach()
        read[1] = copy.deepcopy(net)(x).sum().detach()
        read[2] = pickle.loads(pickle.dumps(h.detach())).abs().sum()
        read[3] = copy.deepcopy(h.detach()).square().sum()
        return F.cross_entropy(out, y)

    return _trains(net, loss_of, extra={"read": read})


def kept_for_later() -> Case:
    """Activations captured by a closure and a list outlive the step and are read in the next."""
    net = _deep()
    kept: list[torch.Tensor] = []
    read = torch.zeros(2)
    late: list[Callable[[], torch.Tensor]] = []

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if kept:
            read[0] += kept.pop().sum()
            read[1] += late.pop()()
        h = net[:4](x)
        kept.append(h.detach())
        late.append(lambda: h.detach().mean())
        return F.cross_entropy(net[4:](h), y)

    return _trains(net, loss_of, extra={"read": read})


def an_error_that_is_caught() -> Case:
    """Ops that raise inside the step, and the step goes on."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net[:4](x)
        try:
            h = h @ torch.ones(3, 3)
        except RuntimeError:
            h = h * 1.5
        try:
            h = torch.linalg.cholesky(-h[:16].T @ h[:16])
        except RuntimeError:
            h = h * 0.5
        return F.cross_entropy(net[4:](h), y)

    return _trains(net, loss_of)


# ---------------------------------------------------------------- tensors


def views_of_every_kind() -> Case:
    """Expanded, overlapping, strided, transposed and diagonal views, written through too."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net[:4](x)
        windows = h.unfold(1, 4, 2)  # overlapping
        sums = torch.as_strided(h, (h.shape[0], 6, 6), (16, 2, 1)).sum(2)
        bias = h.mean(0, keepdim=True).expand_as(h)
        g = (h + bias).clone()
        g[:, ::2] *= 0.5
        g.t()[3:5].add_(0.25)
        g.diagonal().mul_(2)
        g.narrow(1, 0, 6).add_(sums)
        parts = torch.split(g, 8, dim=1)
        rejoined = torch.cat([parts[1], parts[0]], 1) + windows.mean((1, 2), keepdim=False)[:, None]
        return F.cross_entropy(net[4:](rejoined), y)

    return _trains(net, loss_of)


def resize_and_set() -> Case:
    """resize_, set_ and .data assignment: storages change under their tensors."""
    net = _deep()
    scratch = torch.zeros(4)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scratch.resize_(x.shape).copy_(x).mul_(0.5)
        grown = torch.full((4,), 0.1)  # its storage grows in every call
        grown.resize_(x.shape)[0, 4:] = 0.2
        grown[1:] = x[1:].detach()
        other = torch.empty(0)
        other.set_(scratch)
        h = net[:4](x + other + grown.tanh())
        shadow = h.detach().clone()
        shadow.data = shadow.data * 2
        shadow.data[:, 0] = 1.0
        target = torch.empty(0)
        torch.add(shadow, 1, out=target)
        return F.cross_entropy(net[4:](h + target * 0.01), y)

    return _trains(net, loss_of, extra={"scratch": scratch})


def parameter_data_swapped() -> Case:
    """Parameters get other storage through .data at every step."""
    net = _deep()
    case = _trains(net, lambda x, y: F.cross_entropy(net(x), y))
    inner = case.step

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = inner(x, y)
        for p in net.parameters():
            p.data = p.data.clone()
        return loss

    case.step = step
    return case


class _Logged(torch.Tensor):
    """A __torch_dispatch__ wrapper without data of its own."""

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> _Logged:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map_only

        plain = tree_map_only(_Logged, lambda t: t.inner, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        return tree_map_only(torch.Tensor, _Logged, result)


def dispatch_subclass() -> Case:
    """Activations of a tensor subclass with __torch_dispatch__."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = net(_Logged(x))
        return F.cross_entropy(out, y)

    optimizer = _sgd(net)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        for p in net.parameters():
            if isinstance(p.grad, _Logged):
                p.grad = p.grad.inner
        optimizer.step()
        return loss.detach().inner

    return Case(step, _fixed(*_batch()), [net], [optimizer])


def function_subclass() -> Case:
    """A tensor subclass with __torch_function__."""

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x.as_subclass(Named)), y).as_subclass(torch.Tensor)

    return _trains(net, loss_of)


def nested_tensors() -> Case:
    """NestedTensor, jagged layout: rows of different lengths (opaque, stays in memory)."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net[:2](x)
        rows = torch.nested.nested_tensor_from_jagged(h, torch.tensor([0, 100, 130, _ROWS]))
        scaled = (rows * 2).sin()
        return F.cross_entropy(net[2:](scaled.values()), y)

    return _trains(net, loss_of)


def strided_nested_tensors() -> Case:
    """NestedTensor, strided layout, through layers and dropout, padded at the end."""
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net[:2](x)
        rows = torch.nested.as_nested_tensor([h[:100], h[100:130], h[130:]])
        rows = F.dropout(F.gelu(net[2](rows)), 0.1)
        padded = rows.to_padded_tensor(0.0)  # three rows of 126
        return F.cross_entropy(net[3:](padded).flatten(0, 1)[:_ROWS], y)

    return _trains(net, loss_of)


def sparse_matrices() -> Case:
    """A graph convolution: products with sparse COO and CSR matrices."""
    net = _deep()
    edges = torch.randint(0, _ROWS, (2, 600))
    adjacency = torch.sparse_coo_tensor(edges, torch.rand(600), (_ROWS, _ROWS)).coalesce()
    rows = adjacency.to_sparse_csr()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.sparse.mm(adjacency, net[:4](x))
        h = h + (rows @ x)
        return F.cross_entropy(net[4:](h), y)

    return _trains(net, loss_of)


# ---------------------------------------------------------------- compilers and extensions


def scripted_and_traced() -> Case:
    """torch.jit.script and torch.jit.trace modules inside an eager step."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(_deep(16, 2, 16))
        traced = torch.jit.trace(_deep(16, 2, 16), torch.randn(_ROWS, 16))
    head = nn.Linear(16, 4)
    net = nn.ModuleList([scripted, traced, head])
    return _trains(net, lambda x, y: F.cross_entropy(head(traced(scripted(x))), y))


def compiled_submodule() -> Case:
    """A submodule under torch.compile (through AOTAutograd) in an eager step."""
    inner = _deep(16, 2, 16)
    compiled = torch.compile(inner, backend="aot_eager")
    head = _deep()
    net = nn.ModuleList([inner, head])
    return _trains(net, lambda x, y: F.cross_entropy(head(compiled(x)), y))


def _library() -> Any:
    if not hasattr(torch.ops, "poet_compatibility") or not hasattr(
        torch.ops.poet_compatibility, "swish"
    ):

        @torch.library.custom_op("poet_compatibility::swish", mutates_args=())
        def swish(x: torch.Tensor) -> torch.Tensor:
            values = x.detach().numpy()
            return torch.from_numpy(values / (1 + np.exp(-values)))

        @torch.library.custom_op("poet_compatibility::scale_", mutates_args=("x",))
        def scale_(x: torch.Tensor, by: float) -> None:
            x.mul_(by)

        def set_up(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            s = torch.sigmoid(x)
            return grad * (s + x * s * (1 - s))

        swish.register_autograd(backward, setup_context=set_up)
    return torch.ops.poet_compatibility


def custom_operators() -> Case:
    """Operators registered with torch.library: one reads NumPy, one writes its argument."""
    ops = _library()
    net = _deep()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = ops.swish(net[:4](x))
        scaled = h.detach().clone()
        ops.scale_(scaled, 0.5)
        return F.cross_entropy(net[4:](h + scaled), y)

    return _trains(net, loss_of)


def attention_and_transformer() -> Case:
    """nn.TransformerEncoder with dropout: fused attention draws random numbers."""
    net = nn.ModuleDict(
        {
            "encoder": nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True), 2
            ),
            "head": nn.Linear(16, 4),
        }
    )
    x, y = torch.randn(8, 12, 16), torch.randint(0, 4, (8,))

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net["head"](net["encoder"](x).mean(1)), y)

    return _trains(net, loss_of, torch.optim.AdamW(net.parameters(), fused=True), (x, y))


def own_generator() -> Case:
    """Random numbers from a generator of the program's own, and bernoulli in place."""
    net = _deep()
    generator = torch.Generator().manual_seed(5)
    state = torch.zeros_like(generator.get_state())

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = net[:4](x)
        h = h * torch.empty_like(h).bernoulli_(0.8, generator=generator)
        h = h + torch.randn(h.shape, generator=generator) * 0.1
        h = F.dropout2d(h[None], 0.2)[0]
        h = F.rrelu(h, training=True)
        state.copy_(generator.get_state())
        return F.cross_entropy(net[4:](h), y)

    return _trains(net, loss_of, extra={"state": state})


def batch_statistics() -> Case:
    """Batch norm with momentum None, instance norm with statistics, group norm."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8, momentum=None),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.SiLU(inplace=True),
        nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    x, y = torch.randn(4, 3, 12, 12), torch.randint(0, 4, (4,))
    return _trains(net, lambda x, y: F.cross_entropy(net(x), y), batch=(x, y))


class _RunningMean(nn.Module):
    """Takes from its input a mean that lives in a buffer which state_dict() leaves out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean


def buffers_not_saved() -> Case:
    """Running means in buffers that state_dict() leaves out."""
    net = nn.Sequential(_deep(16, 2, 16), _RunningMean(16), _deep())
    return _trains(net, lambda x, y: F.cross_entropy(net(x), y))


def learning_rate_tensor() -> Case:
    """A learning rate that is a tensor, a scheduler, gradient clipping."""
    net = _deep()
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: math.cos(0.1 * i))
    case = _trains(net, lambda x, y: F.cross_entropy(net(x), y), optimizer)
    inner = case.step

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = inner(x, y)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        schedule.step()
        return loss + norm

    case.step = step
    return case


# What stands for which line of docs/compatibility.md, in its order.
FEATURES: dict[str, tuple[str, ...]] = {
    "Double backward and gradient penalty": ("gradient_penalty",),
    "`torch.func`: grad, vmap, jvp, per-sample gradients": (
        "per_sample_gradients",
        "hessian_vector_product",
    ),
    "Autocast bfloat16; float16 with GradScaler": ("autocast_bf16", "fp16_scaler"),
    "Gradient accumulation, clipping, `no_sync`": ("accumulation", "bert", "no_sync"),
    "EMA and SWA": ("custom_function_and_ema", "stochastic_weight_averaging"),
    "Two optimizers (GAN)": ("gan",),
    "Frozen layers, LoRA-style adapters": ("frozen_layers", "low_rank_adapters"),
    "Evaluation and inference-mode passes inside steps": ("evaluation_between",),
    "L-BFGS": ("lbfgs",),
    "LSTM, GRU, RNN and their cells, packed sequences": ("lstm", "recurrent_nets"),
    "Sparse gradients and matrices": ("sparse_embedding", "sparse_adam", "sparse_matrices"),
    "`parametrize`, weight and spectral norm, pruning": ("parametrized", "old_norms", "pruned"),
    "Tied weights": ("tied_weights", "gpt2"),
    "`torch.utils.checkpoint`, both kinds": ("checkpoint_inside",),
    "Saved-tensor, tensor and module hooks": ("saved_tensor_hooks", "tensor_and_module_hooks"),
    "`retain_graph`": ("retained_graph",),
    "Optimizer in backward": ("optimizer_in_backward",),
    "Custom autograd Functions, with NumPy and in place": (
        "numpy_in_a_function",
        "dirty_function",
    ),
    "Inputs that require gradients, `x.grad`": ("inputs_with_gradients",),
    "In-place activations and chains": ("in_place_chains", "residual_net"),
    "`resize_`, `set_`, `out=`, `.data` assignment": ("resize_and_set", "parameter_data_swapped"),
    "Complex numbers, FFT, channels-last": ("complex_numbers", "spectral_channels_last"),
    "Strided, expanded and overlapping views": ("views_of_every_kind",),
    "Tensor subclasses": ("dispatch_subclass", "function_subclass"),
    "NestedTensor (stays in memory)": ("nested_tensors", "strided_nested_tensors"),
    "Quantized and mkldnn tensors (stay in memory), QAT": (
        "quantization_aware",
        "quantized_teacher",
        "mkldnn_teacher",
    ),
    "Scripted and traced modules": ("scripted_and_traced",),
    "A compiled submodule": ("compiled_submodule",),
    "Data-dependent branches, loops, early exit": ("data_dependent_branches",),
    "Mixture of experts": ("mixture_of_experts",),
    "Another shape at every step": ("other_shapes_every_step",),
    "Several models in one step": ("several_models",),
    "Anomaly mode, the profiler": ("anomaly_mode", "under_the_profiler"),
    "`torch.set_num_threads` midway": ("changing_thread_count",),
    "Deep copies, `state_dict`, `torch.save` in the middle of a step": ("saved_in_the_middle",),
    "Values kept by closures and lists": ("kept_for_later",),
    "Errors that the step catches": ("an_error_that_is_caught",),
    "Custom operators": ("custom_operators",),
    "Fused attention, dropout, own generators": ("attention_and_transformer", "own_generator"),
    "Running statistics of every norm, buffers that are not saved": (
        "batch_statistics",
        "buffers_not_saved",
    ),
    "Three-dimensional convolutions": ("unet_3d",),
    "Learning rates that are tensors": ("learning_rate_tensor",),
}

# Programs around steps: line of docs/compatibility.md -> tests: file, function, parameters.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "C++ autograd Functions": ("test_native_code.test_trains_as_without_poet[cpp_function-*]",),
    "Python autograd Functions that call C++": (
        "test_native_code.test_trains_as_without_poet[python_function-*]",
        "test_native_code.test_trains_as_without_poet[reads_saved_tensors-*]",
    ),
    "A CPU operator of a C++ extension, also one in place": (
        "test_native_code.test_trains_as_without_poet[custom_operator-*]",
        "test_native_code.test_trains_as_without_poet[custom_operator_in_place-*]",
    ),
    "A submodule compiled by Inductor": (
        "test_native_code.test_trains_as_without_poet[compiled_by_inductor-*]",
    ),
    "Two wrapped steps in turn": (
        "test_compatibility_programs.test_two_wrapped_steps_in_turn",
        "test_other_threads.test_two_wrapped_steps_share_what_both_page[False]",
    ),
    "Two wrapped steps on two threads": (
        "test_compatibility_programs.test_two_steps_on_two_threads",
        "test_other_threads.test_two_wrapped_steps_share_what_both_page[True]",
        "test_other_threads.test_a_wrapped_step_hears_what_another_wrapped_step_writes",
    ),
    "A wrapped step within a wrapped step": (
        "test_wrap.test_a_wrapped_step_inside_a_wrapped_step_runs_plainly",
    ),
    "Threads of the program that share tensors with a step": (
        "test_other_threads.test_what_another_thread_does_costs_no_bit[*",
    ),
    "DataLoader workers": (
        "test_compatibility_programs.test_loader_workers_are_forked_between_planned_steps",
    ),
    "`os.fork`": (
        "test_threads_forks_exits.test_a_process_ends_well[fork]",
        "test_paging_programs.test_a_fork_has_what_is_away_and_both_train_on[*",
    ),
    "Evaluation and inference-mode passes between two steps": (
        "test_paging_programs.test_an_evaluation_between_two_steps_reads_what_is_away[*",
    ),
    "Resuming from a checkpoint file under another plan, another budget": (
        "test_compatibility_programs.test_resuming_from_a_file_under_another_plan",
        "test_compatibility_programs."
        "test_resuming_from_a_file_in_another_process_under_another_budget",
    ),
}

# ---------------------------------------------------------------- what is not so

_OTHER_OPS = (
    "A step whose ops are other ones at every call (L-BFGS, a mixture of experts, another shape "
    "each time) seldom meets its plan: it trains without one, and goes above a tight budget then "
    "as first calls do."
)
_MADE_ANEW = (
    "Where a custom operator, or one that writes in place, makes something else in a planned step "
    "than was recorded, the rest of that call runs without a cap, and nothing is said of what it "
    "takes. (PyTorch's own whose results depend on the data, such as `nonzero`, leave the plan and "
    "keep the budget.)"
)
_ELSEWHERE = (
    "Where an optimizer's history is in other tensors in each call (L-BFGS), calls that follow the "
    "plan may go above their budget: they are counted and told of."
)
# Kinds whose planned calls may go above their budget, and why.
ABOVE_IN_A_PLAN = {"lbfgs": _ELSEWHERE}

_ALL = ("0.5", "0.5 paging", "0.3", "0.3 paging")
_TIGHT = ("0.3",)
# The kinds whose first call may go above its budget, and tells of it: why -> at which budgets.
FIRST_CALLS_ABOVE: dict[str, dict[str, tuple[str, ...]]] = {
    "First calls go above these budgets because no plan keeps them either": {
        "batch_statistics": _ALL,
        "complex_numbers": ("0.3", "0.3 paging"),
        "custom_operators": ("0.5", "0.3"),
        "dirty_function": _TIGHT,
        "fp16_scaler": ("0.5", "0.3", "0.3 paging"),
        "frozen_layers": ("0.5", "0.3", "0.3 paging"),
        "hessian_vector_product": _TIGHT,
        "in_place_chains": ("0.5", "0.3", "0.3 paging"),
        "lbfgs": _TIGHT,
        "low_rank_adapters": _TIGHT,
        "numpy_in_a_function": _TIGHT,
        "own_generator": _TIGHT,
        "per_sample_gradients": ("0.5", "0.3"),
        "quantization_aware": ("0.5", "0.3", "0.3 paging"),
        "saved_tensor_hooks": _TIGHT,
        "spectral_channels_last": _ALL,
        "stochastic_weight_averaging": _TIGHT,
        "tensor_and_module_hooks": _TIGHT,
        "tied_weights": ("0.3", "0.3 paging"),
        "unet_3d": _ALL,
        "views_of_every_kind": _ALL,
    },
    "First calls go above these budgets because the policy does not look ahead, and may have "
    "nothing left by then that could go": {
        "accumulation": _TIGHT,
        "an_error_that_is_caught": _TIGHT,
        "anomaly_mode": _TIGHT,
        "changing_thread_count": _TIGHT,
        "checkpoint_inside": _ALL,
        "custom_function_and_ema": _TIGHT,
        "data_dependent_branches": _TIGHT,
        "dispatch_subclass": _TIGHT,
        "evaluation_between": _TIGHT,
        "function_subclass": _TIGHT,
        "gan": ("0.5", "0.3", "0.3 paging"),
        "in_place_chains": ("0.5 paging",),
        "kept_for_later": _TIGHT,
        "lbfgs": ("0.5",),
        "learning_rate_tensor": _TIGHT,
        "low_rank_adapters": ("0.5",),
        "lstm": ("0.5", "0.3"),
        "no_sync": _TIGHT,
        "old_norms": _TIGHT,
        "optimizer_in_backward": ("0.3", "0.3 paging"),
        "other_shapes_every_step": _TIGHT,
        "own_generator": ("0.5", "0.3 paging"),
        "parameter_data_swapped": _TIGHT,
        "parametrized": _TIGHT,
        "per_sample_gradients": ("0.5 paging", "0.3 paging"),
        "pruned": _TIGHT,
        "quantization_aware": ("0.5 paging",),
        "recurrent_nets": ("0.5", "0.3", "0.3 paging"),
        "resize_and_set": _TIGHT,
        "retained_graph": _TIGHT,
        "saved_tensor_hooks": ("0.3 paging",),
        "stochastic_weight_averaging": ("0.3 paging",),
        "tensor_and_module_hooks": ("0.3 paging",),
    },
    "First calls go above these budgets because memory is taken between operators (deep copies, "
    "`torch.save`)": {"saved_in_the_middle": _ALL},
}

# What docs/compatibility.md says of what is not so.
LIMITS = (
    "A step without a plan (its first calls, new shapes or branches, what follows a departure) "
    "takes more time inside a budget than a plan does, and may go above a tight one: see "
    "`docs/online.md`.",
    _MADE_ANEW,
    _OTHER_OPS,
    _ELSEWHERE,
    *(
        f"{why}: " + "; ".join(f"`{kind}` ({', '.join(at)})" for kind, at in kinds.items()) + "."
        for why, kinds in FIRST_CALLS_ABOVE.items()
    ),
    "Sparse, nested, quantized and mkldnn tensors, and what they are made of, stay in memory.",
    "What `torch.load` made before `import poet`, or maps from a file (`mmap=True`), looks like "
    "what NumPy shares, and stays in memory.",
    "What is made of memory that others may write at any time (a tensor of `torch.from_numpy`, "
    "`torch.frombuffer` or DLPack; one whose `numpy()` the program has taken) stays "
    "in memory or is paged: it is not computed again. `batch.clone()` is PyTorch's own; so is what "
    "`torch.stack` or a DataLoader's worker made. Parameters are excepted under a plan: recorded "
    "calls compare what they hold, and where somebody writes them so, what reads them stays too.",
    "What collectives (`torch.distributed`) are given stays in memory.",
    "A shape of the batch that was never met has no plan at its first call, only the online "
    "policy: how large its values are is not known before its operators have run. The plan of the "
    "nearest larger shape is lent to it from its second call on, once the simulator has found it "
    "inside the budget at the new sizes.",
    "A step that writes to another place of a buffer at every call (a queue of keys) is another "
    "step for each place.",
    "A compiled submodule is tried with the `aot_eager` back end, and with Inductor in "
    "`tests/python/test_native_code.py`; what Inductor's kernels write in place stays in memory.",
    "What native code writes into an operator's result (an extension that fills "
    "`torch::empty_like`) is found where it does so in the calls that are recorded; it stays in "
    "memory from then on.",
    "An operator that raises, and whose error the step catches, is part of a plan once it has "
    "raised in two recorded calls.",
    "A fork reads what was away when it began from its parent's page file, which the parent goes "
    "on to write: what the fork has not touched before the parent's next call may be lost to it, "
    "with a `StoreError`. `step.close()` before the fork, or touching it there first, keeps it. "
    "A DataLoader's worker that loads data touches none of it.",
    "Operators on threads that Python started before `import poet`, and on native threads, are not "
    "heard: what they write in place may change what is computed again.",
    "Native code that keeps a pointer to a tensor's memory must be told of by `poet.keep(tensor)`; "
    "else it may get an error that says so, once: where that ends the call, what was read stays in "
    "memory in later ones. A pointer that was taken before `poet.wrap` and is written through "
    "later writes into memory that paging has given back: a crash, or wrong numbers.",
    "What native code reads behind a view: where a plan foresees the view (`view`, `slice`, `t`, "
    "`expand`, ...; not `detach` and `alias`), nothing comes back for it, only for an operator "
    "that reads, and a raw read gets that error. A view that no plan foresees, or in a call "
    "without a plan, brings its memory back. What looks at a shape alone (`empty_like`) never "
    "does.",
)

KINDS: dict[str, Callable[[], Case]] = {
    name: zoo.KINDS[name] if name in zoo.KINDS else globals()[name]
    for names in FEATURES.values()
    for name in names
}


# ---------------------------------------------------------------- what tests leave out, and why

# Kinds that follow no plan of poet.wrap.
UNPLANNED: dict[str, str] = {}
# Kinds that two plain runs on two threads do not train to the same bits.
PLAIN_RUNS_DIFFER: dict[str, str] = {}

_OPAQUE = "the meter, PyTorch's profiler, does not see the memory of such tensors as poet counts it"
_COMPILED = "what the compiler keeps of an earlier call lies in memory, or does not"
UNMEASURED = {
    "under_the_profiler": "the meter is PyTorch's profiler, and there is one at a time",
    "nested_tensors": _OPAQUE,
    "strided_nested_tensors": _OPAQUE,
    "mkldnn_teacher": _OPAQUE,
    "quantized_teacher": _OPAQUE,
    "sparse_adam": _OPAQUE,
    "sparse_embedding": _OPAQUE,
    "sparse_matrices": _OPAQUE,
    "scripted_and_traced": _COMPILED,
    "compiled_submodule": _COMPILED,
}

_GARBAGE = "garbage in cycles goes when the collector runs: no plan has its figures"
UNSEEN = {
    "nested_tensors": _GARBAGE,
    "strided_nested_tensors": _GARBAGE,
    "saved_in_the_middle": "copies of storages are shown by no operator: they are in no plan",
}

_KEPT = "what is recorded depends on what an earlier step has compiled or cached"
WARM_UP = {"compiled_submodule": _KEPT, "nested_tensors": _KEPT, "scripted_and_traced": _KEPT}

OTHER_LIFETIMES = {
    "custom_operators": "what NumPy shares is held until its holder lets go, which is later under "
    "the policy",
    "no_sync": "what a collective works on is held until gloo's own thread lets go (seen once, "
    "under load)",
}

LATER_START = {
    "no_sync": "the reducer's buckets count once an operator shows them, within the first call"
}

SEVERAL_STREAMS = {"accumulation": "it is another stream of operators at every third call"}

# What -> kind -> why.
EXCLUDED: dict[str, dict[str, str]] = {
    "plans of `poet.wrap`": UNPLANNED,
    "bits on two threads": PLAIN_RUNS_DIFFER,
    "memory measured from outside (what poet counts itself is looked at)": UNMEASURED,
    "figures of the self-checking mode": UNSEEN,
    "recordings compared without a warm-up": WARM_UP,
    "lifetimes compared of values that stay": OTHER_LIFETIMES,
    "a budget counted from before the first call; memory measured under `poet.wrap`": LATER_START,
    "one signature for all calls": SEVERAL_STREAMS,
}
