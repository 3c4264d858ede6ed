"""What `model=` may be, and the graph of its training step."""

from __future__ import annotations

import os
import platform as python_platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from poet import _C
from poet._budgets import whole_number
from poet._cache import Cache
from poet._errors import ArgumentError, FormatError, PoetError
from poet._names import did_you_mean
from poet._paper import paper_graph
from poet._presets import Preset, find_preset, preset_names
from poet._progress import recording_bar
from poet._training import (
    call_arguments,
    check_optimizer,
    loss_of,
    record_module,
    trainable_names,
)

PAPER = "paper"
_MOST_INPUTS = 1 << 20
_CACHE_KIND = "trace"
_SEED = 0
_RECORDING = 2  # raised whenever a preset's network or step changes


@dataclass(frozen=True)
class ModelRequest:
    """What was asked about a model, as the user gave it.

    Attributes:
        model: a preset's name, an nn.Module, a wrapped step, a Graph or the path of a graph file.
        inputs: of an nn.Module.
        loss: likewise.
        optimizer: None for the default: "sgd" for presets, none for an nn.Module.
        trainable: which parameters are trained; None for all.
        batch_size: of a preset; None for 1.
        paper: POET's own layer graph is wanted.
        verbose: shows the calls that are recorded.
    """

    model: object
    inputs: object = None
    loss: Callable[[Any], Tensor] | None = None
    optimizer: object = None
    trainable: object = None
    batch_size: int | None = None
    paper: bool = False
    verbose: bool = False

    def graph_or(self, graph: object, cache: Cache | None) -> _C.Graph:
        """The step of `model`, or the one that was given in its place.

        Raises:
            ArgumentError: both were given, or neither.
        """
        if self.model is None:
            if graph is None or self.paper:
                raise ArgumentError(
                    'model: expected the name of a preset ("resnet18_cifar"), an nn.Module, a '
                    "wrapped step, a poet.Graph or the path of a graph file; got None."
                )
            _refuse_beside(
                "graph=, which is recorded",
                {name: getattr(self, name) for name in _WHO_TAKES},
            )
            return as_graph(graph)
        if graph is not None and not self.paper:
            got = repr(graph) if isinstance(graph, str) else type(graph).__name__
            raise ArgumentError(
                f'graph: expected None or "paper" beside model=; got {got:.80}.'
                f"{did_you_mean(graph, (PAPER,))} Leave one of them out."
            )
        return self.graph(cache)

    def graph(self, cache: Cache | None) -> _C.Graph:
        """The recorded step, with the times of this machine (none for POET's own graphs).

        Raises:
            ArgumentError: the arguments make no sense together, or the model cannot be run.
            FormatError: the file named by `model` holds no graph.
        """
        if self.paper:
            return self._paper()
        if isinstance(self.model, nn.Module):
            return self._module(self.model)
        from poet._wrapped_step import WrappedStep  # noqa: PLC0415  it imports poet.solve

        if not isinstance(self.model, WrappedStep | _C.Graph | str | os.PathLike):
            raise _no_model(self.model)
        self._refuse(inputs=self.inputs, loss=self.loss)
        if isinstance(self.model, str) and not _is_path(self.model):
            return _preset_graph(find_preset(self.model), self, cache)
        self._refuse(optimizer=self.optimizer, trainable=self.trainable, batch_size=self.batch_size)
        if isinstance(self.model, WrappedStep):
            return _wrapped_graph(self.model)
        return as_graph(self.model)

    def size(self) -> int:
        """Inputs in a batch."""
        if self.batch_size is None:
            return 1
        return whole_number(
            self.batch_size, "batch_size", "a number of inputs", least=1, most=_MOST_INPUTS
        )

    def _paper(self) -> _C.Graph:
        if not isinstance(self.model, str):
            raise ArgumentError(
                'graph="paper": expected the name of a model of POET\'s code as model=; got '
                f"{type(self.model).__name__}."
            )
        for name in ("inputs", "loss", "optimizer", "trainable"):
            if getattr(self, name) is not None:
                raise ArgumentError(
                    f'{name}: expected None beside graph="paper", whose layer graphs are forward '
                    f"and backward alone; got {getattr(self, name)!r:.60}."
                )
        return paper_graph(self.model, batch_size=self.size())

    def _module(self, module: nn.Module) -> _C.Graph:
        self._refuse(batch_size=self.batch_size)
        if self.loss is not None and not callable(self.loss):
            raise ArgumentError(
                f"loss: expected a function of the model's output; got {self.loss!r:.60}."
            )
        args, kwargs = call_arguments(self.inputs)

        def forward() -> Tensor:
            return loss_of(module(*args, **kwargs), self.loss)

        try:
            with recording_bar(shown=self.verbose):
                return record_module(
                    module,
                    forward,
                    inputs=(args, kwargs),
                    optimizer=self.optimizer,
                    trainable=self.trainable,
                )
        except PoetError:
            raise
        except Exception as error:  # the model's own, of whatever kind
            if _is_out_of_memory(error):  # on a larger machine it would run
                raise
            what = str(error) if isinstance(error, _SPEAK_FOR_THEMSELVES) else repr(error)
            raise ArgumentError(
                f"model: {type(module).__name__} cannot run on these inputs: {what}. Check that "
                "model(*inputs) works, and that loss= takes its output."
            ) from error

    def _refuse(self, **given: object) -> None:
        kind = type(self.model).__name__
        if isinstance(self.model, str):
            kind = "the path of a graph file" if _is_path(self.model) else "a preset"
        _refuse_beside(f"model={kind}", given)


