"""Nothing is skipped without its reason in docs/compatibility.md."""

from __future__ import annotations

import ast

import compatibility_zoo
import zoo
from skips import ROOT, WHY, _of_cpp, _of_python, reasons, table, unlisted


def test_every_reason_for_skipping_is_explained() -> None:
    assert set(reasons()) == set(WHY)


def test_the_page_has_every_reason() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    section = page.split("## Skipped, and why\n")[1].split("\n## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("|")]
    assert shown == [line for line in table() if line], "run `make compatibility`"


def test_no_kind_of_step_is_left_out_by_a_list_that_is_not_on_the_page() -> None:
    assert unlisted(set(zoo.KINDS | compatibility_zoo.KINDS)) == []


def test_reasons_are_found_in_every_form() -> None:
    source = """
pytest.importorskip("a")
pytest.skip("b")
pytest.skip(f"c {error}")
pytest.skip(why)
@pytest.mark.skipif(True, reason="d")
@pytest.mark.xfail(reason="e")
def test(): pass
"""
    found = set(_of_python(ast.parse(source)))
    assert found == {"a is not installed", "b", "c {error}", "{why}", "d", "e"}
    assert list(_of_cpp('if (x) GTEST_SKIP() << name() << " f"; GTEST_SKIP();')) == [
        "{name()} f",
        "",
    ]
