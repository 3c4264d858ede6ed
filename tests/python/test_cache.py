"""cache_dir: what lasts between runs, and what a damaged or hostile folder can do: nothing."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import textwrap
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poet
from poet import _cache, _store
from poet._cache import Cache, default_cache_dir, open_cache

KEY = {"name": "a step", "numbers": [1, 2.5], "none": None}
PAYLOAD = {"text": "x" * 3000, "list": [1, 2, {"deep": [True, None]}]}


def entry_file(folder: Path, kind: str = "plan") -> Path:
    found = sorted(folder.glob(f"{kind}-*.poet"))
    assert len(found) == 1, found
    return found[0]


def packed(content: object, version: bytes = b"1") -> bytes:
    """An entry as a stranger could write it: its hash agrees."""
    body = zlib.compress(json.dumps(content).encode())
    return b"poet-cache %s %s\n" % (version, hashlib.sha256(body).hexdigest().encode()) + body


# ---------------------------------------------------------------- entries


def test_where_memory_is_short_there_is_no_entry_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    assert cache.put("plan", KEY, PAYLOAD)

    def short(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(_cache, "_read", short)
    with pytest.warns(poet.CacheWarning, match="memory is short"):
        assert cache.get("plan", KEY) is None
    monkeypatch.setattr(_cache, "_encode", short)
    with pytest.warns(poet.CacheWarning, match="memory is short"):
        assert not cache.put("plan", KEY, PAYLOAD)


def test_reading_takes_the_memory_of_the_entry_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.put("plan", KEY, PAYLOAD)
    tracemalloc.start()
    assert cache.get("plan", KEY) == PAYLOAD
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_an_entry_comes_back_and_another_key_finds_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "folder")
    assert cache.get("plan", KEY) is None
    assert cache.put("plan", KEY, PAYLOAD)
    assert cache.get("plan", KEY) == PAYLOAD
    assert Cache(cache.folder).get("plan", dict(reversed(KEY.items()))) == PAYLOAD
    assert cache.get("plan", KEY | {"none": 0}) is None
    assert cache.get("trace", KEY) is None
    assert cache.put("plan", KEY, {"new": 1}) and cache.get("plan", KEY) == {"new": 1}
    assert cache.size()[0] == 1


def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "poet")
    before = os.umask(0)
    try:
        cache.put("plan", KEY, PAYLOAD)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_file(cache.folder).stat().st_mode) == 0o600


def test_every_shortened_entry_is_dropped(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("plan", KEY, PAYLOAD)
    file = entry_file(tmp_path)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", poet.CacheWarning)
            assert Cache(tmp_path).get("plan", KEY) is None
        assert not file.exists()
    file.write_bytes(whole)
    assert cache.get("plan", KEY) == PAYLOAD


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    Cache(tmp_path).put("plan", KEY, PAYLOAD)
    file = entry_file(tmp_path)
    whole = file.read_bytes()
    for position in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        file.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", poet.CacheWarning)
            assert Cache(tmp_path).get("plan", KEY) is None, position
        assert not file.exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "begin"),
        (b"\x00" * 4000, "begin"),
        (packed({"key": KEY, "payload": PAYLOAD}, version=b"2"), "version 2"),
        (packed({"key": {"name": "other"}, "payload": PAYLOAD}), "something else"),
        (packed({"key": KEY, "payload": [1]}), "no payload"),
        (packed([KEY, PAYLOAD]), "something else"),
        (b"poet-cache 1 " + hashlib.sha256(b"x").hexdigest().encode() + b"\nx", "unpack"),
    ],
)
def test_strange_entries_are_dropped_with_one_warning(
    tmp_path: Path, data: bytes, words: str
) -> None:
    cache = Cache(tmp_path)
    cache.put("plan", KEY, PAYLOAD)
    file = entry_file(tmp_path)
    file.write_bytes(data)
    with pytest.warns(poet.CacheWarning, match=words) as caught:
        assert cache.get("plan", KEY) is None
    assert len(caught) == 1
    assert not file.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("plan", KEY) is None


def test_nested_and_swollen_json_is_dropped(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("plan", KEY, PAYLOAD)
    file = entry_file(tmp_path)
    for text in (b"[" * 10_000_000, b" " * ((1 << 29) + 1)):
        body = zlib.compress(text, 1)
        file.write_bytes(
            b"poet-cache 1 " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        )
        with pytest.warns(poet.CacheWarning, match=r"unpack"):
            assert cache.get("plan", KEY) is None


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "poet")
    cache.put("plan", KEY, PAYLOAD)
    file = entry_file(cache.folder)
    outside = tmp_path / "outside"
    file.rename(outside)
    file.symlink_to(outside)
    with pytest.warns(poet.CacheWarning, match="link"):
        assert cache.get("plan", KEY) is None
    assert outside.exists()
    os.mkfifo(file)
    with pytest.warns(poet.CacheWarning, match="not a file"):
        assert cache.get("plan", KEY) is None


def test_the_folder_stays_below_its_size_and_the_oldest_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=20_000)
    (tmp_path / "plan-notes.txt").write_text("mine")
    text = [hashlib.sha256(b"%d" % i).hexdigest() * 40 for i in range(40)]
    for i in range(40):
        assert cache.put("plan", {"i": i}, {"text": text[i], "noise": os.urandom(600).hex()})
        for file in tmp_path.glob("plan-*.poet"):  # a second older with every entry
            status = file.stat()
            os.utime(file, (status.st_atime - 1, status.st_mtime - 1))
        assert cache.get("plan", {"i": 0}) is not None  # used every time
    entries, size = cache.size()
    assert size <= 20_000
    assert 2 < entries < 40
    assert cache.get("plan", {"i": 39}) is not None
    assert cache.get("plan", {"i": 1}) is None
    assert (tmp_path / "plan-notes.txt").read_text() == "mine"


def test_what_a_killed_process_left_is_removed_later(tmp_path: Path) -> None:
    left, young = tmp_path / f".new-{'0' * 16}.poet", tmp_path / f".new-{'1' * 16}.poet"
    left.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    Cache(tmp_path).put("plan", KEY, PAYLOAD)
    assert not left.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_written_to_is_said_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = Cache(blocked / "below")
    with pytest.warns(poet.CacheWarning, match="nothing can be kept") as caught:
        assert not cache.put("plan", KEY, PAYLOAD)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not cache.put("plan", KEY, PAYLOAD)
        assert cache.get("plan", KEY) is None


HAMMER = """
import sys, warnings
from pathlib import Path
from poet._cache import Cache
warnings.simplefilter("error")
cache = Cache(Path(sys.argv[1]), max_bytes=60_000)
seen = 0
for i in range(400):
    key = {"k": i % 7}
    text = ("%d " % (i % 7)) * 2000
    cache.put("plan", key, {"k": i % 7, "text": text, "who": sys.argv[2] * 5000})
    found = cache.get("plan", {"k": (i * 3) % 7})
    if found is not None:
        seen += 1
        assert found["k"] == (i * 3) % 7
        assert found["text"] == ("%d " % ((i * 3) % 7)) * 2000
        assert found["who"] in ("a" * 5000, "b" * 5000)
