"""Which tensors exist: those that Python holds, and the gradients that hang on them."""

from __future__ import annotations

import gc

import torch

from poet import _C


def existing_tensors(*, thorough: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Every tensor that Python holds, and apart from them the gradients that hang on them.

    Collects garbage first: what is about to go must not count as resident for good. `thorough`
    collects all of it, which takes longer than many a step; else the young.
    """
    gc.collect(2 if thorough else 1)
    found = _tensors_among(gc.get_objects())
    return found, _gradients_on(found)


class Census:
    """The tensors that exist, counted beforehand, for the first call of a step.

    To collect all garbage and to walk over all objects takes longer than many a step. Until the
    collector moves more objects to its oldest generation, what came later is among the young.
    Whoever counts has collected all garbage.
    """

    def __init__(self) -> None:
        self._old = _C.TensorRefs(_tensors_among(gc.get_objects()))
        self._collections = _collections_of_old()

    def existing_tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What the function of this name returns."""
        young = _C.TensorRefs(_tensors_among([*gc.get_objects(0), *gc.get_objects(1)]))
        if _collections_of_old() != self._collections:
            return existing_tensors()
        gc.collect(1)
        found = list({id(t): t for t in [*self._old.alive(), *young.alive()]}.values())
        return found, _gradients_on(found)


def _collections_of_old() -> tuple[int, ...]:
    """Changes whenever objects come into the oldest generation, or leave it."""
    return *(one["collections"] for one in gc.get_stats()[1:]), gc.get_freeze_count()


def _tensors_among(things: list[object]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = _C.instances_of(things, _kinds_of_tensors())
    return found


def _gradients_on(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch._C.DisableTorchFunctionSubclass():
        return [t.grad for t in tensors if t.is_leaf and t.grad is not None]


def _kinds_of_tensors() -> set[type]:
    """torch.Tensor and every class below it: looking one up is quicker than issubclass()."""
    kinds: set[type] = set()
    more: list[type] = [torch.Tensor]
    while more:
        kind = more.pop()
        if kind not in kinds:
            kinds.add(kind)
            more += type.__subclasses__(kind)
    return kinds


def leaves_with_gradients() -> list[torch.Tensor]:
    """The leaf tensors that Python holds and that have gradients."""
    found, _ = existing_tensors()
    with torch._C.DisableTorchFunctionSubclass():
        return [t for t in found if t.is_leaf and t.grad is not None]
