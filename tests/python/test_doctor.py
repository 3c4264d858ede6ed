"""The command `poet`: doctor, its JSON, its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import poet
from poet import _doctor, _store
from poet._cli import main

TOPICS = {
    "poet",
    "system",
    "Python",
    "torch",
    "compiler",
    "solver",
    "solver cbc",
    "solver highs",
    "solver gurobi",
    "page folder",
    "page speed",
    "cache",
    "processor",
    "memory",
    "allocator",
    "GPU",
}
IN_RAM = Path("/dev/shm")


def doctor(
    capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, dict[str, Any]], bool]:
    """Exit code, findings by topic, and the verdict of `poet doctor --json`."""
    code = main(["doctor", "--json", *words])
    content = json.loads(capsys.readouterr().out)
    return code, {finding["topic"]: finding for finding in content["findings"]}, content["works"]


def file_system(folder: Path) -> str:
    """As the program `stat` names it."""
    done = subprocess.run(
        ["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_it_says_what_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, found, works = doctor(capsys, "--cache-dir", str(tmp_path))
    assert code == 0 and works
    assert set(found) >= TOPICS - {"page speed"}
    assert found["poet"]["figures"]["version"] == poet.__version__
    assert found["torch"]["figures"]["version"] == torch.__version__
    assert found["solver"]["state"] == "ok"
    assert found["solver"]["figures"]["status"] == "optimal"
    assert found["memory"]["figures"]["bytes"] > 1 << 26
    assert found["processor"]["figures"]["threads"] == torch.get_num_threads()
    assert found["GPU"]["figures"]["seen"] is torch.cuda.is_available()
    assert found["cache"]["figures"] == {"folder": str(tmp_path), "entries": 0, "bytes": 0}


def test_for_people_every_topic_has_a_line_and_advice_an_arrow(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", "--cache-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for topic in TOPICS - {"page speed"}:
        assert re.search(rf"^(ok|note) +{topic}", text, re.MULTILINE), topic
    assert text.rstrip().endswith("poet works here")


def test_it_measures_the_folder_when_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file_system(tmp_path) == "tmpfs":
        pytest.skip("the folder for temporary files lies in RAM")
    monkeypatch.setattr(_store, "_measured", {})
    words = ("--page-dir", str(tmp_path), "--cache-dir", str(tmp_path / "cache"))
    _, found, _ = doctor(capsys, *words)
    assert found["page speed"]["state"] == "note"
    assert "--measure" in found["page speed"]["advice"]
    assert found["page folder"]["figures"]["folder"] == str(tmp_path.resolve())
    assert found["page folder"]["figures"]["free_bytes"] > 0
    _, found, _ = doctor(capsys, *words, "--measure")
    measured = found["page speed"]["figures"]
    assert found["page speed"]["state"] == "ok"
    assert measured["read_rate"] > 1e5 and measured["write_rate"] > 1e5
    monkeypatch.setattr(_store, "_measured", {})  # another process
    _, found, _ = doctor(capsys, *words)
    assert found["page speed"]["figures"] == measured
    assert found["cache"]["figures"]["entries"] == 1


def test_a_folder_in_ram_that_was_asked_for_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if not IN_RAM.is_dir() or file_system(IN_RAM) != "tmpfs":
        pytest.skip("there is no /dev/shm in RAM")
    code, found, works = doctor(capsys, "--page-dir", str(IN_RAM), "--cache-dir", str(tmp_path))
    assert code == 1 and not works
    assert found["page folder"]["state"] == "missing"
    assert "page_dir=" in found["page folder"]["advice"]


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\nsleep 0\n", None])
def test_a_solver_that_does_not_work_is_exit_code_1(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str | None,
) -> None:
    solver = tmp_path / "solver"
    if program is not None:
        solver.write_text(program)
        solver.chmod(0o755)
    monkeypatch.setenv("POET_SOLVER", str(solver))
    code, found, works = doctor(capsys, "--cache-dir", str(tmp_path))
    assert code == 1 and not works
    assert found["solver"]["state"] == "missing"
    assert found["solver"]["advice"]
    assert main(["doctor", "--cache-dir", str(tmp_path)]) == 1
    assert "not ready, see above: solver" in capsys.readouterr().out


def test_another_allocator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = "7f00-7f01 r-xp 0 0:0 1 /usr/lib/x86_64-linux-gnu/libjemalloc.so.2\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: maps)
    assert _doctor.other_allocator() == "jemalloc"
    (finding,) = _doctor._allocator()
    assert finding.state == "ok"
    assert finding.text == "jemalloc; after poet.wrap large tensors lie in poet's arena"


def test_an_arena_that_is_turned_off_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POET_ARENA", "0")
    (finding,) = _doctor._allocator()
    assert finding.state == "note" and "POET_ARENA" in finding.advice


def test_the_file_system_is_the_one_that_stat_names(tmp_path: Path) -> None:
    names = {"ext2/ext3": ("ext2", "ext3", "ext4"), "overlayfs": ("overlay",)}
    for folder in (tmp_path, Path("/"), Path("/proc")):
        name = file_system(folder)
        assert _doctor._file_system(str(folder.resolve())) in names.get(name, (name,))


def test_an_option_that_makes_no_sense_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main(["doctor", "--cache-dir", str(file)]) == 1
    assert "cache_dir" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--what"])
    assert caught.value.code == 1


def test_version_help_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"poet {poet.__version__}\n"
    assert main([]) == 1
    assert "doctor" in capsys.readouterr().out


def test_it_is_a_module_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "poet", "doctor", "--json", "--cache-dir", str(tmp_path)],
        env=os.environ | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["works"] is True