print(seen)
"""


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(tmp_path), who],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in "ab"
    ]
    for process in running:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        assert int(out) > 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(Cache(tmp_path).get("plan", {"k": k}) is not None for k in range(7))
    assert list(tmp_path.glob(".new-*")) == []


# ---------------------------------------------------------------- which folder


def test_the_users_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "poet"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "poet"
    monkeypatch.setenv("POET_CACHE_DIR", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"
    cache = open_cache(True)
    assert cache is not None and cache.folder == tmp_path / "own"
    monkeypatch.setenv("POET_CACHE_DIR", "")
    assert open_cache(True) is None


def test_no_cache_and_arguments_that_make_no_sense(tmp_path: Path) -> None:
    assert open_cache(None) is None
    assert open_cache(False) is None
    file = tmp_path / "file"
    file.write_text("")
    for wrong in (file, 3, "", b""):
        with pytest.raises(poet.ArgumentError, match="cache_dir"):
            poet.wrap(lambda: None, ram_budget="1GiB", cache_dir=wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the store's speed


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A process that has measured nothing; the folders that it measures."""
    measured: list[str] = []

    def measure(directory: str, seconds: float) -> dict[str, float]:
        measured.append(directory)
        rates = {"read_rate": 2e9, "write_rate": 1e9}
        return rates | {"read_latency_seconds": 1e-4, "write_latency_seconds": 2e-4}

    monkeypatch.setattr(_store, "_measured", {})
    monkeypatch.setattr(_store._C, "measure_store", measure)
    return measured


