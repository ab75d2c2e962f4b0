"""Rows that are kept as they are. Oracles: Gram matrices of the same rows, and what solvers make of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ops.grids import Grid
from ops.rounding import quadratic, solve_form
from tests.helpers import build, tunable
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.gram import GramStats
from transforms.finetune.layer_stats import RowStats, total

GROUPS, ROWS, OUTPUTS, INPUTS = 2, 20, 3, 130

random = np.random.default_rng(0)
WEIGHT = random.standard_normal((GROUPS, OUTPUTS, INPUTS))


def both() -> tuple[RowStats, GramStats]:
    """Return the rows, of which one is not finite, and their sums."""
    x = random.standard_normal((GROUPS, ROWS, INPUTS))
    y = x @ WEIGHT.transpose(0, 2, 1) + 0.1 * random.standard_normal((GROUPS, ROWS, OUTPUTS)) + 3
    x[0, 4, 7] = np.inf
    found = RowStats.zeros(GROUPS, OUTPUTS, INPUTS), GramStats.zeros(GROUPS, OUTPUTS, INPUTS)
    for stats in found:
        for part in (slice(0, 5), slice(5, ROWS)):
            stats.add(x[:, part], y[:, part])
    return found


def test_errors_and_biases_are_those_of_the_sums() -> None:
    rows, sums = both()
    other, bias = (
        WEIGHT + 0.1 * random.standard_normal(WEIGHT.shape),
        random.standard_normal((GROUPS, OUTPUTS)),
    )
    for one, two in ((rows, sums), (rows.of_layer(other, bias), sums.of_layer(other, bias))):
        np.testing.assert_allclose(one.error(other, bias), two.error(other, bias), rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(one.error(WEIGHT), two.error(WEIGHT), rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(one.bias(other), two.bias(other), atol=1e-10)
        np.testing.assert_allclose(one.centred().yy, two.centred().yy, rtol=1e-9, atol=1e-8)
    for name in ("count", "importance", "xx", "yx"):
        np.testing.assert_allclose(getattr(rows, name), getattr(sums, name))


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("algorithm", ["gptq", "coordinate_descent"])
def test_weights_are_rounded_as_by_the_gram_matrix(algorithm: str, shift: bool) -> None:
    rows, sums = (stats.centred() for stats in both())
    shape = (GROUPS, OUTPUTS, 1)
    grid = Grid(np.full(shape, 0.2), np.full(shape, -8.0), np.full(shape, 7.0))
    forms = [quadratic(stats.problem(WEIGHT), 0.1, shift=shift) for stats in (rows, sums)]
    np.testing.assert_allclose(forms[0].target, forms[1].target, atol=1e-9)
    np.testing.assert_allclose(forms[0].hessian, forms[1].hessian, atol=1e-9)
    found = [solve_form(form, grid, algorithm) for form in forms]
    np.testing.assert_array_equal(*found)
    assert forms[0].error(found[0]) == pytest.approx(forms[1].error(found[0]))


def test_rows_become_sums_once_they_are_as_many_as_inputs() -> None:
    rows, sums = both()
    assert rows.settled() is rows
    assert isinstance(total([rows] * 3), RowStats)
    many = total([rows] * 7)
    assert isinstance(many, GramStats)
    np.testing.assert_allclose(many.xx, 7 * sums.xx)
    np.testing.assert_allclose(total([sums, rows]).yy, 2 * sums.yy)


def test_a_wide_layer_is_tuned_by_its_rows() -> None:
    """Its Gram matrix would take 1 GB, and solving for it minutes."""
    numbers = np.random.default_rng(1)
    weight = (numbers.standard_normal((11616, 4)) / 100).astype(np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "wide")]
    model = build.model(nodes, [build.value("x", ["n", 11616])], [build.value("y", ["n", 4])], {"w": weight})
    mixed = numbers.standard_normal((4, 11616))  # samples that have something in common
    data = [{"x": (numbers.standard_normal((2, 4)) @ mixed).astype(np.float32)} for _ in range(8)]
    float_graph, quantized = tunable.pair(model, "MX6", data)
    (layer,) = finetune_weights(float_graph, quantized, data).layers
    assert layer.after < layer.before
