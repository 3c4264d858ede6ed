"""Low-rank adapters beside frozen layers, after LoRA (Hu et al., ICLR 2022)."""

from __future__ import annotations

from torch import Tensor, nn


class Adapted(nn.Module):
    """A layer and a path of low rank beside it: y = layer(x) + up(down(x)).

    The path starts at zero, so the network computes at first what it did before.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.layer = layer
        if isinstance(layer, nn.Linear):
            self.adapter_down: nn.Module = nn.Linear(layer.in_features, rank, bias=False)
            self.adapter_up: nn.Linear | nn.Conv2d = nn.Linear(rank, layer.out_features, bias=False)
        else:
            size = layer.kernel_size[0]
            self.adapter_down = nn.Conv2d(
                layer.in_channels, rank, size, layer.stride[0], size // 2, bias=False
            )
            self.adapter_up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        nn.init.zeros_(self.adapter_up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Both paths."""
        y: Tensor = self.layer(x) + self.adapter_up(self.adapter_down(x))
        return y


def add_adapters(module: nn.Module, rank: int, names: tuple[str, ...]) -> int:
    """Puts an adapter beside every linear layer and convolution whose name ends in one of `names`.

    Args:
        module: changed in place.
        rank: of the adapters.
        names: last parts of the layers' names; () for all convolutions.

    Returns:
        The number of adapters.
    """
    found = [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
        and (name.rpartition(".")[2] in names or (not names and isinstance(layer, nn.Conv2d)))
    ]
    for name, layer in found:
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, Adapted(layer, rank))
    return len(found)


__all__ = ["Adapted", "add_adapters"]
