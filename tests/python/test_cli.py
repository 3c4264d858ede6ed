"""The command line: flags, JSON, exit codes, and the two ways in that POET's users know."""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from small_steps import chain_graph

import poet
from poet._cli import _parser, main
from poet._cli_common import in_flags

REPOSITORY = Path(__file__).resolve().parents[2]
PAPER = ("--model", "linear", "--platform", "m4", "--graph", "paper")


def run(*words: str) -> int:
    return main(list(words))


def test_solve_prints_the_attributes_of_a_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("solve", *PAPER, "--ram-budget", "3708", "--runtime-budget", "1.5", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    schedule = poet.solve(
        model="linear", platform="m4", graph="paper", ram_budget=3708, runtime_budget=1.5
    )
    for name in ("status", "objective", "energy_joules", "peak_bytes", "ram_budget", "num_ops"):
        assert record[name] == getattr(schedule, name)
    assert set(record) - {"device", "energy_source"} <= set(dir(schedule))
    assert "chipsets.py" in record["energy_source"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("solve", *PAPER, "--ram-budget", "2224"), 2),
        (("solve", *PAPER, "--ram-budget", "0"), 1),
        (("solve", "--model", "lineer"), 1),
        (("solve", "--model", "linear", "--platform", "m5"), 1),
        (("show", "absent.json"), 1),
        ((), 1),
    ],
)
def test_exit_codes(words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == code
    assert code != 1 or not words or capsys.readouterr().err.startswith("poet ")


@pytest.mark.parametrize("words", [("solve",), ("solve", *PAPER, "--nonsense"), ("nonsense",)])
def test_words_that_nobody_knows_end_with_1(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as info:
        run(*words)
    assert info.value.code == 1


def test_advice_is_in_the_words_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = chain_graph()
    least = poet.solve(graph=graph, ram_budget=4096, time_limit_s=5).least_ram_budget
    graph.save(tmp_path / "step.json")
    words = ("--ram-budget", str(least), "--runtime-budget", "1.01")
    assert run("solve", "--model", str(tmp_path / "step.json"), *words) == 2
    said = capsys.readouterr().out
    assert "let it page to a disk: --paging" in said
    assert "paging=True" not in said


@pytest.mark.parametrize(
    "command", ["solve", "trace", "pareto", "compare", "profile", "show", "doctor"]
)
def test_help_has_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        run(command, "--help")
    assert info.value.code == 0
    text = capsys.readouterr().out
    assert f"  poet {command} " in text and "exit codes:" in text and "--json" in text
    for example in re.findall(rf"^  poet ({command}[^|#\n]*)", text, re.MULTILINE):
        _parser().parse_args(shlex.split(example))


def test_a_saved_plan_is_shown_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    assert run("solve", *PAPER, "--ram-budget", "3708", "--out", plan) == 0
    capsys.readouterr()
    picture, perfetto = str(tmp_path / "plan.png"), str(tmp_path / "plan.trace.json")
    assert run("show", plan, "--plot", picture, "--perfetto", perfetto) == 0
    assert "optimal schedule of 27 ops" in capsys.readouterr().out
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    events = json.loads(Path(perfetto).read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) >= 26
    (tmp_path / "plan.graph.json").unlink()
    assert run("show", plan) == 1
    assert "--graph: expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flag", "name", "expected"),
    [
        ("solve", "--plot", "plan.bad", r"--plot: expected a picture's name.*\.svg"),
        ("solve", "--out", "absent/plan.json", "--out: expected a file in a folder that exists"),
        ("solve", "--perfetto", ".", "--perfetto: expected the name of a file"),
        ("pareto", "--plot", "absent/curve.png", "--plot: expected a file in a folder"),
        ("compare", "--out", "absent/table.csv", "--out: expected a file in a folder"),
        ("compare", "--out", "table.xyz", r"--out: expected a file whose name ends in \.json"),
        ("trace", "--out", "absent/step.json", "--out: expected a file in a folder"),
    ],
)
def test_what_cannot_be_written_is_found_before_the_work(
    command: str,
    flag: str,
    name: str,
    expected: str,
    tmp_path: Path,
) -> None:
    words = (command, "--model", "nobody looks at this yet", flag, str(tmp_path / name))
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        assert run(*words) == 1
    assert re.search(expected, err.getvalue()) and not out.getvalue()
    assert not list(tmp_path.iterdir())


def test_an_unknown_word_is_told_by_the_command_that_got_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as info:
        run("solve", *PAPER, "--ram-budge", "1", "--metod", "poet")
    assert info.value.code == 1
    err = capsys.readouterr().err
    assert "unrecognized arguments: --metod poet. Did you mean '--method'" in err
    assert err.splitlines()[1:] == ["`poet solve --help` says what it takes."]


