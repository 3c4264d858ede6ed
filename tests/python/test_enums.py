"""The string enumerations, also as Python 3.10 has to build them."""

from __future__ import annotations

import json
import pickle
import runpy
import sys

import pytest

import poet
from poet import _enums

ENUMS = ["Phase", "ValueKind", "Status", "Objective", "Solver", "ActionKind", "NodeKind"]


@pytest.mark.parametrize("name", ENUMS)
@pytest.mark.parametrize("version", [(3, 10, 0), sys.version_info[:3]], ids=["3.10", "here"])
def test_members_are_their_own_strings(
    name: str, version: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    members = runpy.run_path(_enums.__file__)[name]
    assert len(members) > 2
    for member in members:
        assert member == member.value == str(member) == f"{member}"
        assert f"{member:>20}" == member.value.rjust(20)
        assert json.dumps(member) == f'"{member.value}"'
        assert member.name == member.value.upper()
        assert members(member.value) is member
        assert {member: 1}[member.value] == 1


@pytest.mark.parametrize("name", ENUMS)
def test_members_survive_a_pickle(name: str) -> None:
    for member in getattr(poet, name):
        assert pickle.loads(pickle.dumps(member)) is member


def test_an_action_survives_a_pickle() -> None:
    action = poet.Action(at=1, when="before", kind=poet.ActionKind.RECOMPUTE, ops=(1, 2))
    assert pickle.loads(pickle.dumps(action)) == action
    assert hash(action) == hash(pickle.loads(pickle.dumps(action)))
