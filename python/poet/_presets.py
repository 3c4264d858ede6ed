"""Networks that `poet.solve(model="name")` knows: real modules, with a batch and a loss."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from poet import _preset_networks as networks
from poet._errors import PoetRuntimeError
from poet._names import unknown_name

_WORDS = 1000  # tokens are drawn from the first of each vocabulary


@dataclass(frozen=True)
class Preset:
    """A network, what it is fed with, and how its loss is taken.

    Attributes:
        name: as `model=` takes it.
        title: for people, with the paper.
        build: makes the module, its weights random.
        parameters: number of trainable parameters, as published (tested).
        batch: the tensors of one step for a batch size, from a generator.
        loss: of the module and those tensors.
        paper_graph: whether POET's own code has a layer graph of that name.
    """

    name: str
    title: str
    build: Callable[[], nn.Module]
    parameters: int
    batch: Callable[[int, torch.Generator], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    paper_graph: bool = False


def preset_names() -> list[str]:
    """Names of all presets, in the order in which they are listed."""
    return list(_PRESETS)


def find_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        ArgumentError: there is none; the message offers the nearest names.
    """
    if name not in _PRESETS:
        raise unknown_name(
            "model",
            "a preset",
            name,
            preset_names(),
            "or an nn.Module, a wrapped step, a Graph or the path of a graph file",
        )
    return _PRESETS[name]


# ---- batches and losses ------------------------------------------------------------------------

_Batch = Callable[[int, torch.Generator], tuple[Tensor, ...]]


