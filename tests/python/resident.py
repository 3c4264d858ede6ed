"""What this process holds in tensors, counted from outside."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import poet
from poet._census import existing_tensors


def _address(t: torch.Tensor) -> int:
    """Of the tensor's memory; 0 where it has none, as fake and functional tensors of
    torch.compile's caches, which other tests leave behind."""
    try:
        return t.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def has_memory(t: torch.Tensor) -> bool:
    """Without going through a raw door that brings it back."""
    try:
        torch._C.TensorBase.data_ptr(t)
    except RuntimeError as error:
        return "poet: this tensor's memory has been released" not in str(error)
    return True


def resident_bytes(beside: Iterable[nn.Module | torch.Tensor] = ()) -> int:
    """Bytes of all storages that Python holds, but for those of `beside` (modules' parameters)."""
    found, gradients = existing_tensors()
    mine = [
        t
        for thing in beside
        for t in (thing.parameters() if isinstance(thing, nn.Module) else [thing])
    ]
    skip = {0, *(_address(t) for t in mine)}
    storages = {_address(t): t for t in [*found, *gradients]}
    return sum(t.untyped_storage().nbytes() for a, t in storages.items() if a not in skip)


def budget_at(share: float, step: Callable[..., Any], *args: Any) -> int:
    """That share of what the step takes above what lies beside it: other tests' tensors, say.

    Runs the step, to record it. What garbage would take with it later is no part of that.
    """
    gc.collect()
    graph = poet.trace(step, *args)
    beside = graph.base_bytes
    return beside + int(share * (graph.plain_peak_bytes() - beside))


class Peaks:
    """The most that was resident between each `mark()` and the next, by the profiler's events.

    They know the size of what is freed only where they saw it come: so the block begins before
    there is a model or a batch (paged out unseen and in again, it counts twice), and is one around
    all calls, for what leaves in a later call than it came in.
    Nothing is asked of tensors meanwhile: that brings back what is away between calls.
    """

    _MARK = "a call begins"

    def __enter__(self) -> Peaks:
        self._before = resident_bytes()
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()
        return self

    def mark(self) -> None:
        with record_function(self._MARK):
            pass

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        profiler: Any = self._profile.profiler
        known = {self._MARK, "[memory]"}
        events = [e for e in profiler.kineto_results.events() if e.name() in known]
        resident = self._before
        self.bytes: list[int] = []
        for event in sorted(events, key=lambda e: e.start_ns()):
            if event.name() == self._MARK:
                self.bytes.append(resident)
                continue
            resident += event.nbytes()
            if self.bytes:
                self.bytes[-1] = max(self.bytes[-1], resident)
