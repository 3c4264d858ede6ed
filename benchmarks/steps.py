"""The training steps that benchmarks and demo measure: an architecture, plain or checkpointed.

Everything that knows a model stands here (and in demo/); poet itself knows none.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import _minilm
import _optimizers

if TYPE_CHECKING:
    import poet

# Nothing is ever fetched: models are built from their configuration, or from installed packages.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

Batch = tuple[Tensor, ...]
Batches = Callable[[torch.Generator], Iterator[Batch]]  # endless

VOCABULARY = 2000


def _cross_entropy(model: nn.Module, *batch: Tensor) -> Tensor:
    """The loss of a classifier; the batch's last tensor holds the classes."""
    *inputs, classes = batch
    return F.cross_entropy(model(*inputs), classes)


@dataclass(frozen=True)
class Architecture:
    """A model that can be built, checkpointed and fed.

    Attributes:
        build: makes the model, from PyTorch's default generator.
        checkpoint: makes PyTorch's checkpointing drop and recompute every block of it.
        batches: endless batches, random from the generator that it is given.
        loss: of the model and a batch.
    """

    build: Callable[[], nn.Module]
    checkpoint: Callable[[nn.Module], None]
    batches: Batches
    loss: Callable[..., Tensor] = _cross_entropy


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


def _checkpoint_residual_blocks(model: nn.Module) -> None:
    for number in (1, 2, 3, 4):
        for block in getattr(model, f"layer{number}"):
            checkpoint_block(block)


def images(batch: int, *shape: int) -> Batches:
    """Random images of that shape (channels first) with one of ten classes each."""

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        while True:
            pixels = torch.randn(batch, *shape, generator=generator)
            yield pixels, torch.randint(0, 10, (batch,), generator=generator)

    return batches


def gpt2(layers: int = 6, width: int = 256, heads: int = 8) -> nn.Module:
    """Hugging Face's GPT-2, its dropout on."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415  heavy: seconds

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_positions=128,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,  # keys and values are for generating; in training they only hold memory
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def language_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Of a model that predicts its own tokens."""
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def texts(batch: int, length: int) -> Batches:
    """Random tokens."""

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        while True:
            yield (torch.randint(0, VOCABULARY, (batch, length), generator=generator),)

    return batches


def bert(layers: int = 6, width: int = 256, heads: int = 8) -> nn.Module:
    """Hugging Face's BERT as a classifier, its dropout on."""
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def classifier_loss(model: nn.Module, tokens: Tensor, classes: Tensor) -> Tensor:
    """Of a model that gives each text a class."""
    loss: Tensor = model(input_ids=tokens, labels=classes).loss
    return loss


def labelled_texts(batch: int, length: int) -> Batches:
    """Random tokens with one of two classes for each text."""

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        while True:
            tokens = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
            yield tokens, torch.randint(0, 2, (batch,), generator=generator)

    return batches


def checkpoint_layers(model: Any) -> None:
    """As Hugging Face's models offer it: each of their layers is dropped and recomputed."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def mlp() -> nn.Module:
    """Three wide layers with dropout: small, random, and quick enough for tests."""
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1)) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(256, 10))


def _checkpoint_first_three(model: nn.Module) -> None:
    for block in list(model.children())[:3]:
        checkpoint_block(block)


def _rows(generator: torch.Generator) -> Iterator[Batch]:
    while True:
        rows = torch.randn(512, 256, generator=generator)
        yield rows, torch.randint(0, 10, (512,), generator=generator)


ARCHITECTURES = {
    "resnet18": Architecture(resnet18_cifar, _checkpoint_residual_blocks, images(32, 3, 32, 32)),
    "gpt2": Architecture(gpt2, checkpoint_layers, texts(4, 128), language_loss),
    "bert": Architecture(bert, checkpoint_layers, labelled_texts(4, 128), classifier_loss),
    "minilm": Architecture(
        _minilm.minilm, lambda model: checkpoint_layers(model.encoder), _minilm.sentences
    ),
    "mlp": Architecture(mlp, _checkpoint_first_three, _rows),
}


class Training:
    """A model with its optimizer, and the step that trains them.

    Two of the same architecture and seed begin with the same bits, checkpointed or not.

    `compiled`: model and loss go through torch.compile with this activation_memory_budget, the
    share of the activations that its partitioner may keep for the backward pass.
    """

    def __init__(
        self,
        architecture: str | Architecture,
        *,
        checkpointed: bool = False,
        compiled: float | None = None,
        optimizer: str | None = "adamw",
        learning_rate: float | None = None,
        seed: int = 0,
    ) -> None:
        parts = ARCHITECTURES[architecture] if isinstance(architecture, str) else architecture
        torch.manual_seed(seed)
        self.model = parts.build().train()
        self._loss = parts.loss
        if checkpointed:
            parts.checkpoint(self.model)
        if compiled is not None:
            torch._functorch.config.activation_memory_budget = compiled
            self._loss = torch.compile(parts.loss)
        self.optimizer_name = optimizer
        self.optimizer: torch.optim.Optimizer | None = None
        if optimizer is not None:
            self.optimizer = _optimizers.make(optimizer, self.model.parameters(), learning_rate)

    def step(self, *batch: Tensor) -> Tensor:
        """One training step: forward, backward, and the optimizer's step where there is one."""
        self.model.zero_grad(set_to_none=True)
        loss = self._loss(self.model, *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()

    def wrapped(
        self,
        ram_budget: int,
        time_limit_s: float = 60,
        *,
        paging: bool = False,
        page_dir: str | None = None,
        minimize: str = "energy",
    ) -> poet.WrappedStep:
        """The step, made to train inside a budget in bytes; waits for its plan.

        Nothing is kept from one run for the next: what is measured includes the planning.
        """
        import poet  # noqa: PLC0415  plain processes are to be free of it

        return poet.wrap(
            self.step,
            ram_budget=ram_budget,
            background=False,
            time_limit_s=time_limit_s,
            minimize=minimize,
            paging=paging,
            page_dir=page_dir if paging else None,
            cache_dir=None,
        )

    def state(self) -> dict[str, Tensor]:
        """Every tensor that lasts from one step to the next, by group and name."""
        return dict(self.each_state())

    def each_state(self) -> Iterator[tuple[str, Tensor]]:
        """As `state`, one after the other."""
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
    yield from ARCHITECTURES[architecture].batches(generator)


def resident_bytes(state: dict[str, Tensor]) -> int:
    """Bytes of the storages behind these tensors, each counted once."""
    storages = [tensor.untyped_storage() for tensor in state.values()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def fixed_bytes(training: Training) -> int:
    """S: what recomputing can make go away in no step with this optimizer.

    Parameters, buffers, gradients, the optimizer's state, and the temporaries of its step: with
    AdamW, two of the largest parameter. Measured from the live objects, so after a step.
    """
    temporaries = _optimizers.temporary_bytes(
        training.optimizer_name or "adamw", training.model.parameters()
    )
    return resident_bytes(training.state()) + temporaries


def budget_at(slack: float, fixed: int, plain_peak: int) -> int:
    """The budget in bytes at a slack: 1 is the plain step's peak, 0 is S."""
    return round(fixed + slack * (plain_peak - fixed))
