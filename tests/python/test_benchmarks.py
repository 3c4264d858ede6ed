"""The instruments behind the figures: meter, slack, rounds, digests, digits, and the table."""

import json
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import _data
import _docstrings
import _minilm
import _state
import claims
import compare_methods
import comparison
import compiled
import draw
import exactness
import finetuning
import hot_path
import larger_than_memory
import meter
import optimizers
import own_memory
import paper.run
import presets
import rounds
import step_costs
import steps
import store.rates
from _bounds import BOUNDS_FILE, load

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path += [str(REPOSITORY / "demo"), str(REPOSITORY / "benchmarks" / "planner")]

import _digits  # noqa: E402
import _report  # noqa: E402
import coop  # noqa: E402
import dtr_simulator  # noqa: E402
import paper_table  # noqa: E402
import peers  # noqa: E402
import table  # noqa: E402

MIB = 2**20


def run_python(code: str) -> Any:
    """What a script prints as JSON, in a process of its own: one profiler session a process."""
    head = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'benchmarks')!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ---- meter -----------------------------------------------------------------------------------


def test_meter_gives_the_peak_of_known_allocations() -> None:
    found = run_python(
        """
        import json
        from meter import Meter
        import torch
        MIB = 2**20
        def block(mib):
            return torch.empty(mib * MIB, dtype=torch.uint8)
        with Meter() as meter:
            kept = block(10)
            outside = block(500)  # between steps: no step's peak
            del outside
            with meter.step():
                first = block(20)
                second = block(30)
                del first
                third = block(5)
                del second, third
            with meter.step():
                pass
            with meter.step():
                kept = None
                last = block(7)
        print(json.dumps([[s.begin_bytes / MIB, s.peak_bytes / MIB, s.curve[-1][1] / MIB]
                          for s in meter.steps]))
        """
    )
    assert found == [[10, 60, 10], [10, 10, 10], [10, 10, 7]]


def test_meter_leaves_operators_out_and_misses_no_byte() -> None:
    found = run_python(
        """
        import json
        import torch
        from torch.profiler import ProfilerActivity, profile
        from steps import Training, batches
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
            training = Training("mlp")
            feed = batches("mlp")
            for _ in range(3):
                training.step(*next(feed))
        events = session.profiler.kineto_results.events()
        resident = peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                resident += event.nbytes()
                peak = max(peak, resident)
        print(json.dumps([peak, len(events)]))
        """
    )
    record = meter.measure("plain", architecture="mlp", steps=3)
    assert record["peak_bytes"] == found[0]
    assert record["peaks"][0] < record["peaks"][1] == record["peaks"][2]


def test_a_step_s_peak_counts_from_its_first_mark_to_its_last() -> None:
    memory = [(5, 100), (30, -60), (10, 40), (20, 7), (40, 1000), (50, -1000)]
    first, second = meter.steps_of(memory, [(35, 36), (8, 30)])
    assert (first.begin_bytes, first.peak_bytes) == (100, 147)
    assert first.curve == [(0.0, 100), (2e-9, 140), (12e-9, 147), (22e-9, 87), (22e-9, 87)]
    assert (second.begin_bytes, second.peak_bytes) == (87, 87)


def test_a_thinned_curve_keeps_its_highest_and_its_last_sample() -> None:
    curve = [(index / 1000, (index * 37) % 1001) for index in range(5000)]
    kept = meter.thinned(curve, points=50)
    assert len(kept) <= 102
    assert max(held for _, held in kept) == max(held for _, held in curve)
    assert kept[-1] == curve[-1]
    assert kept == sorted(kept)
    assert set(kept) <= set(curve)


def test_the_step_that_is_drawn_is_the_one_of_median_duration() -> None:
    late = [meter.StepMemory(0, n, [(0.0, 0), (t, 0)]) for n, t in enumerate([0.9, 0.2, 0.3])]
    assert meter.typical(late).peak_bytes == 2


