"""Architectures that only the planner's benchmarks trace: built from their configurations."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steps import (
    VOCABULARY,
    Architecture,
    Batch,
    bert,
    checkpoint_layers,
    classifier_loss,
    gpt2,
    images,
    labelled_texts,
    language_loss,
    texts,
)


def no_checkpoint(model: nn.Module) -> None:
    raise ValueError(f"{type(model).__name__} is not measured with checkpoints")


def logits_loss(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).logits, classes)


def unet3d() -> nn.Module:
    """MONAI's U-Net on volumes: five levels, two residual units each."""
    from monai.networks.nets.unet import UNet  # noqa: PLC0415  heavy: seconds

    model: nn.Module = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=(8, 16, 32, 64, 128),
        strides=(2, 2, 2, 2),
        num_res_units=2,
    )
    return model


def _volumes(generator: torch.Generator) -> Iterator[Batch]:
    while True:
        volumes = torch.randn(2, 1, 32, 32, 32, generator=generator)
        yield volumes, torch.randint(0, 2, (2, 32, 32, 32), generator=generator)


def vit() -> nn.Module:
    """Hugging Face's ViT as a classifier, six layers of 192."""
    from transformers import ViTConfig, ViTForImageClassification  # noqa: PLC0415

    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=768,
        image_size=64,
        patch_size=8,
    )
    config.num_labels = 10
    model: nn.Module = ViTForImageClassification(config)
    return model


def t5() -> nn.Module:
    """Hugging Face's T5, four layers of 192 on each side."""
    from transformers import T5Config, T5ForConditionalGeneration  # noqa: PLC0415

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=192,
        d_kv=32,
        d_ff=768,
        num_layers=4,
        num_heads=6,
        pad_token_id=0,
        use_cache=False,
    )
    config.decoder_start_token_id = 0
    model: nn.Module = T5ForConditionalGeneration(config)
    return model


class LstmTagger(nn.Module):
    """PyTorch's LSTM cell, step by step: embedding, two layers, a class for each token."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.cells = nn.ModuleList([nn.LSTMCell(width, width) for _ in range(2)])
        self.head = nn.Linear(width, 16)
        self.width = width

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens)
        zeros = embedded.new_zeros(tokens.shape[0], self.width)
        states = [(zeros, zeros) for _ in self.cells]
        outputs = []
        for t in range(tokens.shape[1]):
            hidden = embedded[:, t]
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(hidden, states[layer])
                hidden = states[layer][0]
            outputs.append(self.head(hidden))
        return torch.stack(outputs, dim=1)


def tagger_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 16)


def densenet121() -> nn.Module:
    """MONAI's DenseNet-121 on small images."""
    from monai.networks.nets.densenet import DenseNet121  # noqa: PLC0415  heavy: seconds

    model: nn.Module = DenseNet121(spatial_dims=2, in_channels=3, out_channels=10)
    return model


# The step of these splits its batch; gradients accumulate.
MICRO_BATCHES = {"gpt2_micro8": 8}

ARCHITECTURES = {
    "unet3d": Architecture(unet3d, no_checkpoint, _volumes),
    "vit": Architecture(vit, checkpoint_layers, images(8, 3, 64, 64), logits_loss),
    "t5": Architecture(t5, checkpoint_layers, texts(4, 64), language_loss),
    "lstm": Architecture(LstmTagger, no_checkpoint, texts(32, 24), tagger_loss),
    "densenet121": Architecture(densenet121, no_checkpoint, images(8, 3, 64, 64)),
    # 24 layers of 128.
    "bert24": Architecture(
        functools.partial(bert, 24, 128, 4),
        checkpoint_layers,
        labelled_texts(4, 64),
        classifier_loss,
    ),
    "gpt2_48": Architecture(
        functools.partial(gpt2, 48, 64, 4), checkpoint_layers, texts(4, 64), language_loss
    ),
    "gpt2_micro8": Architecture(
        functools.partial(gpt2, 12, 64, 4), checkpoint_layers, texts(16, 64), language_loss
    ),
}
