"""Made-up models: the error of an assignment is a function written here, so every answer is known.

Oracles: the plain greedy that stops at the first failure, exhaustive search over all assignments, and values
worked out by hand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transforms.precision.assign import Assignment, Option, Size, Step, assign, by_error_per_cost
from transforms.search.target import Target, TargetError

Error = Callable[[Mapping[str, str]], float]
AT_MOST = {limit: Target("l2", limit) for limit in (0, 3, 5, 10)}


def model(
    harms: Sequence[Sequence[float]], bits: Sequence[int] = (8, 4, 2)
) -> tuple[list[Option], dict[str, Size]]:
    """Layers a, b, c ... of ten weights and two activations in 16 bits, with an option for each harm."""
    baseline = {chr(97 + i): Size(160.0, 32.0) for i in range(len(harms))}
    options = [
        Option(layer, f"int{width}", harm, Size(10.0 * width, 2.0 * width))
        for layer, row in zip(baseline, harms, strict=True)
        for width, harm in zip(bits, row, strict=False)
    ]
    return options, baseline


def additive(options: Sequence[Option]) -> Error:
    harms = {(one.layer, one.label): one.error for one in options}
    return lambda choices: math.fsum(harms[item] for item in choices.items())


def plain_greedy(options: Sequence[Option], error: Error, target: Target) -> dict[str, str]:
    """One after the other by harm, until the first that breaks the target. For one option per layer."""
    choices: dict[str, str] = {}
    for option in sorted(options, key=lambda one: one.error):
        tried = choices | {option.layer: option.label}
        if not target.holds(error(tried)):
            break
        choices = tried
    return choices


@st.composite
def errors(draw: st.DrawFn, options: Sequence[Option]) -> Error:
    """An error that need not have to do with the harms, nor be additive or monotone; 0 without a move."""
    table = {(one.layer, one.label): draw(st.integers(-4, 8)) for one in options}
    pairs = st.tuples(st.sampled_from(list(table)), st.sampled_from(list(table)))
    together = draw(st.dictionaries(pairs, st.integers(-6, 6), max_size=6))

    def error(choices: Mapping[str, str]) -> float:
        moved = set(choices.items())
        alone = sum(table[one] for one in moved)
        return float(alone + sum(value for pair, value in together.items() if set(pair) <= moved))

    return error


HARMS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=7)


def test_least_harmful_layers_move_while_the_target_holds() -> None:
    options, baseline = model([[4], [1], [2], [8]])
    done = assign(options, baseline, additive(options), AT_MOST[3])
    assert done.choices == {"b": "int8", "c": "int8"}
    assert (done.baseline, done.value) == (0.0, 3.0)
    assert done.baseline_size == Size(640.0, 128.0)
    assert done.size == Size(480.0, 96.0)


def test_a_layer_that_breaks_the_target_is_skipped_and_the_next_one_tried() -> None:
    """b alone is far worse than its harm says: the plain greedy stops there, with one layer moved."""
    options, baseline = model([[1], [2], [3], [4]])
    harmless = additive(options)

    def error(choices: Mapping[str, str]) -> float:
        return harmless(choices) + (100 if "b" in choices else 0)

    done = assign(options, baseline, error, AT_MOST[10])
    assert done.choices == {"a": "int8", "c": "int8", "d": "int8"}
    assert plain_greedy(options, error, AT_MOST[10]) == {"a": "int8"}
    assert ((("b", "int8"),), False) in [(step.moved, step.accepted) for step in done.steps]


@given(st.data())
def test_at_least_as_many_move_as_by_the_plain_greedy(data: st.DataObject) -> None:
    """Whatever the error is: as long as no step fails, both are at the same place in the same order."""
    harms = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=9))
    options, baseline = model([[harm] for harm in harms])
    error = data.draw(errors(options))
    done = assign(options, baseline, error, AT_MOST[5])
    assert len(done.choices) >= len(plain_greedy(options, error, AT_MOST[5]))


@given(data=st.data())
@settings(max_examples=60)
def test_the_target_is_never_broken(data: st.DataObject) -> None:
    options, baseline = model(data.draw(HARMS))
    error = data.draw(errors(options))
    target = AT_MOST[data.draw(st.sampled_from(sorted(AT_MOST)))]
    done = assign(options, baseline, error, target)
    assert done.value == error(done.choices) <= target.limit
    assert all(step.accepted == (step.value <= target.limit) for step in done.steps)
    assert done.size.total <= done.baseline_size.total


@given(HARMS)
@settings(max_examples=60)
def test_where_harms_are_the_truth_no_single_move_down_is_left(harms: list[list[int]]) -> None:
    options, baseline = model([sorted(row) for row in harms])
    error = additive(options)
    done = assign(options, baseline, error, AT_MOST[3])
    sizes = {(one.layer, one.label): one.size.total for one in options}
    for option in options:
        now = done.choices.get(option.layer)
        present = baseline[option.layer].total if now is None else sizes[option.layer, now]
        if option.size.total < present:
            assert error({**done.choices, option.layer: option.label}) > 3


def test_where_harms_are_the_truth_the_most_harmful_stay() -> None:
    """1 + 2 = 3 is all that fits of 1, 2, 4, 8, in every order."""
    options, baseline = model([[4], [1], [8], [2]])
    done = assign(options, baseline, additive(options), AT_MOST[3])
    assert done.choices == {"b": "int8", "d": "int8"}


def test_a_layer_goes_further_down_as_far_as_it_may() -> None:
    """Rising harm: a at 8 bits, b at 8 bits, a at 4 bits; b at 4 bits is too much."""
    options, baseline = model([[1, 3], [2, 4]])
    done = assign(options, baseline, additive(options), AT_MOST[5])
    assert done.choices == {"a": "int4", "b": "int8"}


def test_without_a_target_every_layer_gets_its_cheapest_option_at_once() -> None:
    options, baseline = model([[1, 2, 9], [5], [math.inf, 3]])
    calls: list[dict[str, str]] = []

    def error(choices: Mapping[str, str]) -> float:
        calls.append(dict(choices))
        return 7.0

    done = assign(options, baseline, error)
    assert done.choices == {"a": "int2", "b": "int8", "c": "int4"}
    assert done.value == 7.0 and done.target is None
    assert calls == [{}, done.choices]


def test_an_option_that_is_not_cheaper_is_no_option() -> None:
    options = [Option("a", "float32", 0.0, Size(320.0, 64.0)), Option("a", "int16", 0.0, Size(160.0, 32.0))]
    baseline = {"a": Size(160.0, 32.0)}
    assert assign(options, baseline, additive(options), AT_MOST[3]).choices == {}


def test_activations_alone_can_be_what_gets_cheaper() -> None:
    options = [Option("a", "int8/int8", 1.0, Size(80.0, 16.0))]
    done = assign(options, {"a": Size(80.0, 32.0)}, additive(options), AT_MOST[3])
    assert done.choices == {"a": "int8/int8"}


def test_among_like_harms_what_saves_more_goes_first() -> None:
    options = [Option(name, "int8", 2.0, Size(80.0 * n)) for n, name in enumerate("abc", 1)]
    baseline = {name: Size(160.0 * n) for n, name in enumerate("abc", 1)}
    assert assign(options, baseline, additive(options), AT_MOST[3]).choices == {"c": "int8"}
    options = [Option("a", "x", 2.0, Size(80.0)), Option("b", "x", 2.0, Size(120.0))]
    baseline = {"a": Size(320.0), "b": Size(160.0)}
    assert assign(options, baseline, additive(options), AT_MOST[3]).choices == {"a": "x"}


def test_what_saves_more_for_its_harm_goes_first() -> None:
    """Harm 2 of 8 bits for each of 10 numbers goes before harm 1 for 2 numbers; both are too much."""
    options = [Option("a", "int8", 2.0, Size(80.0)), Option("b", "int8", 1.0, Size(16.0))]
    baseline = {"a": Size(160.0), "b": Size(32.0)}
    assert assign(options, baseline, additive(options), Target("l2", 2)).choices == {"a": "int8"}


def test_all_that_hold_together_take_one_evaluation() -> None:
    options = [Option(f"n{i}", "int8", 1.0, Size(80.0)) for i in range(63)]
    baseline = {one.layer: Size(160.0) for one in options}
    done = assign(options, baseline, lambda choices: 0.0, AT_MOST[3])
    assert [len(step.moved) for step in done.steps] == [0, 63]
    assert len(done.choices) == 63


def test_one_bad_layer_of_many_costs_few_evaluations() -> None:
    """At most all, log2(64) to find it, log2(64) to double again, and the baseline."""
    options = [Option(f"n{i}", "int8", float(i), Size(80.0)) for i in range(64)]
    baseline = {one.layer: Size(160.0) for one in options}
    for bad in baseline:
        calls: list[int] = []

        def error(choices: Mapping[str, str], bad: str = bad, calls: list[int] = calls) -> float:
            calls.append(1)
            return 9.0 if bad in choices else 0.0

        done = assign(options, baseline, error, AT_MOST[3])
        assert done.choices.keys() == baseline.keys() - {bad}
        assert len(calls) <= 1 + 3 * 6, bad


@given(data=st.data())
@settings(max_examples=30)
def test_no_model_is_evaluated_twice_and_dictionaries_have_no_order(data: st.DataObject) -> None:
    options, baseline = model(data.draw(HARMS))
    error = data.draw(errors(options))
    seen: list[frozenset[tuple[str, str]]] = []

    def counted(choices: Mapping[str, str]) -> float:
        seen.append(frozenset(choices.items()))
        return error(choices)

    done = assign(options, baseline, counted, AT_MOST[3])
    assert len(seen) == len(set(seen))
    again = assign(options, dict(reversed(baseline.items())), error, AT_MOST[3])
    assert done == again
    assert list(done.choices) == list(again.choices)


def least_error(options: Sequence[Option], baseline: Mapping[str, Size], budget: float) -> float:
    """The least sum of harms of all assignments whose weights take at most ``budget`` bits."""
    rows = {layer: [(size.weight, 0.0)] for layer, size in baseline.items()}
    for one in options:
        rows[one.layer].append((one.size.weight, one.error))
    sums = (map(sum, zip(*row, strict=True)) for row in itertools.product(*rows.values()))
    return min(error for bits, error in sums if bits <= budget)


@given(HARMS.filter(lambda harms: len(harms) < 6), st.integers(20, 160))
@settings(max_examples=60)
def test_a_budget_holds_with_hardly_more_error_than_need_be(harms: list[list[int]], bits: int) -> None:
    """At most by the error of one move: without the last one it is the least of all that save as much."""
    options, baseline = model(harms)
    least = sum(min((o.size.weight for o in options if o.layer == one), default=160) for one in baseline)
    budget = max(least, bits * len(harms))
    done = assign(options, baseline, additive(options), None, budget=budget)
    assert done.size.weight <= budget
    assert done.value <= least_error(options, baseline, budget) + max(one.error for one in options)


def test_moves_go_along_the_hull_of_each_layer() -> None:
    """Of a, 8 bits cost 1 for 80 bits and 2 bits 3 more for 60; 4 bits, at 9, are above the line between."""
    options, _ = model([[1, 9, 4], [3]])
    order = by_error_per_cost(options, lambda layer, label: 10.0 * int((label or "int16")[3:]))
    assert [(one.layer, one.label) for one in order] == [("a", "int8"), ("b", "int8"), ("a", "int2")]


def test_a_budget_that_holds_is_used() -> None:
    """16 + 16 + 16 bits to 16 + 8 + 8: the two that do least harm."""
    options, baseline = model([[1], [2], [3]])
    for target in (None, AT_MOST[3], AT_MOST[10]):
        done = assign(options, baseline, additive(options), target, budget=320.0)
        assert done.choices == {"a": "int8", "b": "int8"}
    done = assign(options, baseline, additive(options), Target("l2", 2), budget=320.0)
    assert done.choices == {"a": "int8"}  # of the budgets above, the least that holds moves one of them
    assert done.size.weight == 400.0


def test_a_target_can_be_relative_to_the_baseline() -> None:
    options, baseline = model([[1], [2], [3]])
    error = additive(options)
    done = assign(options, baseline, lambda choices: 40 - error(choices), Target("sqnr", 3.0, relative=True))
    assert done.target == Target("sqnr", 37.0)
    assert (done.baseline, done.value) == (40.0, 37.0)


def test_a_baseline_that_breaks_the_target_is_said_at_once() -> None:
    options, baseline = model([[1]])
    calls: list[Mapping[str, str]] = []

    def bad(choices: Mapping[str, str]) -> float:
        calls.append(choices)
        return 12.5

    words = "the model before anything is moved breaks the target: sqnr 12.5 dB, the target is at least 30 dB"
    with pytest.raises(TargetError) as caught:
        assign(options, baseline, bad, Target("sqnr", 30.0))
    assert str(caught.value) == words
    assert calls == [{}]


def test_steps_are_told_as_they_come() -> None:
    options, baseline = model([[1], [2], [9]])
    told: list[Step] = []
    done = assign(options, baseline, additive(options), AT_MOST[3], progress=told.append)
    assert tuple(told) == done.steps
    assert done.steps == (
        Step((), 0.0, True, Size(480.0, 96.0)),
        Step((("a", "int8"), ("b", "int8"), ("c", "int8")), 12.0, False, Size(240.0, 48.0)),
        Step((("a", "int8"),), 1.0, True, Size(400.0, 80.0)),
        Step((("b", "int8"),), 3.0, True, Size(320.0, 64.0)),
        Step((("c", "int8"),), 12.0, False, Size(240.0, 48.0)),
    )


def test_a_model_without_candidates_stays() -> None:
    done = assign([], {}, lambda choices: 1.0, AT_MOST[3])
    assert done == Assignment({}, done.steps, 1.0, 1.0, Size(0), Size(0), AT_MOST[3])


def test_a_budget_that_is_too_small_is_named() -> None:
    options, baseline = model([[1]])
    with pytest.raises(TargetError, match="a budget of 79 bits cannot be met: the weights take 80"):
        assign(options, baseline, additive(options), budget=79.0)
