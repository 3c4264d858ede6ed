"""Trainers that own the loop: README's one line in each, with and without accumulation.

README's budget is a share of all that is resident: each runs in a process of its own.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from own_process import in_a_process_of_its_own
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from zoo import differences

import poet

_README = Path(__file__).parents[2] / "README.md"
_OPTIONS: dict[str, Any] = {
    "background": False,
    "cache_dir": None,
    "paging": False,
    "time_limit_s": 5,
}


def _wrap_as_readme_says(name: str, owner: object) -> poet.WrappedStep:
    """Runs README's line that wraps a method of `name`; the options only make it deterministic."""
    line = rf"^({name}\.(\w+) = poet\.wrap\(.*)\)$"
    [(call, method)] = re.findall(line, _README.read_text("utf-8"), re.MULTILINE)
    exec(f"{call}, **options)", {"poet": poet, name: owner, "options": _OPTIONS})
    wrapped = getattr(owner, method)
    assert isinstance(wrapped, poet.WrappedStep)
    return wrapped


def _check_followed(step: poet.WrappedStep) -> None:
    assert step.schedule is not None
    assert step.schedule.has_plan
    assert step.stats.followed_steps >= 4
    assert step.stats.planned_recomputes > 0
    # Gradients are new in the first micro-batch. A trainer holds one batch more at some steps than
    # at others: a plan with no room for it is left, once, and made again.
    assert step.stats.departures <= 1 + step.stats.plans_made_again, step.stats


def _check_planned_after_two_of_a_kind(step: poet.WrappedStep, variants: int) -> None:
    """By its shapes a batch finds its own plan, where no history tells that it comes."""
    assert step.stats.variants == variants
    assert step.stats.traced_steps <= 2 * variants
    assert step.stats.unrecorded_steps == 0


# ------------------------------------------------------------------------------------------------
# Hugging Face


class _Tokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, samples: int) -> None:
        self._ids = torch.randint(0, 300, (samples, 48), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._ids[i], "labels": self._ids[i]}


def _hugging_face(
    folder: Path, accumulation: int, samples: int, *, wrapped: bool
) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 48}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=64 // samples,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=_Tokens(samples))
    step = _wrap_as_readme_says("trainer", trainer) if wrapped else None
    trainer.train()
    if step is not None:
        _check_followed(step)
        variants = 2 if accumulation > 1 or samples % 4 else 1
        _check_planned_after_two_of_a_kind(step, variants)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, dict(model.state_dict())


def _check_hugging_face(folder: Path, accumulation: int, samples: int) -> None:
    losses, state = _hugging_face(folder, accumulation, samples, wrapped=False)
    got, got_state = _hugging_face(folder, accumulation, samples, wrapped=True)
    assert len(losses) >= 14 // accumulation
    assert got == losses
    assert differences(state, got_state) == []


@pytest.mark.parametrize(("accumulation", "samples"), [(1, 64), (2, 64), (1, 10)])
def test_hugging_face_trainer(accumulation: int, samples: int, tmp_path: Path) -> None:
    in_a_process_of_its_own(_check_hugging_face, tmp_path, accumulation, samples)


# ------------------------------------------------------------------------------------------------
# Lightning


class _Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
        self.net = nn.Sequential(*layers, nn.Linear(64, 10))
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


class _Manual(_Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, i: int) -> torch.Tensor:
        loss = super().training_step(batch, i)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss.detach()


def _lightning(
    accumulation: int,
    *,
    wrapped: bool,
    manual: bool = False,
    samples: int = 2048,
    callbacks: tuple[pl.Callback, ...] = (),
) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    module = _Manual() if manual else _Module()
    data = TensorDataset(torch.randn(samples, 64), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, batch_size=1024, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=8,
        accelerator="cpu",
        accumulate_grad_batches=accumulation,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    step = None
    if wrapped and manual:
        step = module.training_step = poet.wrap(module.training_step, ram_budget="60%", **_OPTIONS)
    elif wrapped:
        step = _wrap_as_readme_says("module", module)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .* does not have many workers")
        trainer.fit(module, loader)
    if step is not None:
        _check_followed(step)
        if samples % 1024:
            _check_planned_after_two_of_a_kind(step, variants=3)  # optimizer state is made first
    return module.losses, dict(module.state_dict())


def _check_lightning(accumulation: int, manual: bool) -> None:
    losses, state = _lightning(accumulation, wrapped=False, manual=manual)
    got, got_state = _lightning(accumulation, wrapped=True, manual=manual)
    assert len(losses) == 16
    assert got == losses
    assert differences(state, got_state) == []


@pytest.mark.parametrize(("accumulation", "manual"), [(1, False), (2, False), (1, True)])
def test_lightning(accumulation: int, manual: bool) -> None:
    in_a_process_of_its_own(_check_lightning, accumulation, manual)


def _check_lightning_shorter_last_batch() -> None:
    losses, state = _lightning(1, wrapped=False, samples=1024 + 600)
    got, got_state = _lightning(1, wrapped=True, samples=1024 + 600)
    assert got == losses
    assert differences(state, got_state) == []


def test_lightning_with_a_shorter_last_batch() -> None:
    in_a_process_of_its_own(_check_lightning_shorter_last_batch)


def _check_weight_averages() -> None:
    """The callback copies the module, and the step that is its attribute."""
    average = pl.callbacks.StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=4)
    losses, state = _lightning(1, wrapped=False, callbacks=(average,))
    average = pl.callbacks.StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=4)
    got, got_state = _lightning(1, wrapped=True, callbacks=(average,))
    assert got == losses
    assert differences(state, got_state) == []


def test_lightning_with_weight_averages() -> None:
    in_a_process_of_its_own(_check_weight_averages)
