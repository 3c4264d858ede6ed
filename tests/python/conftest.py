"""What every test starts from."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from ci_budget import against_budget
from turns import TURNS, asked_for, in_turn, turn

from poet import _C, _profile, _store

if "PYTEST_XDIST_WORKER" in os.environ:
    # As many workers as cores: threads of two of them would wait for each other. Tests of what two
    # threads compute say so themselves.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_cache_between_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test neither finds what an earlier run kept nor leaves anything in the user's folder.

    Tests of the cache name a folder themselves.
    """
    monkeypatch.setenv("POET_CACHE_DIR", "")
    # Where a test before it has measured the disk, a solve would page of its own accord.
    monkeypatch.setattr(_store, "_measured", {})
    monkeypatch.setattr(_profile, "_known", {})


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small operators on small machines: threads would take longer, and two runs need the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread_and_tapped(one_thread: None) -> None:
    """Likewise, for the self-checking mode, which must see every block that may be released."""
    _C.tap_for_good()


@pytest.fixture
def old_objects_aside(objects_come_back: None) -> None:
    """What Python holds before the test is not looked through at each call that is recorded.

    That takes much longer than a small step. For tests whose steps hold nothing from before them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def objects_come_back() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_process_group_between_tests() -> Iterator[None]:
    """Where there is one, what collectives may look at stays in memory: in the next test, too."""
    yield
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def nothing_stays_for_the_next_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a file of tests has cached would lie in memory beside the steps of the next one."""
    yield
    for thing in vars(request.module).values():
        if getattr(thing, "__module__", "") == request.module.__name__:
            clear = getattr(thing, "cache_clear", None)
            if clear is not None:
                clear()
    gc.collect()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In CI variants of a test take turns (turns.py)."""
    if not asked_for():
        return
    mine = [item for item in items if not _has_other_turns(item)]
    kept = in_turn((item.nodeid for item in mine), turn(TURNS))
    left = {id(item) for item in mine if item.nodeid not in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left])
    items[:] = [item for item in items if id(item) not in left]


def _has_other_turns(item: pytest.Item) -> bool:
    module = getattr(item, "module", None)
    return (
        item.get_closest_marker("nightly") is not None
        or getattr(module, "TURNS_OF_ITS_OWN", False) is True
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In CI: what each suite took of its share of the hour."""
    if not os.environ.get("CI"):
        return
    reports = [r for some in terminalreporter.stats.values() for r in some]
    parts = [r for r in reports if isinstance(r, pytest.TestReport)]
    terminalreporter.section("CI's hour: seconds of one process (tests/ci_budget.toml)")
    for line in against_budget((r.nodeid.split("::", 1)[0], r.duration) for r in parts):
        terminalreporter.write_line(line)
