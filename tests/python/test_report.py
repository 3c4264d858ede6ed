from pathlib import Path

import pytest

import report
from _bounds import Bound, BoundsError


def bound(name: str, **more: object) -> Bound:
    fields: dict[str, object] = {
        "id": name,
        "claim": f"claim of {name}",
        "command": "python x.py",
        "limit": 7.0,
        "direction": "max",
    }
    return Bound(**(fields | more))  # type: ignore[arg-type]


MARKED = f"# head\n\n{report.BEGIN}\nold\n{report.END}\n\ntail\n"


def test_replaces_what_stands_between_the_marks_and_nothing_else() -> None:
    text = report.with_figures(
        MARKED, [bound("a", last=4.25, unit="%", date="2026-01-02", machine="m")]
    )
    assert text.startswith(f"# head\n\n{report.BEGIN}\n")
    assert text.endswith(f"\n{report.END}\n\ntail\n")
    assert "| claim of a | 4.25 % | at most 7 % |" in text
    assert "Measured by `make bench`: 2026-01-02, m." in text
    assert "old" not in text


def test_writing_twice_changes_nothing() -> None:
    bounds = [bound("a", last=1.0), bound("b", direction="min")]
    once = report.with_figures(MARKED, bounds)
    assert report.with_figures(once, bounds) == once


def test_a_bound_without_a_value_says_so_and_a_hidden_one_is_left_out() -> None:
    text = report.figures([bound("a", direction="min", unit="MiB"), bound("b", readme=False)])
    assert "| claim of a | not yet | at least 7 MiB |" in text
    assert "claim of b" not in text
    assert "Measured by" not in text


def test_a_bound_that_is_broken_says_so() -> None:
    text = report.figures([bound("a", last=7.5, open="two steps"), bound("b", last=7.0)])
    assert "| claim of a | 7.5, **not held** yet: two steps | at most 7 |" in text
    assert "| claim of b | 7 | at most 7 |" in text


def test_a_bar_in_a_claim_does_not_break_the_table() -> None:
    assert "a \\| b" in report.figures([bound("a", claim="a | b")])


@pytest.mark.parametrize(
    "text",
    [
        "no marks",
        report.BEGIN,
        report.END + report.BEGIN,
        MARKED + report.END,
        report.BEGIN + MARKED,
    ],
)
def test_rejects_a_readme_without_two_marks_in_order(text: str) -> None:
    with pytest.raises(BoundsError, match="README must hold"):
        report.with_figures(text, [])


def test_check_tells_a_stale_readme_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme, bounds = tmp_path / "README.md", tmp_path / "bounds.toml"
    readme.write_text(MARKED)
    bounds.write_text("")
    both = ["--readme", str(readme), "--bounds", str(bounds)]
    assert report.main(["--check", *both]) == 1
    assert "run make report" in capsys.readouterr().out
    assert readme.read_text() == MARKED
    assert report.main(both) == 0
    assert report.main(["--check", *both]) == 0


def test_the_readme_is_in_step_with_the_bounds() -> None:
    assert report.main(["--check"]) == 0
