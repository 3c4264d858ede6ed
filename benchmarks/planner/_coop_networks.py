"""The kinds of network that Coop (Zhang et al., NeurIPS 2023) is measured on, at sizes for a CPU.

A convolutional classifier with residual blocks and one with branches (Inception), a supernet of
which each step trains one path (SPOS), a U-Net, a recurrent tagger in both directions, a
transformer with shifted windows, and two large language models. What packages have is built from
its configuration; Inception and the supernet are written here after their papers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _architectures import logits_loss, no_checkpoint, tagger_loss
from torch import Tensor, nn

from steps import (
    VOCABULARY,
    Architecture,
    bert,
    checkpoint_layers,
    classifier_loss,
    gpt2,
    images,
    labelled_texts,
    language_loss,
    texts,
)

_IMAGES = images(4, 3, 96, 96)


def _per_pixel_loss(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    scores: Tensor = model(inputs)
    wanted = classes[:, None, None].expand(-1, *scores.shape[2:]) % scores.shape[1]
    return F.cross_entropy(scores, wanted)


def resnet50() -> nn.Module:
    """MONAI's ResNet-50 on small images."""
    from monai.networks.nets.resnet import resnet50 as build  # noqa: PLC0415  heavy: seconds

    model: nn.Module = build(spatial_dims=2, n_input_channels=3, num_classes=10)
    return model


def unet() -> nn.Module:
    """MONAI's U-Net on images."""
    from monai.networks.nets.unet import UNet  # noqa: PLC0415  heavy: seconds

    model: nn.Module = UNet(
        spatial_dims=2,
        in_channels=3,
        out_channels=4,
        channels=(16, 32, 64, 128, 256),
        strides=(2, 2, 2, 2),
        num_res_units=2,
    )
    return model


def swin() -> nn.Module:
    """Hugging Face's Swin transformer, the depths and heads of its tiny size."""
    from transformers import SwinConfig, SwinForImageClassification  # noqa: PLC0415

    config = SwinConfig(
        image_size=96, patch_size=4, embed_dim=48, depths=[2, 2, 6, 2], window_size=3
    )
    config.num_labels = 10
    model: nn.Module = SwinForImageClassification(config)
    return model


class BiLstm(nn.Module):
    """Two layers in both directions, time step by time step, and a class for each token."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        sizes = (width, 2 * width)
        self.forwards = nn.ModuleList([nn.LSTMCell(size, width) for size in sizes])
        self.backwards = nn.ModuleList([nn.LSTMCell(size, width) for size in sizes])
        self.head = nn.Linear(2 * width, 16)
        self.width = width

    def _run(self, cell: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        zeros = inputs[0].new_zeros(inputs[0].shape[0], self.width)
        state, outputs = (zeros, zeros), []
        for each in inputs:
            state = cell(each, state)
            outputs.append(state[0])
        return outputs

    def forward(self, tokens: Tensor) -> Tensor:
        inputs = list(self.embedding(tokens).unbind(1))
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            there = self._run(forwards, inputs)
            back = self._run(backwards, inputs[::-1])[::-1]
            inputs = [torch.cat(pair, 1) for pair in zip(there, back, strict=True)]
        scores: Tensor = self.head(torch.stack(inputs, 1))
        return scores


def _conv(inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1) -> nn.Module:
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (sizes[0] // 2, sizes[1] // 2)
    conv = nn.Conv2d(inputs, outputs, sizes, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _Branches(nn.Module):
    """What its branches make, side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inputs, outputs, 1))


def _grid(inputs: int, pool: int, small: int = 5) -> nn.Module:
    """Inception V3's first kind of block: 1 x 1, 5 x 5, twice 3 x 3, pooling."""
    return _Branches(
        _conv(inputs, 64, 1),
        nn.Sequential(_conv(inputs, 48, 1), _conv(48, 64, small)),
        nn.Sequential(_conv(inputs, 64, 1), _conv(64, 96, 3), _conv(96, 96, 3)),
        _pooled(inputs, pool),
    )


def _factored(inputs: int, middle: int) -> nn.Module:
    """Its second kind: 7 x 7 as 1 x 7 and 7 x 1."""
    row, column = (1, 7), (7, 1)
    return _Branches(
        _conv(inputs, 192, 1),
        nn.Sequential(
            _conv(inputs, middle, 1), _conv(middle, middle, row), _conv(middle, 192, column)
        ),
        nn.Sequential(
            _conv(inputs, middle, 1),
            _conv(middle, middle, column),
            _conv(middle, middle, row),
            _conv(middle, middle, column),
            _conv(middle, 192, row),
        ),
        _pooled(inputs, 192),
    )


