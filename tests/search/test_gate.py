"""Bounds of a metric on samples. Oracle: figures by hand, and standard errors by the formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from transforms.files.spelling import UsageError
from transforms.search.gate import Gate, GateError, each_figure, magnified
from transforms.search.named_metrics import NAMES, gate_of, plain_gate
from transforms.search.target import Scored
from transforms.search.user_metric import SampleSet


def samples(expected: Sequence[Sequence[float]], made: Sequence[Sequence[float]]) -> SampleSet:
    floats, others = ([{"y": np.array([row], np.float32)} for row in rows] for rows in (expected, made))
    return SampleSet(others, floats, floats, range(len(others)))


def first(some: list[dict[str, np.ndarray]]) -> list[float]:
    """Return the first number of each sample, of outputs [1, n]."""
    return [float(one["y"][0, 0]) for one in some]


def right(outputs: list[dict[str, np.ndarray]]) -> list[float]:
    """Return whether the first class wins."""
    return [float(one["y"].argmax() == 0) for one in outputs]


LOST = [0.1, 0.3, 0.2, 0.4]


def test_a_loss_is_paired_by_sample() -> None:
    """The scatter of the figures themselves, 5 to 50, does not enter."""
    floats = [[5.0], [50.0], [20.0], [30.0]]
    made = [[one[0] - lost] for one, lost in zip(floats, LOST, strict=True)]
    found = gate_of(first, None, 1.0).scored(samples(floats, made))
    assert found.value == pytest.approx(0.25, abs=1e-5)
    assert found.error == pytest.approx(np.std(LOST, ddof=1) / 2, abs=1e-5) and found.samples == 4


def test_a_least_figure_scatters_as_the_samples_do() -> None:
    figures = [[5.0], [50.0], [20.0], [30.0]]
    found = gate_of(first, 1.0, None).scored(samples([[one[0] + 1] for one in figures], figures))
    assert found == Scored(26.25, pytest.approx(np.std(np.array(figures), ddof=1) / 2), 4)


def test_one_number_of_all_samples_has_the_error_of_the_mean_that_it_is() -> None:
    """The jackknife of a mean is its standard error."""
    some = samples([[5.0], [7.0], [9.0]], [[4.0], [7.5], [8.0]])
    of_each, of_all = gate_of(first, None, 1.0), gate_of(lambda outputs: np.mean(first(outputs)), None, 1.0)
    one, other = of_each.scored(some), of_all.scored(some)
    assert one.value == pytest.approx(other.value) and one.error == pytest.approx(other.error)
    value, each = each_figure(of_all.figures or pytest.fail(), some)
    assert value == pytest.approx(6.5) and each == pytest.approx([4.0, 7.5, 8.0])


def margins(count: int, margin: float, change: float) -> SampleSet:
    """Return samples of two classes: the first wins by a margin, which the other model changes."""
    return samples([[margin, 0.0]] * count, [[margin - change, 0.0]] * count)


def test_answers_that_stay_by_a_hair_do_not_show_that_none_is_lost() -> None:
    """No answer flips in either model; errors that are larger would flip all of one."""
    gate = gate_of(right, None, 0.05)
    safe, near = (gate.scored(margins(16, margin, 0.1)) for margin in (10.0, 0.15))
    assert safe.value == near.value == 0.0
    assert gate.is_shown(safe) and not gate.is_shown(near)


def test_few_samples_do_not_show_a_loss_far_below_one_of_them() -> None:
    """Of n samples magnified 16 times, none lost is less than 1 + sqrt(3/4) in 16 (n + 1)."""
    gate = gate_of(right, None, 0.01)
    few, many = (gate.scored(margins(count, 10.0, 0.01)) for count in (4, 16))
    assert few.error == pytest.approx((1 + 0.75**0.5) / (16 * 5)) and not gate.is_shown(few)
    assert many.error < 0.01 and gate.is_shown(many)


def test_a_gain_by_chance_shows_nothing() -> None:
    """The other model is right where the float model is wrong, and near the border elsewhere."""
    floats, made = [[0.15, 0.0]] * 15 + [[0.0, 0.1]], [[0.05, 0.0]] * 15 + [[0.1, 0.0]]
    gate = gate_of(right, None, 0.05)
    found = gate.scored(samples(floats, made))
    assert found.value == pytest.approx(-1 / 16) and not gate.is_shown(found)


def test_a_function_that_refuses_what_no_model_makes_is_asked_for_no_more() -> None:
    """1 + sqrt(3/4) samples that are lost stand for what is not known."""

    def _probability(outputs: list[dict[str, np.ndarray]]) -> list[float]:
        assert all((one["y"] >= 0).all() for one in outputs)
        return right(outputs)

    found = gate_of(_probability, None, 0.05).scored(margins(16, 0.15, 0.1))
    assert found == Scored(0.0, pytest.approx((1 + 0.75**0.5) / 17), 16)


def test_errors_are_magnified_where_they_are_errors() -> None:
    expected = [{"y": np.array([1.0, np.inf], np.float32), "n": np.array([1]), "k": np.zeros(2)}]
    made = [{"y": np.array([1.5, np.inf], np.float32), "n": np.array([2]), "k": np.ones(3)}]
    (found,) = magnified(SampleSet(made, expected), 4.0).outputs
    assert found["y"].tolist() == [3.0, np.inf] and found["y"].dtype == np.float32
    assert found["n"].tolist() == [2] and found["k"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_every_named_metric_is_best_of_the_float_model_itself(name: str) -> None:
    boxes = {"boxes": np.array([[[0, 0, 9, 9]]], np.float32), "scores": np.array([[0.9]], np.float32)}
    some = SampleSet([boxes] * 8, [boxes] * 8)
    gate = plain_gate(name)
    if gate.figures is None:
        assert name == "sqnr"
        return
    assert gate.scored(some).value == pytest.approx(0.0 if name == "kl" else 1.0)


@pytest.mark.parametrize(
    ("metric", "least", "loss", "error", "words"),
    [
        ("sqnr", None, 1.0, UsageError, "^metric='sqnr' requires min_metric: the float model has no SQNR$"),
        ("kl", 1.0, None, UsageError, "^metric='kl' requires max_loss: less is better$"),
        ("top2", 1.0, None, ValueError, "^metric is 'top2', did you mean 'top1'?"),
        ("none.py:f", 1.0, None, ValueError, r"^metric 'none.py:f': there is no file 'none.py'$"),
        (lambda o, labels: 1, 1.0, None, ValueError, "has a parameter 'labels': beside the outputs, legal"),
    ],
)
def test_metrics_and_bounds_that_will_not_do(
    metric: object, least: float | None, loss: float | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        gate_of(metric, least, loss)  # type: ignore[arg-type]


def test_a_bound_in_words() -> None:
    assert (gate := gate_of("top1", None, 0.01)).text(0.25, 0.125) == "loss of top1 0.25 +- 0.12"
    assert gate.bound == "at most 0.01" and plain_gate("top1").bound == ""
    assert isinstance(gate.unmet("x"), GateError) and isinstance(gate, Gate)
