"""What the solvers' papers claim, on small layers. Oracles: their own recursions, all roundings, samples."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.grids import weight_grid
from ops.grids.fixed import Grid
from ops.rounding import (
    ALGORITHMS,
    Options,
    Quadratic,
    adaquant,
    adaround,
    coordinate_descent,
    error,
    gptq,
    quadratic,
    solve,
)
from ops.rounding.adaround import _normalized, _SoftRounding
from tests.helpers.layer_problems import make_layer, make_samples, nearest, problem_of

SEEDS = range(6)


def _unseen_error(rows: int, seed: int) -> float:
    """Return the error on other samples after tuning on so many rows, over that of plain rounding."""
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal((8, 1, 32)).astype(np.float32)
    flat, samples = weight[:, 0].astype(np.float64), make_samples(32, rows=4000, seed=seed)
    problems = [problem_of(flat, part, part @ flat.T) for part in (samples[:rows], samples[2000:])]
    grid, form = weight_grid(weight, "int4"), quadratic(problems[0], 0.01, shift=False)
    plain = error(problems[1], grid.round(flat))
    return error(problems[1], adaquant(form, grid)) / plain


def test_adaquant_wins_on_unseen_samples_and_more_with_more_samples() -> None:
    """2006.10518: with few samples a layer overfits, with enough of them it beats plain rounding clearly."""
    means = [np.mean([_unseen_error(rows, seed) for seed in SEEDS]) for rows in (16, 64, 2000)]
    assert means[0] > means[1] > means[2]
    assert means[2] < 0.5  # of what plain rounding leaves


def _best_choice(form: Quadratic, grid: Grid) -> float:
    """Return the least error of all choices between neighbours, of one output."""
    below, above = grid.neighbours(form.target)
    choices = np.array(list(product((0.0, 1.0), repeat=form.target.shape[-1])))
    difference = below[0] + choices * (above - below)[0] - form.target[0]
    return float(np.sum(difference * (difference @ form.hessian), axis=1).min())


def test_adaround_comes_halfway_to_the_best_choice_and_is_never_worse_than_the_nearest() -> None:
    """2004.10568: what it relaxes is a binary problem, of 2^12 choices here; measured are 3.0 of 4.9 dB."""
    found, nearest = [], []
    for seed in range(10):
        weight, problem = make_layer((1, 1, 12), seed=seed)
        grid, form = weight_grid(weight, "int4"), quadratic(problem, 0.01, shift=False)
        best = _best_choice(form, grid)
        found.append(10 * np.log10(form.error(adaround(form, grid)) / best))
        nearest.append(10 * np.log10(form.error(grid.round(form.target)) / best))
    assert min(found) > -1e-6  # dB: nothing is better than the best
    assert np.mean(found) < 0.7 * np.mean(nearest), (np.mean(found), np.mean(nearest))
    assert np.all(np.array(found) <= np.array(nearest))
    assert min(found) < 1e-6 < max(nearest)


def _soft_rounding(form: Quadratic, grid: Grid) -> tuple[_SoftRounding, NDArray[np.float32]]:
    """Return the soft variables of one output's or more, and the fractions at which they start."""
    below, above = grid.neighbours(form.target)
    unit = (above - below).max(-1, keepdims=True)
    parts = ((form.target - below) / (above - below), (below - form.target) / unit, (above - below) / unit)
    fraction, start, width = (part.astype(np.float32) for part in parts)
    return _SoftRounding(fraction, start, width, _normalized(form.hessian)), fraction


def test_adaround_s_soft_variables_end_at_0_and_1() -> None:
    """2004.10568: the term is annealed, so that they move freely first and settle at last."""
    weight, problem = make_layer((4, 1, 30), seed=3)
    soft, fraction = _soft_rounding(quadratic(problem, 0.01, shift=False), weight_grid(weight, "int4"))
    np.testing.assert_allclose(soft.choice(), fraction, atol=1e-5)  # float32, in and out of a sigmoid
    settled = []
    for beta in np.linspace(20, 2, 1000):
        soft.step(np.array(0.05, np.float32), float(beta))
        h = soft.choice()
        settled.append(float(np.mean((h == 0) | (h == 1))))
    assert settled[100] < 0.9 < 0.99 < settled[-1]


def test_adaround_s_soft_variables_go_up_as_they_go_down() -> None:
    """Equation 23 is symmetric about 1/2. Oracle: the layer with weights of the other sign, on one grid."""
    weight, problem = make_layer((4, 1, 30), seed=3)
    grid, form = weight_grid(1.1 * weight, "int8"), quadratic(problem, 0.01, shift=False)  # no weight ends it
    pair = [_soft_rounding(one, grid)[0] for one in (form, replace(form, target=-form.target))]
    for soft in pair * 20:
        soft.step(np.array(0.05, np.float32), 2.0)  # without the term, they begin where all slopes are 0
    np.testing.assert_allclose(pair[0].choice(), 1 - pair[1].choice(), atol=1e-3)  # float32, 20 steps


def _optimal_brain_quantizer(form: Quadratic, grid: Grid) -> Float64Array:
    """Return what 2210.17323 starts from, equations 2 and 3, in a fixed order: one input after the other.

    An input is rounded, the others make up for it, and it is taken out of the inverse by elimination.
    """
    order = np.argsort(-np.diagonal(form.hessian), kind="stable")
    inverse, left = np.linalg.inv(form.hessian), form.target.copy()
    for j in order:
        rounded = nearest(grid, left[:, j], int(j))
        left -= np.outer((left[:, j] - rounded) / inverse[j, j], inverse[j])
        left[:, j] = rounded
        inverse = inverse - np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
        inverse[j, j] = 1.0  # taken out: no other input is touched by it, nor it by any
    return left