def test_a_failed_measurement_says_what_failed() -> None:
    with pytest.raises(RuntimeError, match="--form poet needs --budget"):
        meter.measure("poet", architecture="mlp", steps=4)


def test_options_become_words() -> None:
    options = {"no_optimizer": True, "curve": False, "budget": 5, "forms": ["a", "b"], "x": None}
    assert meter.as_words(options) == ["--no-optimizer", "--budget", "5", "--forms", "a", "b"]


# ---- slack -----------------------------------------------------------------------------------


def test_fixed_bytes_are_state_and_two_temporaries() -> None:
    training = steps.Training("mlp")
    training.step(*next(steps.batches("mlp")))
    parameters = 3 * (256 * 256 + 256) + 256 * 10 + 10
    step_counters = 8 * 4  # a float32 for each of the 8 parameters
    expected = 4 * parameters * 4 + step_counters + 2 * 256 * 256 * 4
    assert steps.fixed_bytes(training) == expected


def test_tied_tensors_count_once() -> None:
    weight = torch.zeros(100)
    assert steps.resident_bytes({"a": weight, "b": weight[:10], "c": torch.zeros(5)}) == 420


def test_slack_goes_from_what_is_fixed_to_the_plain_peak() -> None:
    assert steps.budget_at(0, 100, 300) == 100
    assert steps.budget_at(1, 100, 300) == 300
    assert steps.budget_at(0.35, 100, 300) == 170


# ---- forms and digests -----------------------------------------------------------------------


def trained(**options: Any) -> dict[str, str]:
    training = steps.Training("mlp", **options)
    feed = steps.batches("mlp")
    losses = [training.step(*next(feed)).item() for _ in range(2)]
    return _state.digests(training.state(), losses)


def test_the_same_seed_gives_the_same_bits_checkpointed_or_not() -> None:
    plain = trained()
    assert _state.differences(trained(), plain) == []
    assert _state.differences(trained(checkpointed=True), plain) == []
    assert "generator" in _state.differences(trained(seed=1), plain)


def test_digests_see_a_single_bit() -> None:
    one = torch.ones(1000)
    other = one.clone()
    other[500] = torch.nextafter(one[500], torch.tensor(2.0))
    before = _state.digests({"parameter a": one}, [0.1])
    assert _state.differences(_state.digests({"parameter a": other}, [0.1]), before) == [
        "parameter a"
    ]
    assert _state.differences(_state.digests({"parameter a": one}, [0.1 + 2**-56]), before) == [
        "loss 0"
    ]
    assert _state.differences({}, {"x": "1"}) == ["x"]


def test_a_planned_step_is_measured_inside_its_budget() -> None:
    plain = meter.measure("plain", architecture="mlp", steps=6, digests=True)
    budget = steps.budget_at(0.7, plain["fixed_bytes"], plain["peak_bytes"])
    ours = meter.measure("poet", architecture="mlp", steps=6, digests=True, budget=budget)
    assert ours["poet"]["status"] in ("optimal", "feasible")
    assert ours["counted_steps"] == [3, 4, 5]
    assert ours["peak_bytes"] <= budget < plain["peak_bytes"]
    assert ours["poet"]["predicted_peak_bytes"] == pytest.approx(ours["peak_bytes"], rel=0.005)
    assert _state.differences(ours["snapshots"]["6"], plain["snapshots"]["6"]) == []


# ---- rounds ----------------------------------------------------------------------------------


def test_every_round_runs_every_form_in_a_rotating_order() -> None:
    order: list[str] = []
    forms = {n: lambda n=n: rounds.timed(lambda: order.append(n)) for n in "abc"}
    timings = rounds.take_turns(forms, 4)
    assert "".join(order) == "abcbcacababc"
    for timing in timings.values():
        assert len(timing.seconds) == len(timing.processor_seconds) == len(timing.page_faults) == 4


