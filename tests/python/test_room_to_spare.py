"""Where nothing presses, steps and what runs between them hardly take each other's pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, sys
import torch
from torch import nn
import poet

torch.set_num_threads(1)
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(128, 4, 320, dropout=0.1, batch_first=True)
net = nn.Sequential(nn.TransformerEncoder(layer, 6), nn.Linear(128, 200))
optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
x = torch.randn(8, 96, 128)


def train_step(x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


wrapped = poet.wrap(
    train_step, ram_budget=sys.argv[1], background=False, paging=False, cache_dir=None
)
for _ in range(6):
    wrapped(x)
assert wrapped.stats.followed_steps > 0


def turns(count):
    before = poet._C.arena_counters()
    for _ in range(count):
        train_step(x)
        wrapped(x)
    after = poet._C.arena_counters()
    return {key: after[key] - before[key] for key in after if key.endswith("_bytes")}


turns(4)
found = turns(8)
found["resident"] = poet._C.arena_counters()["most_resident"]
found["peak"] = wrapped.stats.arena_peak_bytes
found["planned_peak"] = wrapped.schedule.peak_bytes
print(json.dumps(found))
"""

OURS = {name: value for name, value in os.environ.items() if name != "POET_ARENA"}


def run(budget: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, budget],
        env=OURS | {"OMP_NUM_THREADS": "1", "POET_VERIFY": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_fewer_pages_move_where_the_budget_has_room() -> None:
    tight, roomy = run("101%"), run("200%")
    assert tight["moved_bytes"] > 0
    assert roomy["moved_bytes"] < tight["moved_bytes"] / 2
    assert roomy["fresh_bytes"] < tight["fresh_bytes"] / 2


@pytest.mark.parametrize("budget", ["101%", "200%"])
def test_the_arena_keeps_no_more_than_it_may(budget: str) -> None:
    found = run(budget)
    spare = found["planned_peak"] // 32 if budget == "200%" else 0
    assert found["peak"] > 0
    assert found["resident"] <= found["peak"] + spare
