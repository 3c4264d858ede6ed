"""A training step of a module for `poet.solve(model=...)`, which leaves the module as it was."""

from __future__ import annotations

import contextlib
import fnmatch
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from poet import _C
from poet._errors import ArgumentError
from poet._live import tensors_in
from poet._names import did_you_mean
from poet._trace import record

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
_LEARNING_RATE = 1e-3  # what it is does not change which ops run
_MOST_TENSORS_DEEP = 6

Loss = Callable[[Any], Tensor]


def record_module(
    module: nn.Module,
    forward: Callable[[], Tensor],
    *,
    inputs: object,
    optimizer: object,
    trainable: object,
) -> _C.Graph:
    """Records a training step of a module and leaves every bit of it as it was.

    Args:
        module: what is trained, in the mode that it is in.
        forward: makes the loss, a scalar tensor that a parameter of the module leads to.
        inputs: the tensors that `forward` reads (nested lists, tuples and dicts).
        optimizer: None (forward and backward alone), a name out of OPTIMIZERS, an optimizer of the
            module's parameters, or a function that makes one from a list of parameters.
        trainable: see `trainable_names`.

    Returns:
        The graph of the step. Bytes resident all through it are the module's, the optimizer's and
        the inputs' alone, whatever else this process holds.
    """
    _check_memory([*module.parameters(), *module.buffers()], "model")
    _check_memory(tensors_in(inputs), "inputs")
    with _untouched(module, optimizer):
        _freeze(module, trainable)
        trained = [p for p in module.parameters() if p.requires_grad]
        made = _optimizer(optimizer, trained)
        for parameter in module.parameters():
            parameter.grad = None

        def step() -> None:
            for parameter in trained:
                parameter.grad = None
            loss = forward()
            loss.backward()  # type: ignore[no-untyped-call]
            if made is not None:
                made.step()
                for parameter in trained:  # as zero_grad() would: nobody reads them any more
                    parameter.grad = None

        def held() -> tuple[list[Tensor], list[Tensor]]:
            tensors = [*module.parameters(), *module.buffers(), *tensors_in(inputs)]
            if made is not None:
                tensors += tensors_in(list(made.state.values()))
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            return tensors + gradients, gradients

        return record(step, (), {}, held=held, inputs=tensors_in(inputs))


def _check_memory(tensors: Sequence[Tensor], name: str) -> None:
    """Raises ArgumentError where a tensor has no bytes of its own that a step could compute."""
    for tensor in tensors:
        if tensor.device.type == "meta":
            raise ArgumentError(
                f"{name}: expected tensors with data; got one of shape {tuple(tensor.shape)} on "
                "the meta device, on which nothing runs that could be timed. Make it on the CPU, "
                'or move it with to_empty(device="cpu"): its numbers do not matter to a plan.'
            )


def loss_of(output: Any, loss: Loss | None) -> Tensor:
    """The scalar that a step differentiates.

    Raises:
        ArgumentError: `loss` gives none, or `output` needs a loss function.
    """
    found = loss(output) if loss is not None else getattr(output, "loss", output)
    if isinstance(found, Tensor) and found.numel() == 1 and found.requires_grad:
        return found
    got = type(found).__name__
    if isinstance(found, Tensor):
        got = f"a tensor of shape {tuple(found.shape)}"
        got += "" if found.requires_grad else " that no parameter leads to"
    raise ArgumentError(
        "loss: expected a function of the model's output that gives one number to differentiate, "
        f"as in loss=lambda output: F.cross_entropy(output, labels); got {got}."
    )


