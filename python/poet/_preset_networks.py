"""The networks of the presets that no library has in the published shape."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear_network() -> nn.Module:
    """POET's `linear`: six linear layers with ReLU on 784 inputs (its graphs/linear.json)."""
    widths = (784, 10, 120, 100, 200, 10, 10)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


# Simonyan and Zisserman, "Very Deep Convolutional Networks", ICLR 2015, configuration D.
_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def vgg16(*, classes: int, side: int) -> nn.Module:
    """VGG-16 for images of `side` by `side` pixels; 0 in the table is a pooling of 2 by 2."""
    layers: list[nn.Module] = []
    channels = 3
    for width in _VGG16:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
        channels = width
    pixels = (side // 32) ** 2
    head: list[nn.Module] = [nn.Flatten(), nn.Linear(512 * pixels, 4096), nn.ReLU(inplace=True)]
    head += [nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, *head, nn.Linear(4096, classes))


class _PoetBlock(nn.Module):
    """POET's residual block: ReLU behind both convolutions, 3 by 3 convolution on every skip."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, padding=1)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.second_norm = nn.BatchNorm2d(width)
        self.skip = nn.Conv2d(channels, width, 3, stride, padding=1)
        self.skip_norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.first_norm(self.first(x)))
        out = F.relu(self.second_norm(self.second(out)))
        return F.relu(out + self.skip_norm(self.skip(x)))


def resnet18_cifar() -> nn.Module:
    """The CIFAR network of POET's graphs/resnet18_cifar.json: 16, 32 and 64 channels.

    After He et al., "Deep Residual Learning", CVPR 2016, section 4.2. 248,746 numbers, with the
    running statistics that the original counts as parameters.
    """
    blocks: list[nn.Module] = []
    channels = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        blocks += [_PoetBlock(channels, width, stride), _PoetBlock(width, width, 1)]
        channels = width
    stem = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)]
    head = [nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*stem, *blocks, *head)


class _BasicBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.skip = nn.Sequential()
        if stride != 1 or channels != width:
            self.skip = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(out)) + self.skip(x))


def resnet18_cifar_wide() -> nn.Module:
    """ResNet-18 of ImageNet (64 to 512 channels) with a stem for images of 32 by 32."""
    blocks: list[nn.Module] = []
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [_BasicBlock(channels, width, stride), _BasicBlock(width, width, 1)]
        channels = width
    stem = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*stem, *blocks, *head)


class _DoubleConvolution(nn.Sequential):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Ronneberger et al., "U-Net", MICCAI 2015, figure 1, with padding: 64 to 1,024 channels."""

    def __init__(self, channels: int = 1, classes: int = 2) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        befores = (channels, *widths[:-1])
        self.down = nn.ModuleList(
            _DoubleConvolution(a, b) for a, b in zip(befores, widths, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(w, w // 2, 2, 2) for w in widths[:0:-1])
        self.merge = nn.ModuleList(_DoubleConvolution(w, w // 2) for w in widths[:0:-1])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits


__all__ = [
    "UNet",
    "linear_network",
    "resnet18_cifar",
    "resnet18_cifar_wide",
    "vgg16",
]