def _refuse_beside(other: str, given: dict[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"{name}: expected None beside {other}; got {value!r:.60}. {_WHO_TAKES[name]}"
            )


def _no_model(got: object) -> ArgumentError:
    """The error for what is no model; a class or a function is often one call away from it."""
    name = getattr(got, "__name__", type(got).__name__)
    what = name if not callable(got) else f"the function {name}"
    hint = ""
    if isinstance(got, type):
        what = f"the class {name}"
        hint = f" Make one of it: model={name}(...)."
    elif callable(got):
        hint = (
            " Where it makes a module, call it; where it is a training step, "
            "graph=poet.trace(step, batch) records it."
        )
    return ArgumentError(
        "model: expected the name of a preset "
        f"({', '.join(preset_names())}), an nn.Module with inputs= and loss=, a step of "
        f"poet.wrap, a poet.Graph or the path of a graph file; got {what}.{hint}"
    )


# Errors whose text says what is wrong; of a KeyError, say, it is the key alone.
_SPEAK_FOR_THEMSELVES = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch's own on an accelerator, Python's, and what PyTorch's CPU allocator says."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error)


_WHO_TAKES = {
    "inputs": "It goes with an nn.Module.",
    "loss": "It goes with an nn.Module.",
    "optimizer": "It goes with a preset or an nn.Module.",
    "trainable": "It goes with a preset or an nn.Module.",
    "batch_size": "It goes with a preset; an nn.Module takes the batch that inputs= holds.",
}


def is_paper(graph: object) -> bool:
    """Whether `graph=` asks for the layer graph of POET's own code."""
    return isinstance(graph, str) and graph == PAPER


def as_graph(graph: object) -> _C.Graph:
    """The graph itself, or the one saved at the path that `graph` is."""
    if isinstance(graph, _C.Graph):
        return graph
    if isinstance(graph, str | os.PathLike):
        return _C.Graph.load(graph)
    raise ArgumentError(
        "graph: expected a poet.Graph or the path of a file written by Graph.save; got "
        f"{type(graph).__name__}. Record a step with poet.trace(step, *args)."
    )


def graph_on(
    graph: _C.Graph, device: _C.DeviceProfile, schedule: _C.Schedule | None = None
) -> _C.Graph:
    """The step with the device's times: those of the schedule, where it was solved for the device.

    A step that was recorded here has this machine's times, whatever device a schedule is for.
    """
    own = schedule.traced_graph if schedule is not None else None
    if own is not None and own.signature == graph.signature:
        known = schedule.device if schedule is not None else None
        if known is not None and known.name == device.name:
            return own
    return _C.on_device(graph, device) if device.has_rates else graph


def _is_path(model: str) -> bool:
    return os.sep in model or model.endswith(".json")


def _wrapped_graph(step: Any) -> _C.Graph:
    graph: _C.Graph | None = step.graph
    if graph is None:
        raise ArgumentError(
            "model: expected a wrapped step that has run; this one has not. Call it once with a "
            "batch, or record the step with poet.trace(step, batch)."
        )
    return graph


def _preset_graph(preset: Preset, asked: ModelRequest, cache: Cache | None) -> _C.Graph:
    """Recorded once for each machine and request, where there is a cache."""
    optimizer = "sgd" if asked.optimizer is None else asked.optimizer
    check_optimizer(optimizer)
    key = _key(preset, asked, optimizer)
    if cache is not None and key is not None:
        kept = cache.get(_CACHE_KIND, key)
        if kept is not None:
            try:
                return _C.Graph.from_json(str(kept.get("graph")))
            except FormatError as error:
                cache.drop(_CACHE_KIND, key, str(error))
    with recording_bar(shown=asked.verbose):
        graph = _record_preset(preset, asked, optimizer)
    if cache is not None and key is not None:
        cache.put(_CACHE_KIND, key, {"graph": graph.to_json()})
    return graph


def _record_preset(preset: Preset, asked: ModelRequest, optimizer: object) -> _C.Graph:
    size = asked.size()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        module = preset.build().train()
        trainable_names(module, asked.trainable)  # before anything runs
        batch = preset.batch(size, torch.Generator().manual_seed(_SEED))
        return record_module(
            module,
            lambda: preset.loss(module, *batch),
            inputs=batch,
            optimizer=optimizer,
            trainable=asked.trainable,
        )


def _key(preset: Preset, asked: ModelRequest, optimizer: object) -> dict[str, Any] | None:
    """What decides about ops and times; None where something in it has no name."""
    trainable = asked.trainable
    if isinstance(trainable, tuple):
        trainable = list(trainable)
    named = trainable is None or isinstance(trainable, str | list)
    if not isinstance(optimizer, str) or not named:
        return None
    return {
        "recording": _RECORDING,
        "preset": preset.name,
        "batch_size": asked.size(),
        "optimizer": optimizer,
        "trainable": trainable,
        "poet": _C.version,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": [python_platform.node(), python_platform.machine()],
    }


__all__ = ["PAPER", "ModelRequest", "as_graph", "is_paper"]
