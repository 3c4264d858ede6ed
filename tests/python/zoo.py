"""Training steps of many kinds, each built anew from a seed: what poet must train to the same bits.

A kind is a function that returns a `Case`. Sizes are small: the kinds differ in what they ask of
the recorder and the executor, not in how long they take.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import poet


@dataclasses.dataclass
class Case:
    """A step and everything that it changes."""

    step: Callable[..., Any]
    batches: Callable[[int], tuple[Any, ...]]  # arguments of call i
    modules: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    extra: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """Parameters, buffers, gradients, optimizer state, generator: name -> copy."""
        found: dict[str, Any] = {}
        for m, module in enumerate(self.modules):
            for name, value in module.state_dict().items():
                found[f"{m}.{name}"] = value.clone()
            for name, buffer in module.named_buffers():  # also those that are not saved
                found[f"{m}.{name}"] = buffer.clone()
            for name, parameter in module.named_parameters():
                gradient = parameter.grad
                found[f"{m}.{name}.grad"] = (
                    None if gradient is None else gradient.to_dense().clone()
                )
        for o, optimizer in enumerate(self.optimizers):
            for p, state in enumerate(optimizer.state.values()):
                for key, value in state.items():
                    tensor = isinstance(value, torch.Tensor)
                    copied = value.clone() if tensor else copy.deepcopy(value)
                    found[f"optimizer{o}.{p}.{key}"] = copied
        found.update({name: value.clone() for name, value in self.extra.items()})
        found["generator"] = torch.get_rng_state()
        return found


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names whose values are not equal to the bit (NaNs with the same bits are equal)."""

    def same(x: Any, y: Any) -> bool:
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            return x.dtype == y.dtype and x.shape == y.shape and _bytes(x) == _bytes(y)
        if type(x) is type(y) and isinstance(x, list | tuple):
            return len(x) == len(y) and all(map(same, x, y))
        return type(x) is type(y) and x == y

    return sorted(set(a) ^ set(b)) + [
        name for name in a if name in b and not same(a[name], b[name])
    ]


def _bytes(t: torch.Tensor) -> bytes:
    return bytes(t.detach().contiguous().view(-1).view(torch.uint8).numpy()) if t.numel() else b""


def slack_budget(graph: poet.Graph, share: float) -> int:
    """A budget: what a step cannot do without, and that share of the rest of its plain peak."""
    fixed = sum(v.bytes for v in graph.values if v.producer is None or v.death is None)
    largest = max((v.bytes for v in graph.values if v.kind == "parameter"), default=0)
    least = graph.base_bytes + fixed + 2 * largest
    return int(least + share * max(0, graph.plain_peak_bytes() - least))


def _fixed(*tensors: torch.Tensor) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda _: tensors


def _classifier(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, classes: int
) -> Case:
    y = torch.randint(0, classes, (x.shape[0],))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(x, y), [net], [optimizer])


def _residual_net(
    channels: list[int], optimizer_of: Callable[[nn.Module], torch.optim.Optimizer]
) -> Case:
    from monai.networks.nets import ResNet

    net = ResNet(
        "basic",
        [1, 1, 1, 1],
        channels,
        spatial_dims=2,
        n_input_channels=3,
        num_classes=5,
        conv1_t_size=3,
        conv1_t_stride=1,
        no_max_pool=True,
    )
    return _classifier(net, optimizer_of(net), torch.randn(4, 3, 16, 16), 5)


def residual_net() -> Case:
    """MONAI's ResNet-18, narrow: batch norm, residual additions, AdamW."""
    return _residual_net([8, 16, 32, 64], _adamw)


def _unet_3d(channels: tuple[int, ...], strides: tuple[int, ...], side: int) -> Case:
    from monai.networks.nets import UNet

    net = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=channels,
        strides=strides,
        num_res_units=1,
    )
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    x, y = torch.randn(1, 1, side, side, side), torch.randint(0, 2, (1, side, side, side))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(x, y), [net], [optimizer])


def unet_3d() -> Case:
    """MONAI's U-Net in three dimensions: skip connections, instance norm, large workspaces."""
    return _unet_3d((4, 8, 16), (2, 2), 16)


def _sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, foreach=False)


def _adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), foreach=False)