def test_extra_time_is_the_median_of_ratios_within_rounds() -> None:
    # The machine was ten times slower in the last round: the ratio there is what it always was.
    assert rounds.extra_percent([1.1, 1.5, 11.0], [1.0, 1.0, 10.0]) == pytest.approx(10)


# ---- bounds ----------------------------------------------------------------------------------


def row(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "slack": 0.5,
        "paging": "on",
        "at_least": False,
        "compact_bytes": 500,
        "differences": 0,
        "followed_steps": exactness.PLANNED_STEPS,
        "prediction_error_percent": 0.1,
        "peak_to_budget": 0.99,
        "unplanned_recomputes": 0,
        "unplanned_page_ins": 0,
        "solve_seconds": 3.0,
    }
    return base | changes


def of_rates(words: list[str]) -> set[str]:
    ratios: dict[str, Any] = {f"{kind}_ratio": 1.0 for kind in store.rates.MOVES}
    asked = store.rates.parse(words)
    return set(store.rates.values([ratios | {"mode": m, "path": "best"} for m in asked.modes]))


def of_hot_path(words: list[str]) -> set[str]:
    figures = {"extra_microseconds_per_op": 0.5, "extra_percent": 1.0}
    return set(hot_path.values([figures | {"step": step} for step in hot_path.parse(words).only]))


def of_larger_than_memory(words: list[str]) -> set[str]:
    budget = larger_than_memory.parse(words).budget
    found = {"followed": 3, "differing": [], "peak_bytes": budget, "step_ratio": 1.2}
    return set(larger_than_memory.values(found, budget, plain_dies=True))


def of_own_memory(words: list[str]) -> set[str]:
    own_memory.parse(words)
    return set(own_memory.values([{"to_limit": 0.5}]))


def of_compare_methods(words: list[str]) -> set[str]:
    compare_methods.parse(words)
    return set(compare_methods.values([_cell_of_methods()]))


def costs_of_a_step(**changes: float) -> dict[str, Any]:
    row = {"prediction_error_percent": 4.0, "rest_percent": 1.0, "hidden_percent": 90.0}
    return {"step": "x", "paging": "on"} | row | changes


def of_step_costs(words: list[str]) -> set[str]:
    step_costs.parse(words)
    extra = [{"step": "x", "extra_percent": 5.0}]
    return set(
        step_costs.values({"plans": [costs_of_a_step()], "recording": extra, "beside": extra})
    )


def test_of_the_costs_of_steps_the_worst_counts_and_of_predictions_the_median() -> None:
    rows = [
        costs_of_a_step(rest_percent=3.0, hidden_percent=85.0),
        costs_of_a_step(prediction_error_percent=9.0),
        costs_of_a_step(prediction_error_percent=5.0),
        {"step": "without a plan", "paging": "off", "status": "infeasible"},
    ]
    assert step_costs.values({"plans": rows}) == {
        "step_time_prediction_error": 5.0,
        "step_rest_percent": 3.0,
        "transfers_hidden_percent": 85.0,
    }
    without = [{"step": "x", "extra_percent": None}]
    assert step_costs.values({"beside": without}) == {}