def _images(*shape: int, classes: int) -> _Batch:
    def batch(size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        pixels = torch.randn(size, *shape, generator=generator)
        return pixels, torch.randint(0, classes, (size,), generator=generator)

    return batch


def _masks(side: int) -> _Batch:
    def batch(size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        pixels = torch.randn(size, 1, side, side, generator=generator)
        return pixels, torch.randint(0, 2, (size, side, side), generator=generator)

    return batch


def _tokens(length: int, *, classes: int | None = None) -> _Batch:
    def batch(size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        tokens = torch.randint(0, _WORDS, (size, length), generator=generator)
        if classes is None:
            return (tokens,)
        return tokens, torch.randint(0, classes, (size,), generator=generator)

    return batch


def _vectors(length: int, width: int) -> _Batch:
    """Embedded tokens, and a class out of `width` for each."""

    def batch(size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        embedded = torch.randn(size, length, width, generator=generator)
        return embedded, torch.randint(0, width, (size * length,), generator=generator)

    return batch


def _classifier_loss(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), classes)


def _logits_loss(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).logits, classes)


def _tokens_loss(model: nn.Module, embedded: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(embedded).flatten(0, 1), classes)


def _text_class_loss(model: nn.Module, tokens: Tensor, classes: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=tokens, labels=classes).loss
    return loss


def _language_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


# ---- Hugging Face's modules, from their configurations: nothing is fetched ---------------------


def _transformers(name: str) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers  # noqa: PLC0415  heavy: seconds
    except ImportError as error:
        raise PoetRuntimeError(
            f"model: the preset {name!r} is made of Hugging Face's modules, and the package "
            "transformers is not installed: pip install 'transformers>=4.50'."
        ) from error
    return transformers


def _huggingface(name: str, config: str, model: str, /, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        library = _transformers(name)
        labels = options.get("num_labels")
        made = getattr(library, config)(**{k: v for k, v in options.items() if k != "num_labels"})
        if labels is not None:
            made.num_labels = labels
        module: nn.Module = getattr(library, model)(made)
        return module

    return build


def _resnet(depths: tuple[int, ...], layer: str, widths: tuple[int, ...]) -> dict[str, Any]:
    return {"depths": depths, "layer_type": layer, "hidden_sizes": widths, "num_labels": 1000}


def _transformer_layer() -> nn.Module:
    # GELU is BERT's; POET's graph has ReLU, which costs and keeps the same.
    return nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)


_IMAGENET = _images(3, 224, 224, classes=1000)
_CIFAR = _images(3, 32, 32, classes=10)

_PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "linear",
            "six linear layers on 784 inputs (POET)",
            networks.linear_network,
            43_590,
            _images(784, classes=10),
            _classifier_loss,
            paper_graph=True,
        ),
        Preset(
            "vgg16",
            "VGG-16 on ImageNet (Simonyan and Zisserman, 2015)",
            lambda: networks.vgg16(classes=1000, side=224),
            138_357_544,
            _IMAGENET,
            _classifier_loss,
            paper_graph=True,
        ),
        Preset(
            "vgg16_cifar",
            "VGG-16 on CIFAR-10 (POET)",
            lambda: networks.vgg16(classes=10, side=32),
            33_638_218,
            _CIFAR,
            _classifier_loss,
            paper_graph=True,
        ),
        Preset(
            "resnet18",
            "ResNet-18 on ImageNet (He et al., 2016)",
            _huggingface(
                "resnet18",
                "ResNetConfig",
                "ResNetForImageClassification",
                **_resnet((2, 2, 2, 2), "basic", (64, 128, 256, 512)),
                embedding_size=64,
            ),
            11_689_512,
            _IMAGENET,
            _logits_loss,
            paper_graph=True,
        ),
        Preset(
            "resnet18_cifar",
            "residual network on CIFAR-10, 16 to 64 channels (POET; 248,746 with statistics)",
            networks.resnet18_cifar,
            247_370,
            _CIFAR,
            _classifier_loss,
            paper_graph=True,
        ),
        Preset(
            "resnet18_cifar_wide",
            "ResNet-18 of 64 to 512 channels on CIFAR-10",
            networks.resnet18_cifar_wide,
            11_173_962,
            _CIFAR,
            _classifier_loss,
        ),
        Preset(
            "resnet50",
            "ResNet-50 on ImageNet (He et al., 2016)",
            _huggingface(
                "resnet50",
                "ResNetConfig",
                "ResNetForImageClassification",
                **_resnet((3, 4, 6, 3), "bottleneck", (256, 512, 1024, 2048)),
                embedding_size=64,
            ),
            25_557_032,
            _IMAGENET,
            _logits_loss,
            paper_graph=True,
        ),
        Preset(
            "bert",
            "BERT base, two classes, 512 tokens (Devlin et al., 2019)",
            _huggingface("bert", "BertConfig", "BertForSequenceClassification", num_labels=2),
            109_483_778,
            _tokens(512, classes=2),
            _text_class_loss,
            paper_graph=True,
        ),
        Preset(
            "transformer",
            "one encoder layer of BERT base on 512 embedded tokens",
            _transformer_layer,
            7_087_872,
            _vectors(512, 768),
            _tokens_loss,
            paper_graph=True,
        ),
        Preset(
            "gpt2",
            "GPT-2 small, 256 tokens (Radford et al., 2019)",
            _huggingface("gpt2", "GPT2Config", "GPT2LMHeadModel", use_cache=False),
            124_439_808,
            _tokens(256),
            _language_loss,
        ),
        Preset(
            "vit",
            "ViT-B/16 on ImageNet (Dosovitskiy et al., 2021)",
            _huggingface("vit", "ViTConfig", "ViTForImageClassification", num_labels=1000),
            86_567_656,
            _IMAGENET,
            _logits_loss,
        ),
        Preset(
            "unet",
            "U-Net with padding on images of 128 by 128 (Ronneberger et al., 2015)",
            networks.UNet,
            31_030_658,
            _masks(128),
            _classifier_loss,
        ),
        Preset(
            "mobilenet_v2",
            "MobileNetV2 on ImageNet (Sandler et al., 2018)",
            _huggingface(
                "mobilenet_v2",
                "MobileNetV2Config",
                "MobileNetV2ForImageClassification",
                num_labels=1000,
            ),
            3_504_872,
            _IMAGENET,
            _logits_loss,
        ),
        Preset(
            "mcunet_sized",
            "MobileNetV2 of width 0.35 on 96 by 96 pixels: the size of MCUNet (Lin et al., 2020)",
            _huggingface(
                "mcunet_sized",
                "MobileNetV2Config",
                "MobileNetV2ForImageClassification",
                depth_multiplier=0.35,
                finegrained_output=True,
                num_labels=10,
            ),
            408_938,
            _images(3, 96, 96, classes=10),
            _logits_loss,
        ),
        Preset(
            "distilbert",
            "DistilBERT base, two classes, 128 tokens (Sanh et al., 2019)",
            _huggingface(
                "distilbert",
                "DistilBertConfig",
                "DistilBertForSequenceClassification",
                num_labels=2,
            ),
            66_955_010,
            _tokens(128, classes=2),
            _text_class_loss,
        ),
    )
}

__all__ = ["Preset", "find_preset", "preset_names"]