def test_a_folder_is_measured_once_for_all_runs(
    tmp_path: Path, forgetful: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, folder = Cache(tmp_path / "cache"), str(tmp_path)
    first = _store.store_speed(folder, cache)
    assert _store.store_speed(folder, cache) == first
    monkeypatch.setattr(_store, "_measured", {})  # another process
    assert _store.store_speed(folder, cache) == first
    assert len(forgetful) == 1
    _store.store_speed(folder, cache, remeasure=True)
    assert len(forgetful) == 2
    device = first.on(poet.DeviceProfile.by_name("host"))
    assert device.has_store
    assert (device.store_read_rate, device.store_write_rate) == (2e9, 1e9)
    assert folder in device.store_source


@pytest.mark.parametrize("days", [31, -2])
def test_old_speeds_are_measured_anew(
    tmp_path: Path, forgetful: list[str], monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    cache, folder = Cache(tmp_path / "cache"), str(tmp_path)
    now = time.time()
    _store.store_speed(folder, cache)
    monkeypatch.setattr(_store, "_measured", {})
    monkeypatch.setattr(_store.time, "time", lambda: now + days * 86400)
    assert _store.known_speed(folder, cache) is None
    _store.store_speed(folder, cache)
    assert len(forgetful) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"read_rate": 0.0},
        {"read_rate": -1e9},
        {"write_rate": float("inf")},
        {"write_rate": float("nan")},
        {"write_rate": "1e9"},
        {"read_latency_seconds": 1e9},
        {"measured_at": True},
        {"more": 1},
    ],
)
def test_speeds_that_no_store_has_are_dropped(
    tmp_path: Path,
    forgetful: list[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, object],
) -> None:
    cache, folder = Cache(tmp_path / "cache"), str(tmp_path)
    _store.store_speed(folder, cache)
    monkeypatch.setattr(_store, "_measured", {})
    key = _store._key(folder)
    payload = cache.get("store", key)
    assert payload is not None
    cache.put("store", key, payload | change)
    with pytest.warns(poet.CacheWarning, match="speeds"):
        assert _store.known_speed(folder, cache) is None
    assert not list(cache.folder.glob("store-*"))


# ---------------------------------------------------------------- plans of an earlier run


class _Model:
    def __init__(self, rows: int = 1024) -> None:
        torch.manual_seed(0)
        layers = [m for _ in range(10) for m in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1))]
        self.net = nn.Sequential(*layers, nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), foreach=False)
        self.x, self.y = torch.randn(rows, 16), torch.randint(0, 4, (rows,))

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def run(cache_dir: Path | None, calls: int = 6, rows: int = 1024, **options: Any) -> Any:
    """Losses of one "script", its statistics and its schedule."""
    model = _Model(rows)
    words = {"ram_budget": "80%", "background": False, "time_limit_s": 2, "paging": False}
    step = poet.wrap(model.step, cache_dir=cache_dir, **words | options)
    losses = [float(step(model.x, model.y)) for _ in range(calls)]
    return losses, step.stats, step.schedule


def test_the_second_run_starts_planned(tmp_path: Path) -> None:
    plain, _, _ = run(None)
    first, stats, schedule = run(tmp_path)
    assert (stats.plans_from_cache, stats.followed_steps) == (0, 3)
    second, again, kept = run(tmp_path)
    # Call 1 makes the optimizer's state; call 2 is known, so the third follows the plan.
    assert (again.plans_from_cache, again.traced_steps, again.followed_steps) == (1, 2, 4)
    assert plain == first == second
    assert kept == schedule
    assert str(kept).startswith(str(schedule).splitlines()[0])
    assert kept.traced_graph is not None


def test_a_kept_plan_that_pages_can_be_drawn(tmp_path: Path) -> None:
    options = {"paging": True, "recompute": False, "page_dir": tmp_path}
    for kept in (False, True):
        _, stats, schedule = run(tmp_path / "cache", **options)
        assert stats.plans_from_cache == kept and schedule.page_ins > 0
        assert schedule.device.has_store
        schedule.plot(str(tmp_path / "plan.png"))


@pytest.mark.parametrize(
    "options",
    [
        {"ram_budget": "85%"},
        {"ram_budget": 3_000_000},
        {"runtime_budget": 1.5},
        {"minimize": "time"},
        {"rows": 512},
    ],
)
def test_other_wishes_get_another_plan(tmp_path: Path, options: dict[str, Any]) -> None:
    run(tmp_path)
    stats = run(tmp_path, **options)[1]
    assert stats.plans_from_cache == 0
    assert stats.followed_steps > 0 or stats.message
    if "rows" not in options:  # the step is known: its second call already is worth a plan
        assert stats.traced_steps == 2 or stats.message