def given_by(command: str) -> set[str]:
    """The bounds to which a command gives a value."""
    python, script, *words = shlex.split(command)
    assert python == "python"
    name = Path(script).stem
    if name == "exactness":
        options = exactness.parse(words)
        rows = [row(slack=slack) for slack in options.slacks] or [row(slack=None)]
        return set(exactness.bound_values(rows, options.name))
    of_forms = {"comparison": comparison, "compiled": compiled}
    if name in of_forms:
        return of_forms[name].bound_ids(of_forms[name].parse(words))
    given = {
        module.__name__: {module.BOUND}
        for module in (presets, finetuning, claims, paper_table, coop, peers)
    }
    given["make"] = {paper.run.BOUND, paper.run.CHAINS}  # paper/make.py
    given["dtr_simulator"] = {dtr_simulator.MEDIAN, dtr_simulator.UNLIKE}
    if name in given:
        return given[name]
    if name == "table":
        asked = table.parse(words)
        solved = {"status": "feasible", "processor_seconds": 1.0, "pessimism_percent": 0.0}
        solved |= {"deterministic": False, "seconds": 5.0, "limit_seconds": 5.0}
        solved |= {"first_plan_seconds": 1.0}
        return set(
            table.values(
                [solved | {"graph": r.name, "mode": m} for r in asked.rows for m in asked.mode]
            )
        )
    of_script = {
        "rates": of_rates,
        "hot_path": of_hot_path,
        "larger_than_memory": of_larger_than_memory,
        "own_memory": of_own_memory,
        "step_costs": of_step_costs,
        "compare_methods": of_compare_methods,
    }
    if name in of_script:
        return of_script[name](words)
    assert name == "optimizers"
    rows = [row(form=form, floor_bytes=1) for form in optimizers.FORMS]
    return set(optimizers.bound_values(rows, name))


def test_every_bound_of_a_model_has_a_script_that_gives_its_value() -> None:
    _, bounds = load(BOUNDS_FILE)
    assert [bound.id for bound in bounds if bound.id not in given_by(bound.command)] == []


def test_a_budget_without_a_plan_counts_where_paging_was_allowed() -> None:
    rows = [row(at_least=True), row(at_least=True, paging="off"), row()]
    assert exactness.bound_values(rows, "x")["x_budgets_missed_with_paging"] == 1


def test_the_committed_data_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "FIGURES", tmp_path)
    draw.main()
    drawn = {path.name for path in tmp_path.iterdir()}
    assert {"memory_in_a_step.png", "peak_and_time.png", "planner_gap.png"} <= drawn


def test_data_survive_being_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_data, "DATA", tmp_path)
    _data.save("x", {"a": 1, "rows": [{"b": 0.123456789, "c": None}], "curve": [(0.5, 7)]})
    assert _data.load("x") == {"a": 1, "rows": [{"b": 0.123457, "c": None}], "curve": [[0.5, 7]]}


# Times of three rounds: poet and the eager step beside it, and two compiled points of one peak.
def _compiled_record(poet_seconds: float) -> dict[str, Any]:
    peaks = {"1": 90, "0.7": 80, "0.5": 80, "0.3": 70, "0.1": 70, "0": 70}
    seconds = {"plain": 1.0, "compiled@1": 0.5, "compiled@0.7": 0.6, "compiled@0.5": 0.55}
    seconds |= dict.fromkeys(("compiled@0.3", "compiled@0.1", "compiled@0"), 0.8)
    seconds |= {"poet@80": poet_seconds, "poet@70": poet_seconds}
    followed = {form: {"followed_rounds": 3} for form in ("poet@80", "poet@70")}
    return {
        "architecture": "mlp",
        "compiled_peak_bytes": peaks,
        "poet_peak_bytes": {"80": 79, "70": 71},
        "rounds": {
            "rounds": 3,
            "seconds": {form: [figure] * 3 for form, figure in seconds.items()},
            "at_budgets": followed,
        },
    }


def test_a_compiled_point_is_lost_by_its_peak_or_by_the_quicker_share_of_the_same_peak() -> None:
    record = _compiled_record(poet_seconds=1.09)
    points = compiled.points(record)
    # 9 % against 10 % of the quicker of two; at 70 bytes poet was measured with 71.
    assert [point["poet_wins"] for point in points] == [True, True, False, False, False]
    assert points[0]["compiled_extra_percent"][1] == pytest.approx(10)
    assert compiled.values(record | {"points": points}) == {"mlp_compiled_points_lost": 3}
    slower = compiled.points(_compiled_record(poet_seconds=1.11))
    assert not any(point["poet_wins"] for point in slower)


