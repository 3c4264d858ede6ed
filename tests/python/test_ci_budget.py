"""CI's hour is shared out, and tests/README.md says how."""

from __future__ import annotations

from ci_budget import TESTS, against_budget, budget, suite_of


def test_the_parts_come_to_an_hour() -> None:
    parts = budget()["parts"]
    assert sum(parts.values()) <= 60
    assert sum(entry["minutes"] for entry in budget()["python"]) <= 2 * parts["test"]


def test_every_pattern_names_a_file() -> None:
    for entry in budget()["python"]:
        for pattern in entry["files"]:
            assert list((TESTS / "python").glob(pattern + ".py")), pattern


def test_the_page_says_the_same() -> None:
    page = (TESTS / "README.md").read_text()
    rows = list(budget()["parts"].items())
    rows += [(entry["suite"], entry["minutes"]) for entry in budget()["python"]]
    for name, minutes in rows:
        assert f"| {name} | {minutes} |" in page


def test_what_takes_more_than_its_share_is_told() -> None:
    assert suite_of("tests/python/test_wrap.py") == "the runtime"
    assert suite_of("tests/python/test_cli.py") == "all else"
    first, second, *_, last = against_budget(
        [("tests/python/test_soak.py", 1e4), ("tests/python/test_wrap.py", 1.5)]
    )
    assert "10000 s of" in first and "WARNING" in first
    assert "2 s of" in second and "WARNING" not in second
    assert last == "longest: test_soak 10000 s, test_wrap 2 s"
