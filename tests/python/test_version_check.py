import pytest

from poet._version_check import check


@pytest.mark.parametrize(
    ("built_for", "found"),
    [
        ("2.13.0", "2.13.0"),
        ("2.13.0", "2.13.0+cpu"),
        ("2.13.0+cpu", "2.13.2+cu126"),
        ("2.13.0", "2.13.0a0+gitabc"),
    ],
)
def test_accepts_the_same_release(built_for: str, found: str) -> None:
    check(built_for, found)


@pytest.mark.parametrize("found", ["2.12.1", "2.14.0", "3.13.0", "2.1.3", "2.130.0+cpu"])
def test_rejects_another_release_and_names_both(found: str) -> None:
    with pytest.raises(ImportError) as caught:
        check("2.13.0+cpu", found)
    assert "built for torch 2.13.0+cpu" in str(caught.value)
    assert f"torch {found} was found" in str(caught.value)
    assert "pip install torch==2.13.0`" in str(caught.value)


@pytest.mark.parametrize(("built_for", "found"), [("", "2.13.0"), ("2.13.0", "main"), ("", "")])
def test_rejects_versions_that_cannot_be_read(built_for: str, found: str) -> None:
    with pytest.raises(ImportError, match="was found"):
        check(built_for, found)
