"""Architectures that only the planner's benchmarks trace: built from their configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from steps import Architecture, Batch
from torch import Tensor, nn

VOCABULARY = 2000


def _no_checkpoint(model: nn.Module) -> None:
    raise ValueError(f"{type(model).__name__} is not measured with checkpoints")


def _images(
    batch: int, *shape: int, classes: int = 10
) -> Callable[[torch.Generator], Iterator[Batch]]:
    def batches(generator: torch.Generator) -> Iterator[Batch]:
        while True:
            images = torch.randn(batch, *shape, generator=generator)
            yield images, torch.randint(0, classes, (batch,), generator=generator)

    return batches


def _tokens(batch: int, length: int) -> Callable[[torch.Generator], Iterator[Batch]]:
    def batches(generator: torch.Generator) -> Iterator[Batch]:
        while True:
            yield (torch.randint(0, VOCABULARY, (batch, length), generator=generator),)

    return batches


def _labelled_tokens(batch: int, length: int) -> Callable[[torch.Generator], Iterator[Batch]]:
    def batches(generator: torch.Generator) -> Iterator[Batch]:
        while True:
            tokens = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
            yield tokens, torch.randint(0, 2, (batch,), generator=generator)

    return batches


def _language_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def _classifier_loss(model: nn.Module, tokens: Tensor, classes: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=tokens, labels=classes).loss
    return loss


def _logits_loss(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).logits, classes)


def unet3d() -> nn.Module:
    """MONAI's U-Net on volumes: five levels, two residual units each."""
    from monai.networks.nets import UNet  # noqa: PLC0415  heavy: seconds

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
        num_labels=10,
    )
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
        decoder_start_token_id=0,
        pad_token_id=0,
        use_cache=False,
    )
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


def _tagger_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 16)


def densenet121() -> nn.Module:
    """MONAI's DenseNet-121 on small images."""
    from monai.networks.nets import DenseNet121  # noqa: PLC0415  heavy: seconds

    model: nn.Module = DenseNet121(spatial_dims=2, in_channels=3, out_channels=10)
    return model


def bert24() -> nn.Module:
    """Hugging Face's BERT as a classifier, 24 layers of 128."""
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=24,
        num_attention_heads=4,
        intermediate_size=512,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def _gpt2(layers: int, width: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        n_positions=128,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


# The step of these splits its batch; gradients accumulate.
MICRO_BATCHES = {"gpt2_micro8": 8}

ARCHITECTURES = {
    "unet3d": Architecture(unet3d, _no_checkpoint, _volumes),
    "vit": Architecture(vit, _no_checkpoint, _images(8, 3, 64, 64), _logits_loss),
    "t5": Architecture(t5, _no_checkpoint, _tokens(4, 64), _language_loss),
    "lstm": Architecture(LstmTagger, _no_checkpoint, _tokens(32, 24), _tagger_loss),
    "densenet121": Architecture(densenet121, _no_checkpoint, _images(8, 3, 64, 64)),
    "bert24": Architecture(bert24, _no_checkpoint, _labelled_tokens(4, 64), _classifier_loss),
    "gpt2_48": Architecture(lambda: _gpt2(48, 64), _no_checkpoint, _tokens(4, 64), _language_loss),
    "gpt2_micro8": Architecture(
        lambda: _gpt2(12, 64), _no_checkpoint, _tokens(16, 64), _language_loss
    ),
}
