"""What other threads, forks, signals and the end of the process do to a wrapped step."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import poet
from poet import _C, _live

SETUP = textwrap.dedent("""
    import os, sys, threading
    import torch, poet
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())])
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x = torch.randn(512, 64)

    def train_step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def wrapped(**options):
        return poet.wrap(train_step, ram_budget="70%", paging=True, cache_dir=sys.argv[1],
                         time_limit_s=20, **options)
""")

STATS_WHILE_TRAINING = """
step = wrapped(background=False)
for _ in range(4):
    step(x)
ended = threading.Event()

def look():
    while not ended.is_set():
        step.stats
        step.graph
        ended.wait(0.002)

watcher = threading.Thread(target=look, daemon=True)
watcher.start()
for _ in range(150):
    step(x)
ended.set()
watcher.join()
assert step.stats.followed_steps >= 150
"""

# Paging alone: on a slow disk a plan would rather recompute.
A_CHILD_THAT_ENDS = """
step = wrapped(background=False, recompute=False)
for _ in range(5):
    step(x)
assert step.stats.planned_page_outs > 0
child = os.fork()
if child == 0:
    del step
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
step(x)
"""

AN_END_WHILE_A_PLAN_IS_SOLVED_FOR = """
step = wrapped(background=True)
for _ in range(3):
    step(x)
assert step.stats.planning
"""


@pytest.mark.parametrize(
    "script",
    [STATS_WHILE_TRAINING, A_CHILD_THAT_ENDS, AN_END_WHILE_A_PLAN_IS_SOLVED_FOR],
    ids=["stats on another thread", "fork", "end while planning"],
)
def test_a_process_ends_well(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + script, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_signal_that_arrives_when_a_step_has_just_begun_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = nn.Linear(4, 4)
    step = poet.wrap(lambda x: net(x).sum().backward(), ram_budget="100%", background=False)
    x = torch.ones(2, 4)
    for _ in range(4):
        step(x)

    def interrupted(session: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_live.raw_doors, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(x)
    assert not _C.is_listening()
    before = step.stats.followed_steps
    step(x)
    assert step.stats.followed_steps == before + 1


def test_apply_in_the_step_is_seen() -> None:
    def trained(wrap: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())])
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        x = torch.randn(256, 32)

        def train_step() -> None:
            optimizer.zero_grad()
            hidden = net[:4](x)
            hidden.detach()[:2].apply_(lambda v: v * 0.5)
            net[4:](hidden).square().mean().backward()
            optimizer.step()

        step = (
            poet.wrap(train_step, ram_budget="65%", background=False, time_limit_s=10)
            if wrap
            else train_step
        )
        for _ in range(6):
            step()
        return [p.detach().clone() for p in net.parameters()]

    for a, b in zip(trained(False), trained(True), strict=True):
        assert torch.equal(a, b)
