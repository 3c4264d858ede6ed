import json
import textwrap
from pathlib import Path

import pytest
import tomlkit

import _bounds
import bench


def prints(tmp_path: Path, name: str, *lines: str, status: int = 0) -> str:
    """A command that prints these lines and leaves with this status."""
    script = tmp_path / f"{name}.py"
    body = "\n".join(f"print({line!r})" for line in lines)
    counter = tmp_path / f"{name}.runs"
    script.write_text(
        f"{body}\nimport sys\nopen({str(counter)!r}, 'a').write('x')\nsys.exit({status})\n"
    )
    return f"python {script}"


def write_bounds(tmp_path: Path, *entries: str) -> Path:
    path = tmp_path / "bounds.toml"
    path.write_text("# the head stays\n\n" + "\n".join(textwrap.dedent(e) for e in entries))
    return path


def entry(name: str, command: str, limit: float, direction: str = "max", more: str = "") -> str:
    return textwrap.dedent(
        f"""
        [[bound]]
        id = "{name}"  # this comment stays
        claim = "claim of {name}"
        command = "{command}"
        limit = {limit}
        direction = "{direction}"
        {more}
        """
    )


def values_in(path: Path) -> dict[str, object]:
    return {t["id"]: t.get("last") for t in tomlkit.parse(path.read_text()).unwrap()["bound"]}


def test_writes_the_value_and_keeps_comments_and_order(tmp_path: Path) -> None:
    command = prints(tmp_path, "a", "chatter", json.dumps({"value": 3.5}), "bye")
    path = write_bounds(
        tmp_path, entry("z_first", command, 4, more="last = 1.0"), entry("a", command, 4)
    )
    assert bench.main(["--bounds", str(path)]) == 0
    text = path.read_text()
    assert values_in(path) == {"z_first": 3.5, "a": 3.5}
    assert text.startswith("# the head stays")
    assert text.count("# this comment stays") == 2
    assert text.index("z_first") < text.index('"a"')
    assert tomlkit.parse(text).unwrap()["bound"][0]["machine"].endswith("cores")


@pytest.mark.parametrize(
    ("direction", "limit", "value", "status"),
    [
        ("max", 2.0, 2.0, 0),
        ("max", 2.0, 2.0000001, 1),
        ("min", 2.0, 2.0, 0),
        ("min", 2.0, 1.9999999, 1),
        ("max", 2.0, float("nan"), 1),
        ("min", 2.0, float("inf"), 1),
    ],
)
def test_a_bound_holds_up_to_its_limit(
    tmp_path: Path, direction: str, limit: float, value: float, status: int
) -> None:
    command = prints(tmp_path, "a", json.dumps({"value": value}))
    path = write_bounds(tmp_path, entry("a", command, limit, direction))
    assert bench.main(["--bounds", str(path)]) == status


def test_a_broken_bound_is_named_and_its_value_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = prints(tmp_path, "good", json.dumps({"value": 1}))
    bad = prints(tmp_path, "bad", json.dumps({"value": 9}))
    path = write_bounds(tmp_path, entry("bad", bad, 5, more='unit = "%"'), entry("good", good, 5))
    assert bench.main(["--bounds", str(path)]) == 1
    out = capsys.readouterr().out
    assert "BROKEN: 9 % is not at most 5 %" in out
    assert "1 hold, 1 broken" in out
    assert values_in(path) == {"bad": 9, "good": 1}


@pytest.mark.parametrize(
    ("lines", "status", "says"),
    [
        (('{"value": 1}',), 3, "exit status 3"),
        (("no json",), 0, "printed no JSON object"),
        (('{"other": 1}',), 0, "printed no value for a"),
        (('{"value": true}',), 0, "printed no value for a"),
        (('{"values": {"b": 1}}',), 0, "printed no value for a"),
    ],
)
def test_a_command_without_a_value_breaks_its_bound_and_keeps_the_last_value(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: tuple[str, ...],
    status: int,
    says: str,
) -> None:
    command = prints(tmp_path, "a", *lines, status=status)
    path = write_bounds(tmp_path, entry("a", command, 5, more="last = 4.0"))
    assert bench.main(["--bounds", str(path)]) == 1
    assert says in capsys.readouterr().out
    assert values_in(path) == {"a": 4.0}


def test_a_command_that_runs_too_long_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import time; time.sleep(60)")
    path = write_bounds(tmp_path, entry("a", f"python {script}", 5, more="timeout_s = 0.2"))
    assert bench.main(["--bounds", str(path)]) == 1
    assert "ran longer than 0.2 s" in capsys.readouterr().out


def test_bounds_that_share_a_command_share_its_run(tmp_path: Path) -> None:
    command = prints(tmp_path, "both", json.dumps({"values": {"a": 1, "b": 2}}))
    path = write_bounds(tmp_path, entry("a", command, 5), entry("b", command, 5))
    assert bench.main(["--bounds", str(path)]) == 0
    assert values_in(path) == {"a": 1, "b": 2}
    assert (tmp_path / "both.runs").read_text() == "x"


def test_only_measures_what_is_named(tmp_path: Path) -> None:
    one = prints(tmp_path, "one", json.dumps({"value": 1}))
    two = prints(tmp_path, "two", json.dumps({"value": 2}))
    # Of the same run, so that the figures of one run stand together.
    more = entry("two_more", two, 5)
    path = write_bounds(tmp_path, entry("one", one, 5), entry("two", two, 5), more)
    assert bench.main(["--bounds", str(path), "--only", "two"]) == 0
    assert values_in(path) == {"one": None, "two": 2, "two_more": 2}
    assert not (tmp_path / "one.runs").exists()


def test_list_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = prints(tmp_path, "a", json.dumps({"value": 1}))
    path = write_bounds(tmp_path, entry("a", command, 5, more='unit = "MiB"'))
    before = path.read_text()
    assert bench.main(["--bounds", str(path), "--list"]) == 0
    assert capsys.readouterr().out == "a: claim of a (at most 5 MiB; last: never measured)\n"
    assert path.read_text() == before
    assert not (tmp_path / "a.runs").exists()


def test_an_unknown_id_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_bounds(tmp_path, entry("a", "python x.py", 5))
    assert bench.main(["--bounds", str(path), "--only", "b"]) == 2
    assert "no bound has the id 'b'; there are: a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[bound]]\nid = ", "cannot be read"),
        ("[[bound]]\nid = 'a'\n", "claim is missing"),
        (entry("a", "x", 1) + entry("a", "x", 1), "two bounds have the id 'a'"),
        (entry("a", "x", 1, "below"), "direction is"),
        (entry("a", "x", 1, more="limits = 3"), "limits is not a field"),
        (entry("a", "x", 1, more="last = 'fast'"), "last is 'fast'"),
        (entry("a", "x", 1, more="timeout_s = true"), "timeout_s is True"),
    ],
)
def test_rejects_faulty_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "bounds.toml"
    path.write_text(text)
    assert bench.main(["--bounds", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_every_committed_bound_has_a_command_that_exists() -> None:
    _, bounds = _bounds.load(_bounds.BOUNDS_FILE)
    for bound in bounds:
        words = bound.command.split()
        assert words[0] == "python", f"{bound.id}: commands begin with python"
        assert (_bounds.REPOSITORY / words[1]).is_file(), f"{bound.id}: {words[1]} is missing"


def test_every_committed_value_that_was_measured_holds_or_is_said_to_be_open() -> None:
    _, bounds = _bounds.load(_bounds.BOUNDS_FILE)
    broken = [b.id for b in bounds if b.last is not None and not b.holds(b.last)]
    assert broken == [b.id for b in bounds if b.open]