def test_what_only_a_plan_can_fill_is_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, picture, trace = (str(tmp_path / name) for name in ("plan.json", "a.png", "a.trace"))
    words = ("--ram-budget", "2224", "--out", plan)
    assert run("solve", *PAPER, *words, "--plot", picture, "--perfetto", trace) == 2
    said = "there is no plan, so no picture (--plot) and no trace (--perfetto) was written\n"
    assert capsys.readouterr().err == f"poet solve: {said}"
    assert run("show", plan) == 0, "it shows what was asked for"
    assert capsys.readouterr().err == ""
    assert run("show", plan, "--perfetto", trace) == 2
    said = "there is no plan, so no trace (--perfetto) was written\n"
    assert capsys.readouterr().err == f"poet show: {said}"
    assert run("pareto", *PAPER, "--budgets", "2224", "--plot", picture) == 2
    assert "no picture (--plot)" in capsys.readouterr().err
    assert not {"a.png", "a.trace"} & {path.name for path in tmp_path.iterdir()}


def test_a_shown_plan_is_advised_in_the_words_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, plan = chain_graph(), str(tmp_path / "plan.json")
    graph.save(tmp_path / "step.json")
    words = ("--ram-budget", "1", "--time-limit-s", "2", "--out", plan)
    assert run("solve", "--model", str(tmp_path / "step.json"), *words) == 2
    solved = capsys.readouterr().out
    assert run("show", plan) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if "help" in line] == [
        line for line in solved.splitlines() if "help" in line
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("away_between_steps=True, as poet.wrap", "--away-between-steps, as poet.wrap"),
        ('runtime_budget=1.5, say, or minimize="time"', "--runtime-budget 1.5, say, or --mini"),
    ],
)
def test_arguments_are_told_as_flags(text: str, told: str) -> None:
    assert in_flags(text).startswith(told)


def test_every_word_of_the_search_reaches_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--ram-budget", "3708", "--deterministic", "--json")
    first, second = (
        (run("solve", *PAPER, *words, *more), json.loads(capsys.readouterr().out))[1]
        for more in ((), ("--no-away-between-steps",))
    )
    assert first["energy_joules"] <= second["energy_joules"]
    assert run("solve", *PAPER, *words, "--solve-threads", "2") == 1
    assert "solve_threads" in capsys.readouterr().err


def test_a_curve_is_a_table_with_gaps_and_least_budgets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("pareto", *PAPER, "--budgets", "2224", "3708", "--time-limit-s", "5") == 0
    head, without, planned = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", head) == [
        *("budget (bytes)", "status", "energy", "step time", "at least", "gap"),
        "least budget known (bytes)",
    ]
    budget, status, energy, *_, least = re.split(r"  +", without)
    assert (budget, status, energy) == ("2224", "infeasible", "-") and 2224 < int(least) <= 3708
    assert planned.startswith("3708 ") and " J " in planned and " 0.00 %" in planned


def test_the_words_of_the_originals_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--runtime-budget", "1.5", "--remat", "--mem-power-scale", "1")
    told = (
        "--print-graph-info",
        "--print-power-costs",
        "--plot-directory",
        str(tmp_path / "drawn"),
    )
    assert run("solve", *PAPER, "--ram-budget", "3708", *words, *told) == 0
    err = capsys.readouterr().err
    assert "The plain step on m4: " in err and "LinearLayer" in err
    assert (tmp_path / "drawn" / "plan.png").stat().st_size > 1000
    assert run("solve", *PAPER, "--mem-power-scale", "2") == 1
    assert "mem_power_scale: expected 1" in capsys.readouterr().err
    original = ("--accounting", "original", "--plot-directory", str(tmp_path / "drawn"))
    assert run("solve", *PAPER, "--ram-budget", "3708", *original) == 1
    assert "--plot-directory: expected it to be left out" in capsys.readouterr().err
    assert run("solve", *PAPER, "--epochs", "5", "--deadline", "8h") == 1
    assert "--epochs and --steps-per-epoch go together" in capsys.readouterr().err