def test_a_longer_search_is_made_unless_the_plan_is_optimal(tmp_path: Path) -> None:
    _, stats, schedule = run(tmp_path, time_limit_s=10)
    assert stats.plans == 1
    expected = 1 if schedule.status == "optimal" else 0
    assert run(tmp_path, time_limit_s=30)[1].plans_from_cache == expected
    assert run(tmp_path, time_limit_s=5)[1].plans_from_cache == 1


def rewrite(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes an entry's payload, and its hash with it."""
    _, _, body = file.read_bytes().partition(b"\n")
    content = json.loads(zlib.decompress(body))
    change(content["payload"])
    file.write_bytes(packed(content))


def change_schedule(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def changed(payload: dict[str, Any]) -> None:
        schedule = json.loads(payload["schedule"])
        change(schedule)
        payload["schedule"] = json.dumps(schedule)

    return changed


def without_recomputes(schedule: dict[str, Any]) -> None:
    for where in ("before", "after"):
        if where in schedule:
            schedule[where] = [[] for _ in schedule[where]]


def other_graph(schedule: dict[str, Any]) -> None:
    schedule["graph_signature"] = "0123456789abcdef"


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: payload.update(schedule="{"),
        lambda payload: payload.update(schedule=7),
        lambda payload: payload.update(schedule="[" * 100_000),
        lambda payload: payload.update(plain_peak_bytes="much"),
        lambda payload: payload.pop("time_limit_s"),
        change_schedule(other_graph),
        change_schedule(lambda s: s.update(makespan_seconds=1e-9)),
        change_schedule(lambda s: s.update(status="infeasible")),
        change_schedule(lambda s: s.clear()),
    ],
)
def test_a_plan_that_lies_is_dropped_and_solved_for_again(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    losses = run(tmp_path)[0]
    rewrite(entry_file(tmp_path), change)
    with pytest.warns(poet.CacheWarning, match="dropped"):
        again, stats, schedule = run(tmp_path)
    assert again == losses
    assert stats.plans_from_cache == 0
    assert stats.plans == 1
    assert schedule.status in ("optimal", "feasible")
    with warnings.catch_warnings():
        warnings.simplefilter("error", poet.CacheWarning)
        assert run(tmp_path)[1].plans_from_cache == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: payload.update(ops=[]),
        lambda payload: payload.update(ops=7),
        lambda payload: payload["ops"][3].__setitem__(0, -1.0),
        lambda payload: payload["ops"][3].__setitem__(0, float("nan")),
        lambda payload: payload["ops"][3].__setitem__(0, float("inf")),
        lambda payload: payload["ops"][3].__setitem__(1, 1.5),
        lambda payload: payload["ops"][3].__setitem__(1, (1 << 62) - 1),
        lambda payload: payload.update(measured_at="yesterday"),
        lambda payload: payload.update(measured_at=10**400),
        lambda payload: payload.update(ops=[[0, 0] for _ in payload["ops"]]),
    ],
)
def test_a_profile_that_lies_costs_at_most_the_plan(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    losses = run(tmp_path)[0]
    rewrite(entry_file(tmp_path, "trace"), change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again, stats, _ = run(tmp_path)
    assert again == losses
    assert stats.plans_from_cache == 0


def test_an_unwritable_cache_changes_nothing_else(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.warns(poet.CacheWarning, match="nothing can be kept") as caught:
        losses, stats, _ = run(blocked / "below")
    assert sum(issubclass(w.category, poet.CacheWarning) for w in caught) == 1
    assert stats.followed_steps == 3
    assert losses == run(None)[0]


SCRIPT = textwrap.dedent("""
    import json, sys
    import torch, poet
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [m for _ in range(8) for m in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2))]
    net = nn.Sequential(*layers, nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x, y = torch.randn(1024, 32), torch.randint(0, 4, (1024,))

    def train_step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = poet.wrap(train_step, ram_budget="75%", background=False, time_limit_s=20, paging=False)
    losses = [float(step(x, y)).hex() for _ in range(6)]
    weights = [float(p.detach().double().sum()).hex() for p in net.parameters()]
    stats = step.stats
    print(json.dumps([losses + weights, stats.plans_from_cache, stats.followed_steps, stats.plans]))
""")


def test_a_second_process_starts_planned(tmp_path: Path) -> None:
    def process() -> list[Any]:
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
        del environment["POET_CACHE_DIR"]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        found: list[Any] = json.loads(done.stdout)
        return found

    first, second = process(), process()
    assert first[1:] == [0, 3, 1]
    assert second[1:] == [1, 4, 1]
    assert first[0] == second[0]
    assert (tmp_path / "poet").is_dir()
