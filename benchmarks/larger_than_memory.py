"""GPT-2 medium inside 2 GiB: a training whose state alone is larger than its memory.

    python benchmarks/larger_than_memory.py [--model gpt2-medium] [--budget 2GiB] [--save NAME]

Parameters, gradients and AdamW's state of GPT-2 medium (355 million parameters, from its
configuration) take 5.7 GB; a step with one sequence of 512 tokens more. It is trained plainly and
with poet, a process each, from the same seed. poet's process runs under RLIMIT_DATA from before the
model is built: what Python and its libraries have by then, the budget, and --beside bytes for all
that is no tensor (plans, stacks, buffers). The same limit ends plain training, which is tried, too.

Compared are all losses, the generator, and SHA-256 of every parameter, gradient, buffer and
optimizer state after the last step, read a piece at a time. Beside them: each call's seconds,
peaks by the meter and by VmHWM, bytes paged, and what the disk carries, measured with O_DIRECT in
the same folder before and after: from the bytes of a step and that rate follows the least time
that its transfers could take. Prints, as JSON in the last line, what bounds.toml limits.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Read when torch is loaded: without it the profiler's library writes lines of its own to stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch
from torch import Tensor

from _data import context, save
from _state import differences
from meter import Meter, as_words, poet_record
from steps import Architecture, Training, language_loss

MIB = 1 << 20
_PIECE = 16 * MIB  # of a tensor, when it is hashed
_PAUSE_AFTER = 256 * MIB  # bytes that hashing may bring back from the disk
_REQUEST = 4 * MIB  # of the raw rate


@dataclass(frozen=True)
class Model:
    """A GPT-2 by its sizes, one sequence a step, and the budget that it is measured with."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    tokens: int
    budget: int

    def build(self) -> torch.nn.Module:
        """From its configuration; dropout on, as it comes."""
        from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415  heavy: seconds

        config = GPT2Config(
            n_layer=self.layers,
            n_embd=self.width,
            n_head=self.heads,
            vocab_size=self.vocabulary,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
        model: torch.nn.Module = GPT2LMHeadModel(config)
        return model

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """Endless random tokens."""
        while True:
            yield (torch.randint(0, self.vocabulary, (1, self.tokens), generator=generator),)

    @property
    def architecture(self) -> Architecture:
        """As benchmarks/steps.py wants it."""
        return Architecture(self.build, lambda _: None, self.batches, language_loss)


MODELS = {
    "gpt2-medium": Model(24, 1024, 16, 50257, 512, 2048 * MIB),
    "gpt2": Model(12, 768, 12, 50257, 512, 1024 * MIB),
    "gpt2-small-words": Model(12, 768, 12, 4000, 256, 384 * MIB),
    "gpt2-tiny": Model(4, 256, 4, 2000, 128, 24 * MIB),
}


# ---- one process ----------------------------------------------------------------------------


def status(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def reset_high_water() -> bool:
    """VmHWM counts anew; whether the kernel let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def high_water() -> int:
    """The most anonymous memory that was resident since the last reset."""
    return status("VmHWM") - status("RssFile") - status("RssShmem")


def digests(training: Training, losses: list[float], pause: Callable[[], object]) -> dict[str, str]:
    """As `_state.digests`, a piece at a time, with what that brings back put away again."""
    found = {}
    back = 0
    for name, tensor in training.each_state():
        flat = tensor.reshape(-1)
        seen = hashlib.sha256(f"{flat.dtype} {tuple(tensor.shape)} ".encode())
        length = max(1, _PIECE // flat.element_size())
        for begin in range(0, flat.numel(), length):
            # A copy: memory that NumPy shares is never paged.
            seen.update(flat[begin : begin + length].clone().numpy().tobytes())
        found[name] = seen.hexdigest()
        back += tensor.nbytes
        del tensor, flat
        if back > _PAUSE_AFTER:
            pause()
            back = 0
    found |= {f"loss {index}": loss.hex() for index, loss in enumerate(losses)}
    found["generator"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """One training, as a record for JSON."""
    torch.set_num_threads(options.threads)
    model = MODELS[options.model]
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401, PLC0415  before the limit

    record: dict[str, Any] = {"form": options.form}
    if options.form == "poet" or options.limited:
        import poet  # noqa: F401, PLC0415  its libraries count as what was there before, too
    if options.limited:
        limit = status("VmData") + options.budget + options.beside
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        record["data_limit_bytes"] = limit
    at_start = status("RssAnon")
    losses: list[float] = []
    calls: list[dict[str, Any]] = []
    resettable = reset_high_water()
    with Meter() as meter:
        begin = time.perf_counter()
        step, training = made(model, options)
        record["build_seconds"] = time.perf_counter() - begin
        record["build_high_water_bytes"] = high_water() - at_start
        feed = model.batches(torch.Generator().manual_seed(1))
        for _ in range(options.steps):
            batch = next(feed)
            gc.collect()
            reset_high_water()
            before = counters(step)
            begin = time.perf_counter()
            with meter.step():
                loss = step(*batch)
            losses.append(loss.item())
            call: dict[str, Any] = {"seconds": time.perf_counter() - begin}
            call["high_water_bytes"] = high_water() - at_start if resettable else None
            after = counters(step)
            call |= {name: after[name] - before[name] for name in after}
            calls.append(call)
            print(json.dumps(call), file=sys.stderr, flush=True)
            del loss, batch
        if options.form == "poet":
            record["poet"] = poet_record(
                step, options.budget, paging=True, page_dir=options.page_dir
            )
            record["poet"]["steps_over_budget"] = step.stats.steps_over_budget
            record["poet"]["most_over_bytes"] = step.stats.most_over_bytes
        begin = time.perf_counter()
        pause = step.pause if options.form == "poet" else gc.collect
        record["digests"] = digests(training, losses, pause)
        record["digest_seconds"] = time.perf_counter() - begin
        record["state_bytes"] = sum(tensor.nbytes for _, tensor in training.each_state())
    for call, memory in zip(calls, meter.steps, strict=True):
        call["peak_bytes"] = memory.peak_bytes
    record |= {"losses": losses, "calls": calls}
    record["process_high_water_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return record


def made(model: Model, options: argparse.Namespace) -> tuple[Any, Training]:
    """The step and its training: wrapped first, so that the model's memory is the arena's."""
    if options.form != "poet":
        training = Training(model.architecture, optimizer=options.optimizer)
        return training.step, training
    import poet  # noqa: PLC0415  plain processes are to be free of it

    made: list[Training] = []

    def train_step(*batch: Tensor) -> Tensor:
        return made[0].step(*batch)

    step = poet.wrap(
        train_step,
        ram_budget=options.budget,
        background=False,
        time_limit_s=options.time_limit,
        minimize=options.minimize,
        page_dir=options.page_dir,
        cache_dir=None,
        verbose=True,
    )
    made.append(Training(model.architecture, optimizer=options.optimizer))
    return step, made[0]


_COUNTED = (
    "traced_steps",
    "followed_steps",
    "departures",
    "steps_over_budget",
    "planned_recomputes",
    "unplanned_recomputes",
    "planned_page_outs",
    "planned_page_ins",
    "unplanned_page_ins",
    "online_recomputes",
    "online_page_outs",
    "online_page_ins",
    "paged_out_bytes",
    "paged_in_bytes",
    "replay_seconds",
    "online_replay_seconds",
    "read_seconds",
    "write_seconds",
    "waited_seconds",
)


def counters(step: Any) -> dict[str, float]:
    """What poet has counted so far; empty for a plain step."""
    stats = getattr(step, "stats", None)
    counted = {} if stats is None else {name: getattr(stats, name) for name in _COUNTED}
    return counted | {"processor_seconds": time.process_time()}


# ---- all of them ----------------------------------------------------------------------------


def raw_rates(folder: str, volume: int) -> dict[str, float]:
    """Bytes a second that the folder's disk takes and gives, past the page cache.

    Two threads with a request each at a time; bytes that no file system could find zeros in.
    """
    buffer = mmap.mmap(-1, 2 * _REQUEST)
    buffer.write(os.urandom(2 * _REQUEST))
    views = [memoryview(buffer)[at : at + _REQUEST] for at in (0, _REQUEST)]
    count = max(2, volume // _REQUEST)
    found = {}
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, count * _REQUEST)
        number = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        for kind in ("write", "read"):

            def move(thread: int, kind: str = kind) -> None:
                for index in range(thread, count, 2):
                    if kind == "write":
                        os.pwrite(number, views[thread], index * _REQUEST)
                    else:
                        os.preadv(number, [views[thread]], index * _REQUEST)

            threads = [threading.Thread(target=move, args=(thread,)) for thread in (0, 1)]
            begin = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if kind == "write":
                os.fdatasync(number)
            found[kind] = count * _REQUEST / (time.perf_counter() - begin)
        os.close(number)
    return found


def child(form: str, options: argparse.Namespace, **more: Any) -> subprocess.CompletedProcess[str]:
    """A training in a process of its own; its log goes to this one's stderr."""
    words = as_words(
        {
            "form": form,
            "model": options.model,
            "budget": str(options.budget),
            "beside": str(options.beside),
            "steps": options.steps,
            "threads": options.threads,
            "optimizer": options.optimizer,
            "minimize": options.minimize,
            "time_limit": options.time_limit,
            "page_dir": options.page_dir,
        }
        | more
    )
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    return subprocess.run(
        [sys.executable, __file__, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if more.get("quiet") else None,
        text=True,
        env=environment,
        check=False,
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The record of a child that ended well."""
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(done.args)} failed with {done.returncode}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def dies_in_limit(options: argparse.Namespace) -> dict[str, Any]:
    """Plain training under the same limit: how it ended."""
    done = child("plain", options, limited=True, quiet=True, steps=2)
    words = done.stderr.splitlines()[-1:] or [""]
    died = done.returncode != 0 and "allocate memory" in done.stderr
    return {"died": died, "last_words": words[0][:300]}


def figures(plain: dict[str, Any], ours: dict[str, Any], rates: list[dict[str, float]]) -> Any:
    """What the two trainings come to, and what the disk would have allowed."""
    followed = [call for call in ours["calls"] if call["followed_steps"]]
    late = followed[1:] or followed  # the first one moves what lies where the plan has nothing
    plain_seconds = statistics.median(call["seconds"] for call in plain["calls"][1:])
    found: dict[str, Any] = {
        "differing": differences(ours["digests"], plain["digests"]),
        "compared": len(plain["digests"]),
        "plain_step_seconds": plain_seconds,
        "plain_peak_bytes": max(call["peak_bytes"] for call in plain["calls"]),
        "plain_high_water_bytes": max(call["high_water_bytes"] or 0 for call in plain["calls"]),
        "peak_bytes": max(call["peak_bytes"] for call in ours["calls"]),
        "high_water_bytes": max(call["high_water_bytes"] or 0 for call in ours["calls"]),
        "followed": len(followed),
    }
    if not late:
        return found
    step = statistics.median(call["seconds"] for call in late)
    out = statistics.median(call["paged_out_bytes"] for call in late)
    back = statistics.median(call["paged_in_bytes"] for call in late)
    write = statistics.median(rate["write"] for rate in rates)
    read = statistics.median(rate["read"] for rate in rates)
    return found | {
        "planned_peak_bytes": max(call["peak_bytes"] for call in followed),
        "planned_high_water_bytes": max(call["high_water_bytes"] or 0 for call in followed),
        "step_seconds": step,
        "step_ratio": step / plain_seconds,
        "first_call_ratio": ours["calls"][0]["seconds"] / plain_seconds,
        "paged_out_bytes": out,
        "paged_in_bytes": back,
        "transfer_ratio": (out / write + back / read) / plain_seconds,
        "waited_ratio": statistics.median(call["waited_seconds"] for call in late) / plain_seconds,
        "replay_ratio": statistics.median(call["replay_seconds"] for call in late) / plain_seconds,
    }


def values(found: dict[str, Any], budget: int, plain_dies: bool) -> dict[str, float]:
    """What bounds.toml limits."""
    if not found["followed"]:
        return {}
    return {
        "larger_than_memory_differing": len(found["differing"]) + (not plain_dies),
        "larger_than_memory_peak_to_budget": found["peak_bytes"] / budget,
        "larger_than_memory_step_ratio": found["step_ratio"],
    }


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options; `words` in place of the command line's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt2-medium")
    parser.add_argument("--budget", type=size, help='bytes or "2GiB"; by default the model\'s own')
    parser.add_argument(
        "--beside", type=size, default=256 * MIB, help="what the limit leaves beside it"
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--minimize", choices=["energy", "time", "memory"], default="time")
    parser.add_argument("--time-limit", type=float, default=90, help="seconds for the planner")
    parser.add_argument("--page-dir", help="where paged values go; the default is poet's")
    parser.add_argument("--forms", nargs="+", choices=["plain", "poet"], default=["plain", "poet"])
    parser.add_argument("--unlimited", action="store_true", help="no RLIMIT_DATA")
    parser.add_argument("--save", metavar="NAME", help="name under benchmarks/data")
    parser.add_argument("--form", choices=["plain", "poet"], help=argparse.SUPPRESS)
    parser.add_argument("--limited", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quiet", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.budget = options.budget or MODELS[options.model].budget
    return options


def size(text: str) -> int:
    """Bytes; a process that is given a number stays free of poet."""
    if text.isdecimal():
        return int(text)
    from poet._budgets import parse_bytes  # noqa: PLC0415

    return parse_bytes(text, name="size")


def main() -> None:
    """Entry point."""
    options = parse()
    if options.form is not None:
        print(json.dumps(run(options)))
        return
    from poet._store import page_folder  # noqa: PLC0415

    folder = page_folder(options.page_dir)
    volume = 2048 * MIB if options.budget >= 1024 * MIB else 512 * MIB
    rates = [raw_rates(folder, volume)]
    plain = answer(child("plain", options)) if "plain" in options.forms else None
    print("plain done", file=sys.stderr, flush=True)
    ours = answer(child("poet", options, limited=not options.unlimited))
    rates.append(raw_rates(folder, volume))
    if plain is None:
        print(json.dumps(ours | {"digests": None, "rates": rates}))
        return
    ended = dies_in_limit(options)
    found = figures(plain, ours, rates)
    for record in (plain, ours):
        del record["digests"]
    if options.save:
        asked = {"model": options.model, "budget_bytes": options.budget, "threads": options.threads}
        kept = context() | asked | {"figures": found, "plain_in_limit": ended}
        save(options.save, kept | {"rates": rates, "trainings": [plain, ours]})
    print(json.dumps({"figures": found, "plain_in_limit": ended, "rates": rates}, indent=1))
    print(json.dumps({"values": values(found, options.budget, ended["died"])}))


if __name__ == "__main__":
    main()
