"""What poet raises, and that what C++ throws arrives as the class that was promised."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from graph_strategies import graph_text, schedule_text
from small_steps import chain_graph

import poet

BASES = {
    "ArgumentError": ValueError,
    "FormatError": ValueError,
    "ScheduleError": ValueError,
    "PoetRuntimeError": RuntimeError,
    "BudgetError": RuntimeError,
}


@pytest.mark.parametrize(("name", "base"), BASES.items())
def test_errors_are_poets_and_of_a_built_in_class(name: str, base: type[Exception]) -> None:
    error = getattr(poet, name)
    assert issubclass(error, poet.PoetError)
    assert issubclass(error, base)
    assert error.__module__ == "poet"
    again = pickle.loads(pickle.dumps(error("Said.")))
    assert type(again) is error
    assert str(again) == "Said."


def test_no_error_is_a_case_of_another() -> None:
    errors = [getattr(poet, name) for name in BASES]
    for one in errors:
        assert [other for other in errors if issubclass(one, other)] == [one]


def test_argument_error_of_the_core_arrives() -> None:
    with pytest.raises(poet.ArgumentError, match="host") as caught:
        poet.DeviceProfile.by_name("toaster")
    assert type(caught.value) is poet.ArgumentError


def test_format_error_of_the_core_arrives() -> None:
    with pytest.raises(poet.FormatError) as caught:
        poet.Graph.from_json("{}")
    assert type(caught.value) is poet.FormatError


def test_schedule_error_of_the_core_arrives() -> None:
    graph = chain_graph()
    schedule = poet.Schedule.from_json(schedule_text("0" * 15 + "1", len(graph), []))
    with pytest.raises(poet.ScheduleError) as caught:
        schedule.check_against(graph)
    assert type(caught.value) is poet.ScheduleError


def test_other_errors_of_the_core_arrive_as_runtime_errors(tmp_path: Path) -> None:
    with pytest.raises(poet.PoetRuntimeError) as caught:
        poet.Graph.load(tmp_path / "missing.json")
    assert type(caught.value) is poet.PoetRuntimeError


def test_messages_that_quote_bytes_of_a_damaged_file_arrive(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_bytes(graph_text({"base_bytes": 0, "ops": [], "values": []}).encode() + b"\xff\xfe")
    with pytest.raises(poet.FormatError, match=r"graph\.json"):
        poet.Graph.load(path)
    path.write_bytes(b'{"format": "\xff"}')
    with pytest.raises(poet.FormatError, match=r"graph\.json"):
        poet.Graph.load(path)


def test_a_lone_surrogate_is_no_text_for_the_core() -> None:
    with pytest.raises((UnicodeError, TypeError)):
        poet.Graph.from_json("\ud800")


def test_an_argument_of_the_wrong_type_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        poet.Graph.from_json(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        poet.Schedule.from_json(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        chain_graph().save()  # type: ignore[call-arg]


def test_simulate_says_what_it_expected() -> None:
    with pytest.raises(poet.ArgumentError, match=r"graph: expected .*; got int.*poet\.trace"):
        poet.simulate(3)  # type: ignore[arg-type]
    with pytest.raises(poet.ArgumentError, match=r"schedule: expected .*; got str.*load"):
        poet.simulate(chain_graph(), "plan.json")  # type: ignore[arg-type]
    with pytest.raises(poet.ArgumentError, match=r"platform: expected .*; got 3"):
        poet.simulate(chain_graph(), platform=3)  # type: ignore[arg-type]
    with pytest.raises(poet.ArgumentError, match=r"platform.*'toaster'.*'host'"):
        poet.simulate(chain_graph(), platform="toaster")
    with pytest.raises(TypeError):
        poet.simulate(chain_graph(), None, "host")  # type: ignore[misc]


def test_simulate_takes_a_path(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    chain_graph().save(path)
    assert poet.simulate(path) == poet.simulate(str(path)) == poet.simulate(chain_graph())


def test_the_device_is_read_only_and_says_where_its_figures_come_from() -> None:
    host = poet.DeviceProfile.by_name("host")
    assert host.name == "host"
    assert min(host.compute_watts, host.idle_watts, host.memory_watts, host.store_watts) > 0
    assert host.replay_factor >= 1
    assert host.generator_state_bytes == 5056
    assert host.energy_source
    assert repr(host) == "<poet.DeviceProfile host>"
    with pytest.raises(AttributeError):
        host.compute_watts = 0.0  # type: ignore[misc]