def test_forms_are_told_apart_by_their_figures() -> None:
    assert rounds.form_of("poet@123") == ("poet", 123.0)
    assert rounds.form_of("compiled@0.5") == ("compiled", 0.5)
    assert rounds.form_of("plain") == ("plain", None)
    for name in ("compiled", "plain@1", "other"):
        with pytest.raises(ValueError, match=name):
            rounds.form_of(name)


def test_equal_bits_count_for_nothing_without_a_plan() -> None:
    assert exactness.bound_values([row(followed_steps=0, solve_seconds=None)], "x") == {}


# ---- methods side by side -------------------------------------------------------------------


def _cell_of_methods(**live: list[float]) -> dict[str, Any]:
    """Three plans of one step: by the simulator poet's is the fastest and rotor's the slowest."""
    simulated = {"poet": 1.0, "coop": 1.1, "rotor": 1.2}
    rows = [
        {
            "method": method,
            "makespan_seconds": seconds,
            "live_medians": live.get(method, [seconds]),
            "live_results": "same",
        }
        for method, seconds in simulated.items()
    ]
    return {"rows": rows, "plain_live_medians": [1.0, 1.02], "plain_results": "same"}


def test_a_cell_is_lost_to_a_cheaper_plan_and_to_any_where_poet_has_none() -> None:
    cell = _cell_of_methods()
    assert compare_methods.lost(cell) == []
    cell["rows"][2]["makespan_seconds"] = 0.9
    assert compare_methods.lost(cell) == ["rotor"]
    del cell["rows"][0]["makespan_seconds"]
    assert compare_methods.lost(cell) == ["coop", "rotor"]


def test_a_pair_is_against_the_order_by_more_than_the_noise_of_both_and_of_plain() -> None:
    assert compare_methods.against(_cell_of_methods()) == []
    # coop is 1 % faster than poet live, which plain training's 2 % hide; rotor 10 %.
    close = _cell_of_methods(poet=[1.0], coop=[0.99], rotor=[0.9])
    assert compare_methods.against(close) == [("poet", "rotor"), ("coop", "rotor")]
    unsteady = _cell_of_methods(poet=[0.9, 1.1], coop=[0.99], rotor=[0.9])
    assert compare_methods.against(unsteady) == [("coop", "rotor")]
    # Noise hides the other two, which then say nothing for the order either.
    assert len(compare_methods.pairs(unsteady)) == 3
    assert compare_methods.told_apart(unsteady) == [("coop", "rotor")]
    assert compare_methods.values([unsteady])["methods_pairs_against_the_order"] == 1


def test_the_order_is_that_of_the_plans_that_trained() -> None:
    cell = _cell_of_methods(rotor=[0.9])
    assert compare_methods.against(cell) == [("poet", "rotor"), ("coop", "rotor")]
    cell["rows"][2]["live_planned"] = [0.8, 0.85]  # found in its own process, not beside the others
    assert compare_methods.against(cell) == []


def test_what_trains_to_other_bits_is_in_no_pair() -> None:
    cell = _cell_of_methods()
    cell["rows"][1]["live_results"] = "other"
    assert compare_methods.differing(cell) == ["coop"]
    assert compare_methods.pairs(cell) == [("poet", "rotor")]


# ---- digits ----------------------------------------------------------------------------------


def test_digits_are_split_into_parts_that_share_nothing() -> None:
    digits = _digits.load()
    assert digits.train_scans.shape == (1437, 8, 8)
    assert digits.test_scans.shape == (360, 8, 8)
    assert sorted(set(digits.train_classes.tolist())) == list(range(10))
    assert torch.equal(digits.test_scans, _digits.load().test_scans)
    total = torch.cat([digits.train_classes, digits.test_classes]).bincount()
    assert total.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_images_have_three_channels_between_minus_one_and_one() -> None:
    scans = torch.zeros(2, 8, 8)
    scans[1] = 16
    images = _digits.as_images(scans)
    assert images.shape == (2, 3, 32, 32)
    assert images[0].unique().tolist() == [-1]
    assert images[1].unique().tolist() == [1]