def _gpt2(
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer], rows: int, **words: int
) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **words))
    optimizer = optimizer_of(net)

    def step(tokens: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = net(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    tokens = torch.randint(0, words["vocab_size"], (rows, 32))
    return Case(step, _fixed(tokens), [net], [optimizer])


_NARROW = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}


def gpt2() -> Case:
    """Hugging Face's GPT-2 with dropout: attention, GELU, tied embeddings."""
    return _gpt2(_adamw, 2, **_NARROW)


def bert() -> Case:
    """Hugging Face's BERT for classification, gradients clipped, SGD with momentum."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    net = BertForSequenceClassification(config)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, foreach=False)

    def step(tokens: torch.Tensor, labels: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = net(input_ids=tokens, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=False)
        optimizer.step()
        return loss.item()

    return Case(
        step, _fixed(torch.randint(0, 64, (4, 16)), torch.randint(0, 2, (4,))), [net], [optimizer]
    )


class _InPlaceChain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = norm(conv(x))
            h = F.dropout(h, 0.3, training=self.training, inplace=True)
            h += x
            h.mul_(0.5)
            x = h.relu_()
        return self.head(x.mean((2, 3)))


def in_place_chains() -> Case:
    """In-place activations, dropout, additions and scalings one after another."""
    net = _InPlaceChain()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=False)
    return _classifier(net, optimizer, torch.randn(4, 4, 12, 12), 3)


def _lstm(inputs: int, hidden_size: int, lengths: torch.Tensor) -> Case:
    net = nn.ModuleDict(
        {
            "lstm": nn.LSTM(inputs, hidden_size, 2, dropout=0.2),
            "head": nn.Linear(hidden_size, 3),
        }
    )
    optimizer = torch.optim.RMSprop(net.parameters(), foreach=False)
    rows = len(lengths)
    x, y = torch.randn(int(lengths.max()), rows, inputs), torch.randint(0, 3, (rows,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        _, (hidden, _) = net["lstm"](packed)
        loss = F.cross_entropy(net["head"](hidden[-1]), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(x, y), [net], [optimizer])


def lstm() -> Case:
    """A two-layer LSTM with dropout between the layers, over a packed sequence."""
    return _lstm(6, 8, torch.tensor([7, 5, 4, 2]))


def autocast_bf16() -> Case:
    """bfloat16 autocast around the forward pass."""
    net = nn.Sequential(
        nn.Linear(32, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 4),
    )
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x, y = torch.randn(16, 32), torch.randint(0, 4, (16,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(x, y), [net], [optimizer])


def gradient_penalty() -> Case:
    """Double backward: the norm of the input gradient is part of the loss."""
    net = nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    x = torch.randn(16, 8)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        inputs = x.clone().requires_grad_()
        out = net(inputs).sum()
        (gradient,) = torch.autograd.grad(out, inputs, create_graph=True)
        loss = out + ((gradient.norm(dim=1) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(x), [net], [optimizer])


def accumulation() -> Case:
    """Gradient accumulation over three calls: three variants of the stream."""
    layers = [m for _ in range(4) for m in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))]
    net = nn.Sequential(*layers, nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x, y = torch.randn(64, 32), torch.randint(0, 4, (64,))
    calls = 0

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        calls += 1
        if calls % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Case(step, _fixed(x, y), [net], [optimizer])


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grads[0]


def custom_function_and_ema() -> Case:
    """A custom autograd Function, tensor hooks, and a moving average of the weights."""
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32))
    head = nn.Linear(32, 3)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.05, foreach=False)
    average = {name: p.detach().clone() for name, p in net.named_parameters()}
    x, y = torch.randn(32, 16), torch.randint(0, 3, (32,))

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        h = _Cube.apply(net(x))
        h.register_hook(lambda gradient: gradient * 0.5)
        loss = F.cross_entropy(head(h), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, p in net.named_parameters():
                average[name].lerp_(p, 0.1)
        return loss.item()

    return Case(step, _fixed(x, y), [net, head], [optimizer], average)


def checkpoint_inside() -> Case:
    """torch.utils.checkpoint of both kinds within the step, with dropout."""
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Dropout(0.2)) for _ in range(4)
    )
    head = nn.Linear(24, 3)
    optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()], foreach=False)
    x, y = torch.randn(32, 24), torch.randint(0, 3, (32,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        h = x.clone().requires_grad_()
        for i, block in enumerate(blocks):
            h = checkpoint(block, h, use_reentrant=i % 2 == 0)
        loss = F.cross_entropy(head(h), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(x, y), [blocks, head], [optimizer])


def gan() -> Case:
    """Two networks with an optimizer each, noise drawn within the step."""
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
    critic = nn.Sequential(
        nn.Linear(8, 32), nn.LeakyReLU(0.2, inplace=True), nn.Dropout(0.1), nn.Linear(32, 1)
    )
    return _adversaries(generator, critic, torch.randn(16, 8), (4,))


def _adversaries(
    generator: nn.Module, critic: nn.Module, real: torch.Tensor, noise: tuple[int, ...]
) -> Case:
    """The step of a GAN; `noise` is the shape of what a sample is made from."""
    of_generator = torch.optim.Adam(generator.parameters(), foreach=False)
    of_critic = torch.optim.Adam(critic.parameters(), foreach=False)

    def step(real: torch.Tensor) -> tuple[float, float]:
        fake = generator(torch.randn(real.shape[0], *noise))
        of_critic.zero_grad()
        loss_critic = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        loss_critic.backward()
        of_critic.step()
        of_generator.zero_grad()
        loss_generator = F.softplus(-critic(fake)).mean()
        loss_generator.backward()
        of_generator.step()
        return loss_critic.item(), loss_generator.item()

    return Case(step, _fixed(real), [generator, critic], [of_generator, of_critic])


def sparse_embedding() -> Case:
    """Sparse gradients of an embedding bag of words."""
    net = nn.ModuleDict(
        {
            "embed": nn.Embedding(50, 16, sparse=True),
            "mix": nn.Linear(16, 16),
            "head": nn.Linear(16, 4),
        }
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)
    words, y = torch.randint(0, 50, (8, 6)), torch.randint(0, 4, (8,))

    def step(words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        h = torch.tanh(net["mix"](net["embed"](words))).sum(1)
        loss = F.cross_entropy(net["head"](h), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(words, y), [net], [optimizer])


def spectral_channels_last() -> Case:
    """Complex numbers through an FFT, channels-last convolutions, foreach optimizer."""
    net = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.SiLU(), nn.Conv2d(6, 2, 3, padding=1)).to(
        memory_format=torch.channels_last
    )
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    x = torch.randn(3, 2, 8, 8).to(memory_format=torch.channels_last)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        spectrum = torch.fft.rfft2(net(x))
        loss = (spectrum * spectrum.conj()).real.mean() + spectrum.imag.abs().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, _fixed(x), [net], [optimizer])


KINDS: dict[str, Callable[[], Case]] = {
    kind.__name__: kind
    for kind in (
        residual_net,
        unet_3d,
        gpt2,
        bert,
        in_place_chains,
        lstm,
        autocast_bf16,
        gradient_penalty,
        accumulation,
        custom_function_and_ema,
        checkpoint_inside,
        gan,
        sparse_embedding,
        spectral_channels_last,
    )
}


def narrow_residual_net() -> Case:
    """Eight channels all through, and an optimizer of few operators."""
    return _residual_net([8, 8, 8, 8], _sgd)


def narrow_gpt2() -> Case:
    """Two layers of 32, and an optimizer of few operators."""
    return _gpt2(_sgd, 2, **_NARROW)


def full_resnet18() -> Case:
    """MONAI's ResNet-18 as it is, on small pictures."""
    from monai.networks.nets import resnet18

    net = resnet18(spatial_dims=2, n_input_channels=3, num_classes=10)
    return _classifier(net, _sgd(net), torch.randn(2, 3, 32, 32), 10)


def full_gpt2() -> Case:
    """GPT-2 with its twelve layers and heads, narrow."""
    return _gpt2(_adamw, 1, vocab_size=256, n_embd=96, n_positions=64)


def full_gan() -> Case:
    """DCGAN's generator and critic, batch norm and all, on small pictures."""
    up, down = nn.ConvTranspose2d, nn.Conv2d
    generator = nn.Sequential(
        *(up(16, 32, 4), nn.BatchNorm2d(32), nn.ReLU(inplace=True)),
        *(up(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
        *(up(16, 3, 4, 2, 1), nn.Tanh()),
    )
    critic = nn.Sequential(
        *(down(3, 16, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)),
        *(down(16, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True)),
        *(down(32, 1, 4), nn.Flatten()),
    )
    return _adversaries(generator, critic, torch.randn(8, 3, 16, 16), (16, 1, 1))


def whole_resnet18() -> Case:
    """MONAI's ResNet-18 as it is, on 16 small pictures."""
    from monai.networks.nets import resnet18

    net = resnet18(spatial_dims=2, n_input_channels=3, num_classes=10)
    return _classifier(net, _sgd(net), torch.randn(16, 3, 64, 64), 10)


def whole_gpt2() -> Case:
    """GPT-2 with its twelve layers and heads, on 8 rows."""
    return _gpt2(_adamw, 8, vocab_size=256, n_embd=96, n_positions=64)


def whole_unet_3d() -> Case:
    """MONAI's U-Net of four levels, whose values take 10 times the memory of its parameters."""
    return _unet_3d((8, 16, 32, 64), (2, 2, 2), 32)


def whole_lstm() -> Case:
    """A two-layer LSTM over 32 sequences of up to 24 steps, hundreds of operators."""
    return _lstm(32, 64, torch.arange(24, 8, -1).repeat_interleave(2))


# For every method: values that are large beside what the process holds elsewhere.
WHOLE: dict[str, Callable[[], Case]] = {
    kind.__name__: kind for kind in (whole_resnet18, whole_gpt2, whole_unet_3d, whole_lstm)
}

# For errors at every operator: short enough for CI, and as long as in the networks' papers.
SIZED: dict[str, Callable[[], Case]] = {
    kind.__name__: kind
    for kind in (narrow_residual_net, narrow_gpt2, full_resnet18, full_gpt2, full_gan)
}


def build(kind: str, seed: int = 0) -> Case:
    """The case of that name, from that seed."""
    torch.manual_seed(seed)
    case = (KINDS | SIZED | WHOLE)[kind]()
    torch.manual_seed(seed + 1)
    return case


def run(case: Case, step: Callable[..., Any], calls: int, first: int = 0) -> Iterator[Any]:
    """The results of `calls` calls of `step`."""
    for i in range(first, first + calls):
        yield step(*case.batches(i))


def plain(kind: str, calls: int) -> tuple[list[Any], dict[str, Any]]:
    """Results and state after plain training."""
    case = build(kind)
    results = list(run(case, case.step, calls))
    return results, case.state()
