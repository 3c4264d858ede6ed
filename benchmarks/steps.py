"""The training steps that benchmarks and demo measure: an architecture, plain or checkpointed.

Everything that knows a model stands here (and in demo/); poet itself knows none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    import poet

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Architecture:
    """A model that can be built, cut into blocks and fed.

    Attributes:
        build: makes the model, from PyTorch's default generator.
        blocks: the parts that checkpointing treats as one.
        batch: one random batch of inputs and classes, from the generator that it is given.
    """

    build: Callable[[], nn.Module]
    blocks: Callable[[nn.Module], list[nn.Module]]
    batch: Callable[[torch.Generator], Batch]


def resnet18_cifar(channels: int = 3, classes: int = 10) -> nn.Module:
    """MONAI's ResNet-18 with the stem for images of 32 by 32: stride 1, no pooling."""
    from monai.networks.nets.resnet import resnet18  # noqa: PLC0415  heavy: seconds

    model: nn.Module = resnet18(
        spatial_dims=2,
        n_input_channels=channels,
        num_classes=classes,
        conv1_t_size=3,
        conv1_t_stride=1,
        no_max_pool=True,
    )
    return model


def _residual_blocks(model: nn.Module) -> list[nn.Module]:
    layers = [getattr(model, f"layer{number}") for number in (1, 2, 3, 4)]
    return [block for layer in layers for block in layer]


def _images(generator: torch.Generator) -> Batch:
    images = torch.randn(32, 3, 32, 32, generator=generator)
    return images, torch.randint(0, 10, (32,), generator=generator)


def mlp() -> nn.Module:
    """Three wide layers with dropout: small, random, and quick enough for tests."""
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1)) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(256, 10))


def _mlp_batch(generator: torch.Generator) -> Batch:
    rows = torch.randn(512, 256, generator=generator)
    return rows, torch.randint(0, 10, (512,), generator=generator)


ARCHITECTURES = {
    "resnet18": Architecture(resnet18_cifar, _residual_blocks, _images),
    "mlp": Architecture(mlp, lambda model: list(model.children())[:3], _mlp_batch),
}


class Training:
    """A model with its optimizer, and the step that trains them.

    Two of the same architecture and seed begin with the same bits, checkpointed or not.
    """

    def __init__(
        self,
        architecture: str,
        *,
        checkpointed: bool = False,
        with_optimizer: bool = True,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> None:
        parts = ARCHITECTURES[architecture]
        torch.manual_seed(seed)
        self.model = parts.build()
        if checkpointed:
            for block in parts.blocks(self.model):
                checkpoint_block(block)
        self.optimizer: torch.optim.Optimizer | None = None
        if with_optimizer:
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=learning_rate, foreach=False
            )

    def step(self, inputs: Tensor, classes: Tensor) -> Tensor:
        """One training step: forward, backward, and the optimizer's step where there is one."""
        self.model.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(inputs), classes)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()

    def wrapped(self, ram_budget: int, time_limit_s: float = 60) -> poet.WrappedStep:
        """The step, made to train inside a budget in bytes; waits for its plan."""
        import poet  # noqa: PLC0415  plain processes are to be free of it

        return poet.wrap(
            self.step, ram_budget=ram_budget, background=False, time_limit_s=time_limit_s
        )

    def state(self) -> dict[str, Tensor]:
        """Every tensor that lasts from one step to the next, by group and name."""
        return dict(self._state())

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        names: dict[Tensor, str] = {}
        for name, parameter in self.model.named_parameters():
            names[parameter] = name
            yield f"parameter {name}", parameter.detach()
            if parameter.grad is not None:
                yield f"gradient {name}", parameter.grad
        for name, buffer in self.model.named_buffers():
            yield f"buffer {name}", buffer
        if self.optimizer is not None:
            for owner, entries in self.optimizer.state.items():
                for key, entry in entries.items():
                    if isinstance(entry, Tensor):
                        yield f"optimizer {names[owner]} {key}", entry


def checkpoint_block(block: nn.Module) -> None:
    """Lets PyTorch's checkpointing drop and recompute what happens inside a block."""
    forward: Callable[..., Any] = block.forward
    block.forward = functools.partial(checkpoint, forward, use_reentrant=False)


def batches(architecture: str, seed: int = 1) -> Iterator[Batch]:
    """Endless random batches, the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield ARCHITECTURES[architecture].batch(generator)


def resident_bytes(state: dict[str, Tensor]) -> int:
    """Bytes of the storages behind these tensors, each counted once."""
    storages = [tensor.untyped_storage() for tensor in state.values()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def fixed_bytes(training: Training) -> int:
    """S: what no schedule of a step with AdamW can make go away.

    Parameters, buffers, gradients, the optimizer's state, and twice the largest parameter for the
    two temporaries that AdamW holds at once. Measured from the live objects, so after a step.
    """
    largest = max(p.untyped_storage().nbytes() for p in training.model.parameters())
    return resident_bytes(training.state()) + 2 * largest


def budget_at(slack: float, fixed: int, plain_peak: int) -> int:
    """The budget in bytes at a slack: 1 is the plain step's peak, 0 is S."""
    return round(fixed + slack * (plain_peak - fixed))
