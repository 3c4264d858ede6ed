"""Training steps measured in processes of their own, for poet.compare(live=True)."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_MOST_CALLS_TO_PLAN = 20
_SLACK_SECONDS = 600.0  # for the process itself, beyond what planning may take
_BEGIN_PEAK = "5"  # written to clear_refs: the peak begins anew (man 5 proc)


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """What a process measured of a step.

    Attributes:
        peak_bytes: most resident memory of the process while the steps ran, above what it had
            before it made the step.
        step_seconds: median of the steps.
        planned_share: time of the plan that it trained with, made in that process, to the plain
            step's, by the simulator; 0 where it trained without one.
        free_share: of the budget behind the evictions of a live policy, in the mean; 0 for plans.
        results: hash of the bits that all calls returned, the first one included.
        error: why there is none of this; empty where there is.
    """

    __module__ = "poet"

    peak_bytes: int = 0
    step_seconds: float = 0.0
    planned_share: float = 0.0
    free_share: float = 0.0
    results: str = ""
    error: str = ""


def measure_plain(make_step: Callable[[], Any], steps: int) -> Measurement:
    """The step as it is."""
    return _in_process(make_step, steps, None)


def measure_wrapped(
    make_step: Callable[[], Any], steps: int, options: dict[str, Any]
) -> Measurement:
    """The step with a method's plan; `options` are those of `poet.wrap`."""
    return _in_process(make_step, steps, options)


def _in_process(
    make_step: Callable[[], Any], steps: int, options: dict[str, Any] | None
) -> Measurement:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, make_step, steps, options), daemon=True)
    process.start()
    theirs.close()
    limit = _SLACK_SECONDS + (options["time_limit_s"] if options else 0.0)
    try:
        if ours.poll(limit):
            answer = ours.recv()
            assert isinstance(answer, Measurement)
            return answer
        return Measurement(error=f"the process took longer than {limit:.0f} s")
    except EOFError:
        process.join()
        return Measurement(error=f"the process ended with status {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _child(
    pipe: Connection,
    make_step: Callable[[], Any],
    steps: int,
    options: dict[str, Any] | None,
) -> None:
    try:
        pipe.send(_measure(make_step, steps, options))
    except Exception as error:
        pipe.send(Measurement(error=f"{type(error).__name__}: {error}"))


def _measure(
    make_step: Callable[[], Any], steps: int, options: dict[str, Any] | None
) -> Measurement:
    import poet  # noqa: PLC0415  in the child alone

    before = _resident("VmRSS")
    step, args = make_step()
    call = step if options is None else poet.wrap(step, background=False, cache_dir=None, **options)
    digest = hashlib.sha256()
    # The same number of calls in every process, so that the hashes can be compared.
    for _ in range(_MOST_CALLS_TO_PLAN):
        _digest(call(*args), digest)
    is_live = options is not None and poet.methods()[options["method"]].live
    if options is not None and not is_live and not call.stats.plans:
        return Measurement(error="no plan came into force")
    _begin_peak()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        result = call(*args)
        times.append(time.perf_counter() - begin)
        _digest(result, digest)
    return Measurement(
        peak_bytes=_resident("VmHWM") - before,
        step_seconds=statistics.median(times),
        planned_share=0.0 if options is None or is_live else _planned_share(call),
        free_share=call.stats.online_free_share if is_live else 0.0,
        results=digest.hexdigest(),
    )


def _planned_share(step: Any) -> float:
    """Of the plan in force, by the recording that it was made for."""
    plain = step.graph.plain_seconds
    return float(step.schedule.makespan_seconds / plain) if plain > 0 else 0.0


def _digest(result: Any, digest: Any) -> None:
    """Adds the bits of tensors in what a step returned, or the text of anything else."""
    import torch  # noqa: PLC0415  in the child alone

    if isinstance(result, torch.Tensor):
        flat = result.detach().cpu().contiguous().view(-1)
        digest.update(bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    elif isinstance(result, list | tuple):
        for each in result:
            _digest(each, digest)
    elif isinstance(result, dict):
        for key in sorted(result, key=str):
            digest.update(str(key).encode())
            _digest(result[key], digest)
    else:
        digest.update(repr(result).encode())


def _resident(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    status = Path(f"/proc/{os.getpid()}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith(field + ":"))
    return 1024 * int(line.split()[1])


def _begin_peak() -> None:
    Path(f"/proc/{os.getpid()}/clear_refs").write_text(_BEGIN_PEAK, encoding="utf-8")


__all__ = ["Measurement", "measure_plain", "measure_wrapped"]