@pytest.mark.parametrize("name", ["int4", "mx6", "bfloat16"])
def test_gptq_is_optimal_brain_quantization_in_a_fixed_order(name: str) -> None:
    for seed in SEEDS:
        weight, problem = make_layer((5, 1, 12), seed=seed)
        grid, form = weight_grid(weight, name), quadratic(problem, 0.1, shift=False)
        # the grid's numbers are 2^-12 apart at least, rounding errors are those of float64
        np.testing.assert_allclose(gptq(form, grid), _optimal_brain_quantizer(form, grid), atol=1e-12)


@pytest.mark.parametrize("name", ["int4", "int8", "mxfp4", "bfp16"])
def test_gptq_beats_rounding_to_nearest_on_every_layer(name: str) -> None:
    for seed in SEEDS:
        weight, problem = make_layer((8, 2, 24), seed=seed)
        grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=False)
        assert form.error(gptq(form, grid)) < 0.7 * form.error(grid.round(form.target))


def _refitted(wanted: Float64Array, seen: Float64Array, grid: Grid, order: NDArray[np.intp]) -> Float64Array:
    """Return weights of which one input after the other is rounded, all others fitted to the samples anew."""
    weights = np.linalg.lstsq(seen, wanted, rcond=None)[0].T
    for i, j in enumerate(order):
        weights[:, j] = nearest(grid, weights[:, j], int(j))
        done, free = order[: i + 1], order[i + 1 :]
        rest = wanted - seen[:, done] @ weights[:, done].T
        if free.size:
            weights[:, free] = np.linalg.lstsq(seen[:, free], rest, rcond=None)[0].T
    return weights


def test_shifted_gptq_refits_what_is_not_yet_rounded_to_the_float_outputs() -> None:
    """2505.11695: inputs seen are quantized, outputs wanted are those of the float model."""
    for seed in SEEDS:
        generator = np.random.default_rng(seed)
        weight = generator.standard_normal((4, 1, 10)).astype(np.float32)
        clean = make_samples(10, seed=seed)
        seen, wanted = clean + 0.2 * generator.standard_normal(clean.shape), clean @ weight[:, 0].T
        grid = weight_grid(weight, "int4")
        problem = problem_of(weight[:, 0].astype(np.float64), seen, wanted)
        form = quadratic(problem, 1e-12, shift=True)
        order = np.argsort(-np.diagonal(form.hessian), kind="stable")
        np.testing.assert_array_equal(gptq(form, grid), _refitted(wanted, seen, grid, order))


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_correction_for_quantized_inputs_beats_gptq_without(noise: float) -> None:
    """2505.11695, on the true outputs: the more, the coarser the inputs."""
    gains = []
    for seed in SEEDS:
        weight, problem = make_layer((8, 1, 32), noise=noise, seed=seed)
        grid = weight_grid(weight, "int8")
        errors = [error(problem, solve(problem, grid, "gptq", Options(shift=s))) for s in (True, False)]
        gains.append(10 * np.log10(errors[1] / errors[0]))
    assert min(gains) > (0.1 if noise < 0.2 else 0.5), gains


@pytest.mark.parametrize("name", ["int4", "mx6", "mxfp4", "bfloat16"])
def test_coordinate_descent_is_never_worse_than_any_start(name: str) -> None:
    """2309.01885: the error falls in each update; also from what other solvers found."""
    for seed in SEEDS:
        weight, problem = make_layer((4, 2, 24), seed=seed)
        grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=True)
        random = grid.round(form.target + np.random.default_rng(seed).standard_normal(form.target.shape))
        starts = [random, grid.round(form.target), gptq(form, grid), adaquant(form, grid, iterations=50)]
        for start in starts:
            after = form.row_errors(coordinate_descent(form, grid, start))
            assert np.all(after <= form.row_errors(start) * (1 + 1e-12))  # sums of 48 terms in float64


def test_the_best_solver_is_close_to_the_best_of_all_roundings() -> None:
    """Of 15^5 for an output: solvers err where the others do not, and not below what is possible."""
    gaps: list[float] = []
    plain: list[float] = []
    for seed in range(10):
        weight, problem = make_layer((1, 1, 5), seed=seed)
        grid, form = weight_grid(weight, "int4"), quadratic(problem, 0.01, shift=True)
        numbers = np.arange(grid.lowest[0, 0], grid.highest[0, 0] + 1) * grid.scale[0, 0]
        difference = np.stack(np.meshgrid(*[numbers] * 5, indexing="ij"), -1).reshape(-1, 5) - form.target[0]
        best = float(np.sum(difference * (difference @ form.hessian), axis=1).min())
        found = min(form.error(solve(problem, grid, name, Options(iterations=300))) for name in ALGORITHMS)
        gaps.append(10 * np.log10(found / best))
        plain.append(10 * np.log10(form.error(grid.round(form.target)) / best))
    assert min(gaps) > -1e-6
    assert np.mean(gaps) < 0.2 * np.mean(plain), (gaps, plain)
    assert sum(gap < 1e-6 for gap in gaps) >= 4
