"""Would it pay to compress paged values? What real ones shrink to, and how fast.

    python benchmarks/store/compression.py [--mib 24] [--steps 20] [--save store_compression]

Trains ResNet-18, GPT-2 and BERT (benchmarks/steps.py), takes what a plan would page out of the
last step (activations that backward needs, gradients, AdamW's state, parameters, of 64 KiB and
more, up to --mib of each), and packs and unpacks it with LZ4 and Zstandard behind a byte shuffle,
in chunks of 512 KiB as the store transfers, on one thread (Blosc2: pip install blosc2). A store
pays for compression where it carries fewer bytes a second than `pays_below`: there writing and
reading a value whole takes as long as packing it, writing and reading what is left, and unpacking
it. What a processor that trains meanwhile loses comes on top. Every unpacked value is compared with
its bytes.

Prints a line for each kind of value and codec. Data: data/store_compression.json.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from _data import context, save
from steps import Training, batches

ARCHITECTURES = ("resnet18", "gpt2", "bert")
_LEAST_BYTES = 64 << 10
_CHUNK_BYTES = 512 << 10
_ROUNDS = 3  # of processor time the least counts: what disturbs only adds


def values_of(architecture: str, steps: int, most_bytes: int) -> dict[str, list[bytes]]:
    """Kind -> bytes of what a plan may page out of the last of these steps."""
    training = Training(architecture)
    feed = batches(architecture)
    found: dict[str, list[bytes]] = defaultdict(list)
    sizes: dict[str, int] = defaultdict(int)
    seen: set[int] = set()

    def add(kind: str, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.nbytes() < _LEAST_BYTES or sizes[kind] + storage.nbytes() > most_bytes:
            return
        if storage.data_ptr() in seen:
            return
        seen.add(storage.data_ptr())
        sizes[kind] += storage.nbytes()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        found[kind].append(whole.numpy().tobytes())

    for _ in range(steps - 1):
        training.step(*next(feed))
    for parameter in training.model.parameters():
        seen.add(parameter.untyped_storage().data_ptr())  # saved for backward, too

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        add("activations", tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        training.step(*next(feed))
    seen.clear()
    for name, tensor in training.each_state():
        add({"optimizer": "state"}.get(name.split()[0], f"{name.split()[0]}s"), tensor)
    return found


def measure(chunks: list[bytes], codec: str, level: int) -> dict[str, float]:
    """Ratio, and bytes a second of the unpacked values."""
    blosc2: Any = importlib.import_module("blosc2")  # needed here alone
    options = {
        "codec": getattr(blosc2.Codec, codec),
        "clevel": level,
        "typesize": 4,
        "filters": [blosc2.Filter.SHUFFLE],
        "filters_meta": [0],
        "nthreads": 1,
        "splitmode": blosc2.SplitMode.ALWAYS_SPLIT,
    }
    size = sum(map(len, chunks))
    packing, unpacking = [], []
    for _ in range(_ROUNDS):
        start = time.thread_time()
        packed = [blosc2.compress2(chunk, **options) for chunk in chunks]
        middle = time.thread_time()
        whole = [blosc2.decompress2(chunk, nthreads=1) for chunk in packed]
        end = time.thread_time()
        if any(a != b for a, b in zip(chunks, whole, strict=True)):
            raise RuntimeError(f"{codec}: other bytes came out than went in")
        packing.append(middle - start)
        unpacking.append(end - middle)
    ratio = size / sum(map(len, packed))
    seconds = min(packing) + min(unpacking)
    return {
        "ratio": ratio,
        "pack_rate": size / min(packing),
        "unpack_rate": size / min(unpacking),
        "pays_below": max(0.0, 2 * size * (1 - 1 / ratio) / seconds),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=24, help="of each kind of value, at most")
    parser.add_argument("--steps", type=int, default=20, help="of training before values are taken")
    parser.add_argument("--save", default=None, metavar="NAME", help="of the file in data/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for architecture in ARCHITECTURES:
        found = values_of(architecture, options.steps, options.mib << 20)
        for kind, values in found.items():
            chunks = [
                value[i : i + _CHUNK_BYTES]
                for value in values
                for i in range(0, len(value), _CHUNK_BYTES)
            ]
            for codec, level in (("LZ4", 5), ("ZSTD", 1)):
                row: dict[str, Any] = {"architecture": architecture, "kind": kind, "codec": codec}
                row["bytes"] = sum(map(len, values))
                row |= measure(chunks, codec, level)
                rows.append(row)
                print(
                    f"{architecture:9} {kind:12} {codec:5} {row['bytes'] / 2**20:6.1f} MiB"
                    f"  {row['ratio']:5.2f}  packs {row['pack_rate'] / 1e6:6.0f} MB/s"
                    f"  unpacks {row['unpack_rate'] / 1e6:6.0f} MB/s"
                    f"  pays below {row['pays_below'] / 1e6:6.0f} MB/s",
                    flush=True,
                )
    if options.save:
        save(options.save, {"context": context(), "rows": rows})


if __name__ == "__main__":
    main()