def _wide(inputs: int) -> nn.Module:
    """Its third kind: branches that branch again."""
    split = _Branches(_conv(384, 384, (1, 3)), _conv(384, 384, (3, 1)))
    deep = _Branches(_conv(384, 384, (1, 3)), _conv(384, 384, (3, 1)))
    return _Branches(
        _conv(inputs, 320, 1),
        nn.Sequential(_conv(inputs, 384, 1), split),
        nn.Sequential(_conv(inputs, 448, 1), _conv(448, 384, 3), deep),
        _pooled(inputs, 192),
    )


def inception_v3() -> nn.Module:
    """Inception V3 (Szegedy et al., CVPR 2016) without its auxiliary classifier."""
    stem = (_conv(3, 32, 3, stride=2), _conv(32, 32, 3), _conv(32, 64, 3), nn.MaxPool2d(3, 2, 1))
    first = (_conv(64, 80, 1), _conv(80, 192, 3), nn.MaxPool2d(3, 2, 1))
    grids = (_grid(192, 32), _grid(256, 64), _grid(288, 64))
    halved = _Branches(
        _conv(288, 384, 3, stride=2),
        nn.Sequential(_conv(288, 64, 1), _conv(64, 96, 3), _conv(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, 2, 1),
    )
    factored = [_factored(768, middle) for middle in (128, 160, 160, 192)]
    narrow = _Branches(
        nn.Sequential(_conv(768, 192, 1), _conv(192, 320, 3, stride=2)),
        nn.Sequential(
            _conv(768, 192, 1),
            _conv(192, 192, (1, 7)),
            _conv(192, 192, (7, 1)),
            _conv(192, 192, 3, stride=2),
        ),
        nn.MaxPool2d(3, 2, 1),
    )
    last = (_wide(1280), _wide(2048), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout())
    head = nn.Linear(2048, 10)
    return nn.Sequential(*stem, *first, *grids, halved, *factored, narrow, *last, head)


class _Choice(nn.Module):
    """A choice block of SPOS: half of the channels pass, the others go one of four ways."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        ways = [[kernel] for kernel in (3, 5, 7)] + [[3, 3, 3]]  # the last is like Xception
        self.ways = nn.ModuleList([self._way(half, kernels) for kernels in ways])
        self.chosen = 0

    @staticmethod
    def _way(channels: int, kernels: list[int]) -> nn.Module:
        layers: list[nn.Module] = []
        for kernel in kernels:
            depthwise = nn.Conv2d(
                channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False
            )
            layers += [depthwise, nn.BatchNorm2d(channels), _conv(channels, channels, 1)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, 1)
        mixed = torch.stack([kept, self.ways[self.chosen](changed)], 2)
        return mixed.flatten(1, 2)  # channels shuffled


class Supernet(nn.Module):
    """Single path one-shot (Guo et al., ECCV 2020) over blocks of ShuffleNet V2.

    The path is drawn once, when the network is made: the step that is planned trains that one.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(3, 16, 3, stride=2)]
        channels = 16
        for outputs, blocks in ((64, 4), (160, 4), (320, 8), (640, 4)):
            layers.append(_conv(channels, outputs, 3, stride=2))
            layers += [_Choice(outputs) for _ in range(blocks)]
            channels = outputs
        layers += [_conv(channels, 1024, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.layers = nn.Sequential(*layers, nn.Linear(1024, 10))
        for block in self.modules():
            if isinstance(block, _Choice):
                block.chosen = int(torch.randint(len(block.ways), ()))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


def _plain(build: Callable[[], nn.Module]) -> Architecture:
    return Architecture(build, no_checkpoint, _IMAGES)


COOP_NETWORKS = {
    "coop_resnet50": _plain(resnet50),
    "coop_inception_v3": _plain(inception_v3),
    "coop_spos": _plain(Supernet),
    "coop_unet": Architecture(unet, no_checkpoint, _IMAGES, _per_pixel_loss),
    "coop_bilstm": Architecture(BiLstm, no_checkpoint, texts(16, 20), tagger_loss),
    "coop_swin": Architecture(swin, no_checkpoint, _IMAGES, logits_loss),
    "coop_bert": Architecture(
        functools.partial(bert, 12, 128, 4),
        checkpoint_layers,
        labelled_texts(8, 64),
        classifier_loss,
    ),
    "coop_gpt": Architecture(
        functools.partial(gpt2, 16, 128, 4), checkpoint_layers, texts(8, 64), language_loss
    ),
}