def test_an_epoch_shows_every_scan_at_most_once_and_full_batches_only() -> None:
    digits = _digits.load()
    marked = _digits.Digits(
        digits.train_scans, torch.arange(1437), digits.test_scans, digits.test_classes
    )
    feed = _digits.batches(marked)
    seen = [next(feed) for _ in range(44)]
    assert all(images.shape == (32, 3, 32, 32) for images, _ in seen)
    numbers = torch.cat([classes for _, classes in seen]).tolist()
    assert len(set(numbers)) == 44 * 32
    assert next(feed)[1].tolist() != numbers[:32]


# ---- sentences and MiniLM --------------------------------------------------------------------


def test_sentences_are_of_every_module_and_in_one_part_only() -> None:
    found = _docstrings.load()
    assert len(found.train) > 4 * len(found.test) > 400
    assert {label for _, label in found.test} == set(range(len(_docstrings.MODULES)))
    assert not {text for text, _ in found.train} & {text for text, _ in found.test}
    assert all(len(text.split()) >= 6 for text, _ in found.train)
    assert found == _docstrings.load()


def test_minilm_has_its_real_weights() -> None:
    texts = ["a cat sleeps on the sofa", "a kitten naps on the couch", "the court raised taxes"]
    tokens, mask, _ = _minilm.encode([(text, 0) for text in texts])
    assert tokens.shape == mask.shape == (3, _minilm.LENGTH)
    model = _minilm.MiniLmClassifier(2).eval()
    scores: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda _m, inputs, _o: scores.append(inputs[0]))
    with torch.no_grad():
        model(tokens, mask)
    same, other = torch.cosine_similarity(scores[0][:1], scores[0][1:]).tolist()
    assert same > 0.6
    assert other < 0.2


# ---- the demo's table ------------------------------------------------------------------------


def record(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "peak_bytes": 300 * MIB,
        "step_seconds": 0.2,
        "accuracy": 0.975,
        "digests": {
            "parameter conv": "1",
            "buffer bn.running_mean": "2",
            "buffer bn.num_batches_tracked": "3",
            "loss 0": "4",
            "generator": "5",
        },
        "batch_norm_updates": {"bn.num_batches_tracked": 8},
    }
    return base | changes


def test_the_table_says_who_is_identical_and_why_who_is_not() -> None:
    plain = record()
    digests = plain["digests"] | {
        "buffer bn.running_mean": "x",
        "buffer bn.num_batches_tracked": "y",
    }
    twice = record(
        peak_bytes=240 * MIB,
        step_seconds=0.26,
        digests=digests,
        batch_norm_updates={"bn.num_batches_tracked": 16},
    )
    lines = _report.table(
        {"plain": plain, "checkpoint": twice, "poet": record(peak_bytes=225 * MIB)}
    ).splitlines()
    assert lines[2].split() == ["plain", "300.0", "MiB", "200", "ms", "97.5", "%", "-"]
    assert lines[3].split()[2:] == [
        "240.0",
        "MiB",
        "-20",
        "%",
        "260",
        "ms",
        "+30",
        "%",
        "97.5",
        "%",
        "no",
    ]
    assert lines[4].split()[1:] == [
        "225.0",
        "MiB",
        "-25",
        "%",
        "200",
        "ms",
        "+0",
        "%",
        "97.5",
        "%",
        "yes",
    ]
    assert "2 buffers of BatchNorm differ, nothing else" in lines[6]
    assert "bn.num_batches_tracked is 16, plain 8" in lines[6]
    assert "all 5 parameters" in lines[7]