def test_a_plan_can_go_into_a_pipe(tmp_path: Path) -> None:
    """What is no regular file is written into, and stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    with redirect_stdout(io.StringIO()):
        assert run("solve", *PAPER, "--ram-budget", "3708", "--out", str(pipe)) == 0
    assert b'"actions"' in reader.communicate(timeout=60)[0]
    assert pipe.is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_an_empty_name_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--out", "--plot", "--perfetto"):
        assert run("solve", *PAPER, flag, "") == 1
        assert f"{flag}: expected the name of a file" in capsys.readouterr().err
    assert run("compare", *PAPER, "--budgets", "90%", "--methods", "") == 1
    assert "method" in capsys.readouterr().err


def test_who_reads_a_part_only_sees_no_traceback() -> None:
    lines = f"{sys.executable} -m poet show devices --json | head -n 1"
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_pictures_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    schedule = poet.solve(model="linear", platform="m4", graph="paper", ram_budget=3708)
    for draw in (schedule.plot, lambda path: poet.plot_pareto([schedule], path)):
        with pytest.raises(poet.ArgumentError, match="no folder"):
            draw(str(tmp_path / "absent" / "plan.png"))
        with pytest.raises(poet.ArgumentError, match="expected a picture's name"):
            draw(str(tmp_path / "plan.txt"))
    with pytest.raises(poet.ArgumentError, match="no folder"):
        schedule.to_perfetto(str(tmp_path / "absent" / "plan.json"))


def test_pareto_and_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "curve.png"
    words = ("--points", "3", "--time-limit-s", "10", "--plot", str(picture), "--json")
    assert run("pareto", *PAPER, *words) == 0
    curve = json.loads(capsys.readouterr().out)
    joules = [point["energy_joules"] for point in curve]
    assert joules == sorted(joules, reverse=True)
    point = curve[0]  # graph="paper" implies the same figures as for poet solve
    alone = poet.solve(
        model="linear", platform="m4", graph="paper", ram_budget=point["ram_budget"], time_limit_s=5
    )
    assert point["energy_joules"] <= alone.energy_joules * (1 + 1e-9)
    assert point["energy_joules"] >= (alone.bound or 0) * (1 - 1e-9)
    assert picture.stat().st_size > 0
    graph = tmp_path / "step.json"
    assert run("trace", "--model", "linear", "--out", str(graph), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["num_ops"] == len(poet.Graph.load(graph))


def test_compare_shows_methods_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    words = ("--budgets", "80%", "10%", "--methods", "poet,chen_sqrt,checkpoint_all")
    assert run("compare", *PAPER, *words, "--json", "--out", str(table)) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in found["rows"]] == ["poet", "chen_sqrt", "checkpoint_all"] * 2
    first, last = found["rows"][0], found["rows"][-1]
    schedule = poet.solve(
        model="linear", platform="m4", graph="paper", ram_budget=first["ram_budget_bytes"]
    )
    assert first["energy_joules"] == schedule.energy_joules
    assert found["plain"]["energy_joules"] <= first["energy_joules"]
    assert last["peak_bytes"] is None
    assert len(table.read_text(encoding="utf-8").splitlines()) == 7
    assert run("compare", *PAPER, "--budgets", "1,2", "--methods", "checkpoint_all") == 2
    assert run("compare", *PAPER, "--methods", "chen_cubic") == 1
    capsys.readouterr()
    refused = ("--methods", "page_all", "--no-paging")  # it does nothing else
    assert run("compare", *PAPER, "--budgets", "70%", *refused) == 1
    assert "page_all: method: " in capsys.readouterr().out
    both = ("--methods", "page_all,checkpoint_all", "--no-paging")
    assert run("compare", *PAPER, "--budgets", "1", *both) == 2, "what was asked is infeasible"


@pytest.mark.parametrize("what", ["devices", "presets"])
def test_lists(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", what) == 0
    lines = capsys.readouterr().out.splitlines()
    assert run("show", what, "--json") == 0
    records = json.loads(capsys.readouterr().out)
    names = poet.device_names() if what == "devices" else poet.preset_names()
    assert [line.split()[0] for line in lines] == [r["name"] for r in records] == names


def test_lists_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "methods") == 0
    shown = capsys.readouterr().out
    assert str(poet.methods()) in shown
    assert all(f"{m.summary}\n" in shown for m in poet.methods().values())
    assert run("show", "methods", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["name"] for record in records] == list(poet.methods())


@pytest.mark.parametrize("way", [["poet/solve.py"], ["-m", "poet.solve"], ["-m", "poet", "solve"]])
def test_the_originals_command_works_unchanged(way: list[str]) -> None:
    words = ["--model", "linear", "--platform", "a72", "--ram-budget", "3000000"]
    done = subprocess.run(
        [sys.executable, *way, *words, "--runtime-budget", "7.6", "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "optimal"


def test_poet_solve_stays_a_function_whatever_is_imported() -> None:
    for module in pkgutil.iter_modules(poet.__path__):
        if module.name not in ("__main__", "_gurobi_child"):
            importlib.import_module(f"poet.{module.name}")
    assert poet.solve(model="linear", graph="paper", platform="m4", ram_budget="80%").has_plan