def call_arguments(inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of the module, with tensors of their own.

    Raises:
        ArgumentError: `inputs` is none of what it may be.
    """
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping):
        return (), {str(name): _own(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list) and inputs:
        return tuple(_own(value) for value in inputs), {}
    raise ArgumentError(
        "inputs: expected what the model is called with: a tensor, a tuple of positional arguments "
        f"or a dict of named ones; got {inputs!r:.60}."
    )


def _own(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, list | tuple):
        return type(value)(_own(each) for each in value)
    if isinstance(value, dict):
        return {key: _own(each) for key, each in value.items()}
    return value


# ---- what is trained ---------------------------------------------------------------------------


def trainable_names(module: nn.Module, trainable: object) -> set[str]:
    """Names of the parameters that are trained; the others are frozen.

    Args:
        module: the model.
        trainable: None or "all" (as the module has it), "last" or "last N" (the last N layers that
            have parameters), "bias" (biases, and the last layer), or patterns of parameter names
            such as "layer4.*" (one or a list).

    Raises:
        ArgumentError: it is none of these, or nothing would be trained.
    """
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    chosen = set(_chosen(module, names, trainable))
    if not chosen:
        raise ArgumentError(
            "trainable: expected some parameters to train; "
            f"{'the model has none' if not names else f'{trainable!r} names none'}. Known: "
            f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}."
        )
    return chosen


def _chosen(module: nn.Module, names: list[str], trainable: object) -> list[str]:
    if trainable is None or trainable == "all":
        return names
    if trainable == "bias":
        last = _last_layers(module, names, 1)
        return [name for name in names if name.rpartition(".")[2] == "bias"] + last
    if isinstance(trainable, str) and trainable.split(" ")[0] == "last":
        count = trainable[4:].strip() or "1"
        if count.isdecimal() and int(count) > 0:
            return _last_layers(module, names, int(count))
    patterns = [trainable] if isinstance(trainable, str) else trainable
    if isinstance(patterns, Sequence) and all(isinstance(each, str) for each in patterns):
        return [n for n in names if any(fnmatch.fnmatchcase(n, each) for each in patterns)]
    raise ArgumentError(
        'trainable: expected "all", "last", "last 2", "bias" or patterns of parameter names such '
        f'as ["layer4.*"]; got {trainable!r}.'
    )


def _last_layers(module: nn.Module, names: list[str], count: int) -> list[str]:
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    kept = set(layers[-count:])
    return [name for name in names if name.rpartition(".")[0] in kept]


def _freeze(module: nn.Module, trainable: object) -> None:
    chosen = trainable_names(module, trainable)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in chosen)


def check_optimizer(optimizer: object) -> None:
    """Raises ArgumentError for what `_optimizer` could not make one of."""
    named = isinstance(optimizer, str) and optimizer in OPTIMIZERS
    if optimizer is None or named or isinstance(optimizer, torch.optim.Optimizer):
        return
    if not isinstance(optimizer, str) and callable(optimizer):
        return
    names = ", ".join(repr(name) for name in OPTIMIZERS)
    raise ArgumentError(
        f"optimizer: expected one of {names}, a torch.optim.Optimizer, a function that makes one "
        f"from a list of parameters, or None for forward and backward alone; got {optimizer!r:.60}."
        f"{did_you_mean(optimizer, OPTIMIZERS)}"
    )


def _optimizer(optimizer: object, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
    check_optimizer(optimizer)
    if optimizer is None or isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=_LEARNING_RATE, foreach=False)
    if optimizer == "momentum":
        return torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=0.9, foreach=False)
    if optimizer == "adam":
        return torch.optim.Adam(parameters, lr=_LEARNING_RATE, foreach=False)
    if optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, foreach=False)
    assert callable(optimizer)
    made = optimizer(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise ArgumentError(
            "optimizer: expected the function to make a torch.optim.Optimizer; it made "
            f"{type(made).__name__}."
        )
    return made


# ---- leaving no trace --------------------------------------------------------------------------


@contextlib.contextmanager
def _untouched(module: nn.Module, optimizer: object) -> Iterator[None]:
    """Puts back what a training step changes: every bit of tensors, gradients, modes, generators.

    What a module keeps outside of parameters and buffers (a counter in Python, say) is its own.
    """
    held = [*module.parameters(), *module.buffers()]
    bits = [tensor.detach().clone() for tensor in held]
    gradients = [(p, p.grad, p.requires_grad) for p in module.parameters()]
    modes = [(each, each.training) for each in module.modules()]
    groups = _kept_optimizer(optimizer)
    generators = (torch.get_rng_state(), random.getstate(), np.random.get_state())
    own = [(generator, generator.get_state()) for generator in _generators(module)]
    try:
        yield
    finally:
        torch.set_rng_state(generators[0])
        random.setstate(generators[1])
        np.random.set_state(generators[2])
        for generator, state in own:
            generator.set_state(state)
        for tensor, before in zip(held, bits, strict=True):
            tensor.data.copy_(before)
        for parameter, gradient, requires_grad in gradients:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
        for each, training in modes:
            each.training = training
        if isinstance(optimizer, torch.optim.Optimizer):
            _restore_optimizer(optimizer, groups)


def _generators(module: nn.Module) -> list[torch.Generator]:
    """Those that the modules keep as attributes, or in lists, tuples and dicts of these."""
    found: list[torch.Generator] = []

    def look(thing: object, depth: int = 3) -> None:
        if isinstance(thing, torch.Generator):
            found.append(thing)
        elif depth and isinstance(thing, list | tuple | set):
            for each in thing:
                look(each, depth - 1)
        elif depth and isinstance(thing, dict):
            for each in thing.values():
                look(each, depth - 1)

    for each in module.modules():
        look({name: value for name, value in vars(each).items() if name != "_modules"})
    return list({id(generator): generator for generator in found}.values())


def _kept_optimizer(optimizer: object) -> tuple[Any, ...]:
    if not isinstance(optimizer, torch.optim.Optimizer):
        return ()
    state = {
        parameter: {
            key: (value, value.detach().clone() if isinstance(value, Tensor) else None)
            for key, value in entries.items()
        }
        for parameter, entries in optimizer.state.items()
    }
    return state, [dict(group) for group in optimizer.param_groups]


def _restore_optimizer(optimizer: torch.optim.Optimizer, kept: tuple[Any, ...]) -> None:
    state, groups = kept
    optimizer.state.clear()
    for parameter, entries in state.items():
        optimizer.state[parameter] = {key: value for key, (value, _) in entries.items()}
        for value, bits in entries.values():
            if bits is not None:
                value.data.copy_(bits)
    for group, before in zip(optimizer.param_groups, groups, strict=True):
        group.clear()
        group.update(before)


__all__ = [
    "OPTIMIZERS",
    "call_arguments",
    "check_optimizer",
    "loss_of",
    "record_module",
    "trainable_names",
]
