"""In CI variants take turns: none is left out for good, and no test goes without."""

from __future__ import annotations

from turns import TURNS, in_turn

_NODES = [
    *(f"a.py::many[{i}-{kind}]" for i in range(5) for kind in ("plan", "online")),
    *(f"a.py::few[{i}]" for i in range(3)),
    *(f"b.py::many[{i}]" for i in range(4)),
    "b.py::one",
]


def test_every_variant_has_its_turn() -> None:
    assert set().union(*(in_turn(_NODES, now) for now in range(TURNS))) == set(_NODES)


def test_every_test_has_a_variant_at_each_turn() -> None:
    for now in range(7):
        kept = in_turn(_NODES, now)
        assert {node.split("[")[0] for node in kept} == {node.split("[")[0] for node in _NODES}
        assert len([node for node in kept if node.startswith("a.py::many")]) in (3, 4)
        assert {"a.py::few[0]", "a.py::few[1]", "a.py::few[2]", "b.py::one"} <= kept
