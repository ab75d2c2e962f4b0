"""Made-up tables of seconds: the error of an assignment is a sum of harms, so every answer is known.

Oracles: values worked out by hand, and exhaustive search over all assignments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transforms.search.assign_by_time import accepted_choices, assign_by_time, last_that_is_faster
from transforms.search.greedy_search import Assignment, Step
from transforms.search.knapsack import Option, Size
from transforms.search.target import Target, TargetError

AT_MOST = {limit: Target("l2", limit) for limit in (0, 3, 5, 10)}
BITS = Size(80.0, 16.0)  # of every layer, in every format: bits do not matter

Rows = Mapping[str, Mapping[str, tuple[float, float]]]
"""Harm and seconds saved, by layer and label."""


def assigned(rows: Rows, target: Target | None) -> Assignment:
    options = [
        Option(layer, label, harm, BITS) for layer, row in rows.items() for label, (harm, _) in row.items()
    ]
    saved = {(layer, label): s for layer, row in rows.items() for label, (_, s) in row.items()}

    def error(choices: Mapping[str, str]) -> float:
        return math.fsum(rows[layer][label][0] for layer, label in choices.items())

    return assign_by_time(options, dict.fromkeys(rows, BITS), saved, error, target)


def singles(*rows: tuple[float, float]) -> Rows:
    """Layers a, b, c ... with one format x."""
    return {chr(97 + i): {"x": row} for i, row in enumerate(rows)}


def order(found: Assignment) -> list[str]:
    """The layers in the order in which they were first tried."""
    tried = [layer for step in found.steps for layer, _ in step.moved]
    return list(dict.fromkeys(tried))


def test_the_least_error_per_second_saved_moves_first() -> None:
    """Errors per second: 2, 0.5, 1. By error alone, a would be first, and b not fit any more."""
    found = assigned(singles((2, 1), (3, 6), (4, 4)), AT_MOST[3])
    assert found.choices == {"b": "x"} and found.value == 3
    assert order(found)[0] == "b"


def test_of_like_ratios_the_one_that_saves_more_moves_first() -> None:
    found = assigned(singles((1, 1), (3, 3), (2, 2)), AT_MOST[3])
    assert found.choices == {"b": "x"}


def test_what_is_not_faster_does_not_move_even_without_error() -> None:
    found = assigned({"a": {"x": (0, 0)}, "b": {"x": (0, -1)}, "c": {"x": (1, 1e-9)}}, AT_MOST[3])
    assert found.choices == {"c": "x"}


def test_an_option_that_is_not_in_the_table_does_not_move() -> None:
    options = [Option("a", "x", 0.0, BITS), Option("b", "x", 0.0, BITS)]
    sizes = dict.fromkeys("ab", BITS)
    found = assign_by_time(options, sizes, {("b", "x"): 1.0}, lambda choices: 0.0, AT_MOST[3])
    assert found.choices == {"b": "x"}


def test_nothing_faster_leaves_the_baseline_which_alone_is_tried() -> None:
    found = assigned(singles((0, -1), (0, 0)), AT_MOST[3])
    assert found.choices == {} and len(found.steps) == 1 and found.value == 0


def test_a_layer_goes_on_to_the_format_that_saves_more() -> None:
    """y: more error per second than x, but more seconds; z: fewer seconds than what the layer has by then."""
    rows = {"a": {"x": (1, 4), "y": (3, 6), "z": (2, 3)}}
    assert assigned(rows, AT_MOST[5]).choices == {"a": "y"}
    rows["a"]["y"] = (6, 6)
    assert assigned(rows, AT_MOST[5]).choices == {"a": "x"}


def test_more_bits_are_no_obstacle() -> None:
    options = [Option("a", "x", 0.0, Size(999.0))]
    found = assign_by_time(options, {"a": BITS}, {("a", "x"): 1.0}, lambda choices: 0.0, AT_MOST[0])
    assert found.choices == {"a": "x"} and found.size.weight == 999


def test_a_layer_that_breaks_the_target_is_skipped_and_the_next_one_tried() -> None:
    found = assigned(singles((1, 9), (4, 9), (1.5, 1)), AT_MOST[3])
    assert found.choices == {"a": "x", "c": "x"}


def test_infinite_error_is_tried_last() -> None:
    found = assigned(singles((math.inf, 9), (1, 1)), AT_MOST[3])
    assert order(found) == ["b", "a"] and found.choices == {"b": "x"}


def test_a_baseline_that_breaks_the_target_is_an_error() -> None:
    with pytest.raises(TargetError, match="before anything is moved breaks the target"):
        assign_by_time([], {}, {}, lambda choices: 4.0, AT_MOST[3])


def test_unknown_layers_are_an_error() -> None:
    with pytest.raises(ValueError, match="option 'x': layer 'a' has no size"):
        assign_by_time([Option("a", "x", 0.0, BITS)], {}, {}, lambda choices: 0.0, AT_MOST[3])


TABLE = st.lists(st.tuples(st.integers(0, 9), st.integers(-4, 9)), min_size=1, max_size=7)


@settings(deadline=None)
@given(TABLE)
def test_the_target_is_never_broken_and_no_single_move_is_left(rows: Sequence[tuple[int, int]]) -> None:
    """Also: no more is saved than the best of all assignments saves."""
    table, found = singles(*rows), assigned(singles(*rows), AT_MOST[10])
    saved = {layer: row["x"][1] for layer, row in table.items()}
    harm = {layer: row["x"][0] for layer, row in table.items()}
    total = sum(harm[layer] for layer in found.choices)
    assert found.value == total <= 10 and all(saved[layer] > 0 for layer in found.choices)
    left = [layer for layer in table if layer not in found.choices and saved[layer] > 0]
    assert not [layer for layer in left if total + harm[layer] <= 10]
    sets = (chosen for n in range(len(table) + 1) for chosen in itertools.combinations(table, n))
    best = max(sum(saved[one] for one in chosen) for chosen in sets if sum(harm[o] for o in chosen) <= 10)
    assert sum(saved[layer] for layer in found.choices) <= best


def made(*steps: tuple[Sequence[tuple[str, str | None]], bool]) -> Assignment:
    """An assignment with these steps after the baseline: value and size are the number of the step."""
    numbered = [((), True), *steps]
    all_steps = tuple(
        Step(tuple(moved), float(i), accepted, Size(i)) for i, (moved, accepted) in enumerate(numbered)
    )
    choices, last = accepted_choices(Assignment({}, all_steps, 0, 0, BITS, BITS, None))[0]
    return Assignment(choices, all_steps, 0.0, last.value, Size(0), last.size, AT_MOST[3])


STEPS = made(
    ([("a", "x")], True),
    ([("b", "x"), ("c", "x")], False),
    ([("b", "x")], True),
    ([("a", "y")], True),
    ([("c", "x")], False),
    ([("b", None)], True),
)


def test_accepted_models_are_found_from_the_steps() -> None:
    assert [choices for choices, _ in accepted_choices(STEPS)] == [
        {"a": "y"},
        {"a": "y", "b": "x"},
        {"a": "x", "b": "x"},
        {"a": "x"},
        {},
    ]


@pytest.mark.parametrize(
    ("faster", "choices", "step"),
    [
        ([{"a": "y"}, {"a": "x"}], {"a": "y"}, 6),
        ([{"a": "x"}, {"a": "x", "b": "x"}], {"a": "x", "b": "x"}, 3),
        ([], {}, 0),
    ],
)
def test_the_last_accepted_model_that_is_faster_is_taken(
    faster: list[dict[str, str]], choices: dict[str, str], step: int
) -> None:
    found = last_that_is_faster(STEPS, lambda tried: tried in faster)
    assert (found.choices, found.value, found.size) == (choices, step, Size(step))
    assert (found.steps, found.target, found.baseline) == (STEPS.steps, STEPS.target, STEPS.baseline)
