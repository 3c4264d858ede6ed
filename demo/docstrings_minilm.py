"""Fine-tunes MiniLM three times: plain, checkpointed, and with poet in less memory than its state.

    python demo/docstrings_minilm.py [--steps 24] [--threads 2]

MiniLM with its real weights learns which module of Python's standard library a sentence is from;
the sentences are those of this machine's docstrings. poet's budget is smaller than what parameters,
gradients and AdamW's state take together, so part of them lies in a file at any time. Each run has
a process of its own, with the same seed and the same batches. Ends with a table and a picture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _trial import Trial, main

_TESTED = 240


def feed() -> Iterator[tuple[Any, ...]]:
    """Batches of sentences and their modules."""
    import torch  # noqa: PLC0415

    import _minilm  # noqa: PLC0415  the parent process needs no torch

    return _minilm.sentences(torch.Generator().manual_seed(0))


def accuracy(model: Any) -> float:
    """The share of held-out sentences whose module the model names correctly."""
    import torch  # noqa: PLC0415

    import _docstrings  # noqa: PLC0415
    import _minilm  # noqa: PLC0415

    rows = _docstrings.load().test[:_TESTED]
    right = 0
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(rows), _minilm.ROWS):
            *inputs, truth = _minilm.encode(rows[begin : begin + _minilm.ROWS])
            right += int((model(*inputs).argmax(1) == truth).sum())
    model.train()
    return right / len(rows)


TRIAL = Trial(
    script=Path(__file__),
    what="MiniLM on sentences of the standard library's docstrings: batches of 16, 64 word pieces",
    architecture="minilm",
    feed=feed,
    accuracy=accuracy,
    share=0.8,
    learning_rate=2e-4,
    picture="docstrings_memory.png",
    caption="One training step of MiniLM on docstrings, batch 16 of 64 word pieces, AdamW",
    steps=18,
)

if __name__ == "__main__":
    sys.exit(main(TRIAL))