def test_other_differences_are_not_blamed_on_batch_norm() -> None:
    plain = record()
    wrong = record(digests=plain["digests"] | {"parameter conv": "x", "loss 0": "y"})
    assert _report.difference(wrong, plain) == (
        "1 loss and 1 parameter differ, the first is loss 0"
    )
    stale = record(digests=plain["digests"] | {"buffer bn.running_mean": "x"})
    assert "nothing else" not in _report.difference(stale, plain)


def test_a_second_plain_run_says_whose_a_difference_is() -> None:
    plain = record()
    other = record(digests=plain["digests"] | {"loss 0": "x"})
    third = record(digests=plain["digests"] | {"loss 0": "y"})
    assert "the difference is poet's" in _report.second_opinion(other, plain, record())
    same = _report.second_opinion(other, plain, other)
    assert "Two plain runs differ from one another (1 loss differ" in same
    assert "poet's run is the second, bit by bit" in same
    assert "differs from the second plain one too" in _report.second_opinion(other, plain, third)


def test_a_run_without_a_plan_has_a_row_all_the_same() -> None:
    lines = _report.table({"plain": record(), "poet": record(peak_bytes=None, step_seconds=None)})
    assert lines.splitlines()[3].split() == ["poet", "-", "-", "97.5", "%", "yes"]


@pytest.mark.parametrize("script", ["digits_resnet18.py", "docstrings_minilm.py"])
def test_a_demo_wants_enough_steps_for_a_plan(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "demo" / script), "--steps", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "expected 4 or more" in done.stderr


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    curve = [(0.0, 100 * MIB), (0.1, 300 * MIB), (0.2, 100 * MIB)]
    records = {
        form: record(curve=curve, fixed_bytes=90 * MIB) for form in ("plain", "checkpoint", "poet")
    }
    path = tmp_path / "out" / "memory.png"
    _report.picture(records, path, "a step")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_cell_of_the_page_of_presets_says_which_plans_its_gap_speaks_of() -> None:
    row: dict[str, Any] = {"energy_joules": 1.0, "seconds": 2.0, "status": "feasible"}
    told = presets.cell(row | {"gap": 0.0, "bound_scope": "candidates"})
    assert told == "feasible, gap 0.00 % over the candidates (2.0 s)"
    assert presets.cell(row | {"gap": 0.02, "bound_scope": "all"}) == "feasible, gap 2.00 % (2.0 s)"
    proven = {"status": "optimal", "gap": 0.0, "bound_scope": "all"}
    assert presets.cell(row | proven) == "optimal (2.0 s)"


def test_what_dtr_and_its_simulator_compute_again_is_compared_where_both_end() -> None:
    def row(theirs: float | None, ours: float | None, first: float | None) -> dict[str, Any]:
        same = {"graph": "chain of 4", "score": "dtr", "budget": "2√n"}
        return {**same, "theirs": theirs, "ours": ours, "theirs_first": first}

    rows = [
        row(0.25, 0.25, 0.25),
        row(0.25, 0.26, 0.26),
        row(0.5, 0.4, 0.5),
        row(None, 0.5, None),
        row(1.0, None, 1.0),
        row(None, None, None),
    ]
    assert dtr_simulator.values(rows) == {
        "dtr_to_its_simulator": pytest.approx(1.0),
        "dtr_unlike_its_simulator": 3,
    }
    assert "2√n: 25.0 / 26.0" in dtr_simulator.table(rows)
    assert "1.0: " not in dtr_simulator.table(rows)


def test_the_chain_of_dtrs_authors_lets_go_of_values_where_theirs_does() -> None:
    chain = dtr_simulator.chain(4)
    assert chain.inputs == ((), (0,), (1,), (2,), (), (1, 4), (0, 5), (6,))
    assert chain.deaths() == [6, 5, 3, 3, 5, 6, 7, 7]


def test_the_page_of_dtrs_simulator_is_that_of_the_data() -> None:
    rows = _data.load(dtr_simulator.DATA)["rows"]
    assert dtr_simulator.PAGE.read_text(encoding="utf-8") == dtr_simulator.page(rows)
