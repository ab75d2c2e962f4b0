"""Oracles: the definitions in straightforward NumPy over arrays that hold all samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from transforms.search.output_metrics import METRICS, Outputs, OutputsPair, least_sqnr, lost_top1

RNG = np.random.default_rng(3)
EXACT = 1e-12
"""Relative slack for float64 sums of 1e3 terms in another order: n * 2^-53 at worst."""

FLOATS = RNG.standard_normal((5, 2, 3, 7)).astype(np.float32)
OTHERS = FLOATS + 0.3 * RNG.standard_normal(FLOATS.shape).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    shares = np.exp(x.astype(np.float64))
    return shares / shares.sum(axis=-1, keepdims=True)


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * np.log(p / q)).sum(axis=-1).mean())


def pairs(f: np.ndarray, q: np.ndarray) -> list[OutputsPair]:
    """One output, a sample for each index of the first axis."""
    return [({"y": x}, {"y": y}) for x, y in zip(f, q, strict=True)]


def score(name: str, f: np.ndarray, q: np.ndarray) -> float:
    return METRICS[name].score(pairs(f, q))


def test_metrics_are_their_definitions() -> None:
    f, q = (array.astype(np.float64).reshape(5, -1) for array in (FLOATS, OTHERS))
    norms = np.linalg.norm(f, axis=1) * np.linalg.norm(q, axis=1)
    error = ((f - q) ** 2).sum()
    rows, other_rows = f.reshape(-1, 7), q.reshape(-1, 7)
    expected = {
        "l2": np.linalg.norm(f - q, axis=1).mean(),
        "sqnr": 10 * np.log10((f**2).sum() / error),
        "cosine": ((f * q).sum(axis=1) / norms).mean(),
        "kl": divergence(softmax(rows), softmax(other_rows)),
        "psnr": 10 * np.log10(abs(f).max() ** 2 * f.size / error),
        "top1": (rows.argmax(axis=1) == other_rows.argmax(axis=1)).mean(),
    }
    assert expected.keys() == METRICS.keys()
    for name, value in expected.items():
        assert score(name, FLOATS, OTHERS) == pytest.approx(value, rel=EXACT), name


def test_samples_are_read_once_and_none_is_kept() -> None:
    for name, metric in METRICS.items():
        assert metric.score(iter(pairs(FLOATS, OTHERS))) == score(name, FLOATS, OTHERS)


def test_outputs_of_a_sample_are_one_vector_and_integers_do_not_count() -> None:
    f, q = FLOATS.reshape(5, -1), OTHERS.reshape(5, -1)
    split: list[OutputsPair] = []
    for x, y in zip(f, q, strict=True):
        left: Outputs = {"a": x[:9], "n": np.arange(3), "b": x[9:].reshape(3, 11)}
        right: Outputs = {"b": y[9:].reshape(3, 11), "n": np.arange(3) + 1, "a": y[:9]}
        split.append((left, right))
    for name in ("l2", "sqnr", "cosine", "psnr"):
        assert METRICS[name].score(split) == pytest.approx(score(name, f, q), rel=EXACT), name


def test_rows_of_all_outputs_count_alike() -> None:
    """Two rows of three and one of two, of which one of each kind keeps its largest element."""
    f = {"a": np.array([[1.0, 2, 3], [1, 2, 3]]), "b": np.array([5.0, 1])}
    q = {"a": np.array([[1.0, 2, 9], [9, 2, 3]]), "b": np.array([4.0, 1])}
    assert METRICS["top1"].score([(f, q)]) == pytest.approx(2 / 3, rel=EXACT)


def test_outputs_that_are_distributions_are_taken_as_they_are() -> None:
    p, q = softmax(FLOATS).astype(np.float32), softmax(OTHERS).astype(np.float32)
    expected = divergence(p.astype(np.float64), q.astype(np.float64))
    # rows are scaled to a sum of 1, from which float32 is off by 7 * 2^-24 at most
    assert score("kl", p, q) == pytest.approx(expected, abs=1e-6)
    coarse = p.astype(ml_dtypes.bfloat16)
    assert score("kl", coarse, coarse) == 0.0
    as_logits = divergence(softmax(p), softmax(q))
    assert abs(as_logits - expected) > 1e-3  # so it matters which of both is taken


def test_rounding_does_not_bring_a_divergence_below_zero() -> None:
    logits = RNG.standard_normal((500, 9))
    assert min(score("kl", row[None], row[None] * (1 + 1e-15)) for row in logits) == 0.0


def test_probabilities_that_are_rounded_to_zero_do_finite_harm() -> None:
    """Zero counts as 2^-24: the divergence is 1/4 log(2^24 / 4) + 3/4 log 3/4, up to the sum of shares."""
    value = score("kl", np.array([[0.25, 0.75]]), np.array([[0.0, 1.0]]))
    assert value == pytest.approx(0.25 * math.log(2**22) + 0.75 * math.log(0.75), abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_equal_outputs_are_best_and_do_no_harm(name: str) -> None:
    best = {"l2": 0.0, "sqnr": math.inf, "cosine": 1.0, "kl": 0.0, "psnr": math.inf, "top1": 1.0}
    assert score(name, FLOATS, FLOATS) == best[name]
    assert METRICS[name].error(best[name]) == 0.0


WORST = {"l2": math.inf, "sqnr": -math.inf, "cosine": 0.0, "kl": math.inf, "psnr": -math.inf}


@pytest.mark.parametrize("name", WORST)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_makes_the_worst_value(name: str, bad: float) -> None:
    broken = OTHERS.copy()
    broken[3, 1, 2, 5] = bad
    assert score(name, FLOATS, broken) == WORST[name] == METRICS[name].worst
    assert score(name, broken, FLOATS) == WORST[name]
    assert METRICS[name].error(WORST[name]) == (1.0 if name == "cosine" else math.inf)


@pytest.mark.parametrize("name", WORST)
def test_an_infinity_that_both_models_make_is_no_error(name: str) -> None:
    """A class that may never come has a bias of -inf."""
    f, q = FLOATS.copy(), OTHERS.copy()
    f[..., 2] = q[..., 2] = -np.inf
    without = np.delete(FLOATS, 2, axis=-1), np.delete(OTHERS, 2, axis=-1)
    assert score(name, f, q) == pytest.approx(score(name, *without), rel=1e-12), "sums in another order"


def test_rows_with_nan_are_wrong() -> None:
    f, q = np.eye(4), np.eye(4)
    q[1, 1] = np.nan
    assert score("top1", f, q) == 0.75
    assert score("top1", q, f) == score("top1", q, q) == 0.75
    masked = np.where(np.eye(4) == 1, 2.0, -np.inf)  # scores that are masked still have a largest one
    assert score("top1", masked, f) == 1.0


@pytest.mark.parametrize("name", WORST)
def test_another_shape_is_as_bad_as_nan(name: str) -> None:
    found: list[OutputsPair] = [({"y": np.ones((2, 3))}, {"y": np.ones((3, 3))})]
    assert METRICS[name].score(found) == METRICS[name].worst


def test_top1_of_another_shape_is_lost() -> None:
    assert METRICS["top1"].score([({"y": np.ones((2, 3))}, {"y": np.ones((3, 3))})]) == 0.0


@pytest.mark.parametrize("name", METRICS)
def test_empty_and_scalar_outputs(name: str) -> None:
    best = {"l2": 0.0, "sqnr": math.inf, "cosine": 1.0, "kl": 0.0, "psnr": math.inf, "top1": 1.0}
    assert METRICS[name].score([({"y": np.empty((0, 3))}, {"y": np.empty((0, 3))})]) == best[name]
    assert METRICS[name].score([({"y": np.array(2.5)}, {"y": np.array(2.5)})]) == best[name]


@pytest.mark.parametrize("name", METRICS)
def test_nothing_to_measure_is_said(name: str) -> None:
    with pytest.raises(ValueError, match=r"^there are no samples to measure on$"):
        METRICS[name].score([])
    integers: list[OutputsPair] = [({"label": np.arange(3)}, {"label": np.arange(3)})]
    with pytest.raises(ValueError, match=r"^no output is of a floating type: 'label' of int64$"):
        METRICS[name].score(integers)


@pytest.mark.parametrize("name", METRICS)
@given(
    samples=arrays(
        np.float32,
        st.tuples(st.just(2), st.integers(1, 3), st.integers(0, 3), st.integers(1, 4)),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_no_value_and_no_harm_is_nan_and_none_is_below_zero(name: str, samples: np.ndarray) -> None:
    metric = METRICS[name]
    with np.errstate(all="ignore"):
        value = metric.score(pairs(*samples))
        harm = metric.error(value)
    assert not math.isnan(value)
    assert harm >= 0


@pytest.mark.parametrize("name", METRICS)
def test_harm_rises_as_the_value_gets_worse(name: str) -> None:
    metric = METRICS[name]
    values: Sequence[float] = [0.0, 0.25, 0.5, 1.0]
    if name in ("sqnr", "psnr"):
        values = [-math.inf, -1e9, -300.0, -3.0, 0.0, 20.0, math.inf]
    harms = [metric.error(value) for value in values]
    assert harms == sorted(harms, reverse=metric.larger_is_better)
    assert harms[0] != harms[-1]


@pytest.mark.parametrize("name", ["l2", "sqnr", "psnr"])
def test_harms_of_errors_at_right_angles_add_up(name: str) -> None:
    f = np.array([[3.0, 4.0, 12.0]])
    first, second = np.array([[0.5, 0, 0]]), np.array([[0, 0.25, 1]])
    harm = [METRICS[name].error(score(name, f, f + e)) for e in (first, second, first + second)]
    assert harm[0] + harm[1] == pytest.approx(harm[2], rel=EXACT)


def test_lost_rows_are_not_made_up_for_by_rows_that_become_right() -> None:
    """Of labels 0, 1, 2, 3 the float model has 0 and 1 right; then 1 is lost and 2 becomes right by luck."""
    f, q = (np.eye(4)[answers] for answers in ([0, 1, 0, 0], [0, 2, 2, 0]))
    labels = np.arange(4)
    assert lost_top1(pairs(f, q), labels) == 0.25
    assert lost_top1(pairs(f, f), labels) == 0.0
    assert lost_top1(pairs(f, q)) == 0.5  # without labels: rows 1 and 2 say something else
    assert lost_top1(pairs(f, q), np.array([3, 3, 3, 3], np.uint8)) == 0.0


def test_a_row_with_nan_is_lost() -> None:
    assert lost_top1(pairs(np.eye(2), np.full((2, 2), np.nan)), np.arange(2)) == 1.0
    assert lost_top1(pairs(np.full((2, 2), np.nan), np.eye(2)), np.arange(2)) == 0.0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(3), "3 labels for 2 rows of results"),
        (np.eye(2), r"labels must be integers of shape \[n\], not float64 \[2, 2\]"),
    ],
)
def test_labels_that_do_not_fit(labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        lost_top1(pairs(np.eye(2), np.eye(2)), labels)


def test_the_least_sqnr_is_that_of_the_worst_output() -> None:
    exact = {"large": np.full(4, 1000.0), "small": np.ones(4)}
    made = {"large": exact["large"], "small": exact["small"] + 0.1}
    assert least_sqnr([(exact, made)] * 3) == pytest.approx(20)
    assert METRICS["sqnr"].score([(exact, made)]) > 70
    assert least_sqnr([(exact, {**made, "small": np.full(4, np.nan)})]) == -np.inf
    assert least_sqnr([(exact, exact)]) == np.inf
    with pytest.raises(ValueError, match="there are no samples"):
        least_sqnr([])
