"""Rounding for a layer's outputs. Oracles: samples, brute force, linear algebra, the other solvers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ops
from ops.formats import LINEAR
from ops.grids import weight_grid
from ops.rounding import (
    ALGORITHMS,
    LayerProblem,
    Options,
    Quadratic,
    adaquant,
    adaround,
    coordinate_descent,
    error,
    gptq,
    quadratic,
    shifted_target,
    solve,
)
from ops.rounding.adam import Adam
from ops.rounding.quadratic import OrderedHessian
from tests.helpers.layer_problems import (
    all_numbers,
    best_rounding,
    make_layer,
    make_samples,
    nearest,
    problem_of,
)

FORMATS = ["int4", "int8", "bfloat16", "float16", "bfp16", "mx4", "mx6", "mx9", "mxint8"]
FORMATS += [name for name in ops.FORMATS if name.startswith("mxfp")]
QUICK = Options(iterations=200)


def _decibels(form: Quadratic, weights: NDArray[np.float64]) -> float:
    """The power of the target's outputs over that of the error."""
    return float(
        10 * np.log10(replace(form, target=0 * form.target).error(form.target) / form.error(weights))
    )


def test_error_is_that_on_the_samples() -> None:
    generator = np.random.default_rng(0)
    seen = make_samples(12, groups=(3,), seed=1)
    wanted = generator.standard_normal((3, seen.shape[1], 5))
    weight, other = generator.standard_normal((2, 3, 5, 12))
    problem = problem_of(weight, seen, wanted)
    direct = np.sum((wanted - seen @ np.swapaxes(other, 1, 2)) ** 2)
    # every product and sum is of a relative error of 2^-53 times the number of terms
    assert error(problem, other) == pytest.approx(direct, rel=1e-12)
    assert error(replace(problem, target_power=0.0), other) == pytest.approx(
        direct - np.sum(wanted**2), rel=1e-12
    )


def test_shifted_target_is_least_squares_with_damping() -> None:
    generator = np.random.default_rng(0)
    seen, wanted = make_samples(7, rows=40), generator.standard_normal((40, 3))
    weight = generator.standard_normal((3, 7))
    problem = problem_of(weight, seen, wanted)
    amount = 0.3 * np.trace(problem.gram) / 7
    rows = np.concatenate([seen, np.sqrt(amount) * np.eye(7)])
    right = np.concatenate([wanted, np.sqrt(amount) * weight.T])
    expected = np.linalg.lstsq(rows, right, rcond=None)[0].T
    np.testing.assert_allclose(shifted_target(problem, 0.3), expected, rtol=0, atol=1e-12)


def test_quadratic_is_the_error_with_damping_up_to_a_constant() -> None:
    _, problem = make_layer((2, 3, 2, 5))
    form = quadratic(problem, 0.2, shift=True)
    generator = np.random.default_rng(1)
    one, two = generator.standard_normal((2, 2, 3, 10))
    amounts = 0.2 * np.trace(problem.gram, axis1=1, axis2=2) / 10

    def damped(weights: NDArray[np.float64]) -> float:
        return error(problem, weights) + float(
            np.sum(amounts[:, None, None] * (weights - problem.weight) ** 2)
        )

    assert form.error(one) - form.error(two) == pytest.approx(damped(one) - damped(two), rel=1e-10)
    unshifted = quadratic(problem, 0.2, shift=False)
    np.testing.assert_array_equal(unshifted.target, problem.weight)
    np.testing.assert_array_equal(unshifted.hessian, form.hessian)


def test_inputs_that_are_always_zero_leave_weights_where_they_are() -> None:
    weight = np.random.default_rng(0).standard_normal((3, 1, 6)).astype(np.float32)
    zeros = np.zeros((6, 6))
    problem = LayerProblem(weight[:, 0].astype(np.float64), zeros, np.zeros((3, 6)))
    for algorithm in ALGORITHMS:
        grid = weight_grid(weight, "int4")
        np.testing.assert_array_equal(solve(problem, grid, algorithm, QUICK), grid.round(problem.weight))


@pytest.mark.parametrize(("name", "inputs"), [("int4", 4), ("mx4", 4), ("mxfp4", 4), ("mx6", 3)])
def test_tiny_layers_against_all_roundings(name: str, inputs: int) -> None:
    """None below the least error of all that there are, and all closer to it than plain rounding."""
    gaps: dict[str, list[float]] = {name: [] for name in ("plain", *ALGORITHMS)}
    for seed in range(15):
        weight, problem = make_layer((1, 1, inputs), seed=seed)
        grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=True)
        best = best_rounding(form, all_numbers(grid, inputs, 8.0))
        found = {name: solve(problem, grid, name, QUICK) for name in ALGORITHMS}
        for solver, weights in {"plain": grid.round(form.target), **found}.items():
            gaps[solver].append(10 * np.log10(form.error(weights) / best))
    assert min(map(min, gaps.values())) > -1e-6  # dB
    means = {solver: float(np.mean(gap)) for solver, gap in gaps.items()}
    assert means["gptq"] < 0.25 * means["plain"], means
    assert max(mean for solver, mean in means.items() if solver != "plain") < 0.5 * means["plain"], means


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_solver_on_every_grid_beats_rounding_and_stays_on_the_grid(algorithm: str, name: str) -> None:
    weight, problem = make_layer((6, 2, 20), seed=4)
    grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=True)
    found = solve(problem, grid, algorithm, QUICK)
    np.testing.assert_array_equal(grid.round(found), found)
    if ops.FORMATS[name].op != LINEAR:
        single = found.astype(np.float32).reshape(weight.shape)
        np.testing.assert_array_equal(ops.quantize_dequantize(single, name, -1), single)
    assert _decibels(form, found) > _decibels(form, grid.round(form.target)) + 1


@pytest.mark.parametrize("name", ["int4", "mx6", "bfloat16"])
def test_gptq_beats_gradient_steps_as_measured_on_real_layers(name: str) -> None:
    weight, problem = make_layer((16, 4, 16), seed=5)
    grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=True)
    figures = {a: _decibels(form, solve(problem, grid, a, QUICK)) for a in ALGORITHMS}
    assert figures["gptq"] > max(figures["adaquant"], figures["adaround"])
    assert min(figures.values()) > _decibels(form, grid.round(form.target)) + 2


def test_gptq_is_the_published_recursion() -> None:
    """The inverse hessian's Cholesky factor, as the paper's algorithm 1 has it, in our order of inputs."""
    weight, problem = make_layer((5, 1, 60), seed=6)  # more inputs than a block
    grid, form = weight_grid(weight, "int4"), quadratic(problem, 0.1, shift=False)
    order = np.argsort(-np.diagonal(form.hessian), kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(form.hessian[np.ix_(order, order)])).T
    left, expected = form.target[:, order].copy(), np.empty_like(form.target)
    for i, j in enumerate(order):
        expected[:, j] = nearest(grid, left[:, i], int(j))
        left[:, i:] -= np.outer((left[:, i] - expected[:, j]) / upper[i, i], upper[i, i:])
    np.testing.assert_array_equal(gptq(form, grid), expected)


def test_gptq_without_correlations_is_rounding() -> None:
    weight, problem = make_layer((4, 2, 8))
    grid = weight_grid(weight, "mx6")
    form = Quadratic(problem.weight, OrderedHessian.of(np.diag(np.linspace(1, 2, 16))))
    for solver in (gptq, adaround, adaquant):
        np.testing.assert_array_equal(solver(form, grid), grid.round(problem.weight))


def test_coordinate_descent_never_rises_and_ends_where_no_weight_alone_helps() -> None:
    weight, problem = make_layer((4, 3, 20), seed=7)
    grid, form = weight_grid(weight, "int4"), quadratic(problem, 0.01, shift=True)
    found = grid.round(form.target)
    errors = [form.error(found)]
    for _ in range(4):
        found = coordinate_descent(form, grid, found)
        errors.append(form.error(found))
    assert errors == sorted(errors, reverse=True)
    found = coordinate_descent(form, grid, found, sweeps=100)
    np.testing.assert_array_equal(coordinate_descent(form, grid, found), found)
    step = grid.scale[0, 0]
    for j in range(60):
        for change in (-step, step):
            other = found.copy()
            other[0, j] += change
            if np.all(grid.round(other) == other):
                assert form.error(other) >= form.error(found) * (1 - 1e-12)


def test_more_sweeps_and_iterations_count() -> None:
    weight, problem = make_layer((8, 3, 20), seed=8)
    grid, form = weight_grid(weight, "int4"), quadratic(problem, 0.01, shift=True)
    sweeps = [form.error(solve(problem, grid, "coordinate_descent", Options(sweeps=n))) for n in (0, 1, 5)]
    assert sweeps[0] > sweeps[1] > sweeps[2]
    short, long = (form.error(adaquant(form, grid, iterations=n)) for n in (20, 400))
    assert long < short
    slow, quick = (
        form.error(adaround(form, grid, iterations=50, learning_rate=rate)) for rate in (1e-4, 0.05)
    )
    assert quick != slow
    assert form.error(adaquant(form, grid, iterations=50, learning_rate=1e-7)) != form.error(
        adaquant(form, grid, iterations=50, learning_rate=0.02)
    )


def test_shift_makes_up_for_quantized_inputs() -> None:
    weight, problem = make_layer((8, 1, 40), noise=0.5, seed=9)
    grid = weight_grid(weight, "int8")
    with_shift, without = (
        error(problem, solve(problem, grid, "gptq", Options(shift=s))) for s in (True, False)
    )
    assert with_shift < 0.8 * without


def test_adaround_chooses_between_neighbours() -> None:
    weight, problem = make_layer((4, 2, 16), seed=10)
    for name in ("int4", "mxfp4", "bfloat16"):
        grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=True)
        found = adaround(form, grid, iterations=100)
        below, above = grid.neighbours(form.target)
        assert np.all((found == below) | (found == above))
        assert np.any(found != grid.round(form.target))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_groups_are_as_if_each_were_alone(algorithm: str) -> None:
    """Groups share the order of inputs, so they get the same diagonal here."""
    weight, problem = make_layer((3, 2, 3, 6), seed=11)
    size = np.sqrt(np.diagonal(problem.gram, axis1=1, axis2=2))
    order = np.linspace(2, 1, 18)
    gram = problem.gram / (size[:, :, None] * size[:, None, :]) * np.outer(order, order)
    together = LayerProblem(problem.weight, gram, problem.weight @ gram)
    grid = weight_grid(weight, "mx6")
    found = solve(together, grid, algorithm, QUICK)
    for g in range(3):
        alone = LayerProblem(problem.weight[g], gram[g], together.cross[g])
        expected = solve(alone, weight_grid(weight[g], "mx6"), algorithm, QUICK)
        np.testing.assert_array_equal(found[g], expected)


_DIGEST = """
import hashlib, numpy as np
from ops.grids import weight_grid
from ops.rounding import Options, solve
from tests.helpers.layer_problems import LayerProblem, make_layer
weight, problem = make_layer((100, 1, 700), seed=1)
gram = np.float32(problem.gram).astype(np.float64)  # the sums themselves are the caller's
problem = LayerProblem(problem.weight, gram, np.float32(problem.cross).astype(np.float64))
found = [solve(problem, weight_grid(weight, "mx6"), a, Options(iterations=100)) for a in ("adaquant", "gptq")]
print([hashlib.sha256(weights.tobytes()).hexdigest() for weights in found])
"""


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    root = Path(__file__).resolve().parents[2]
    results = [
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={"OPENBLAS_NUM_THREADS": threads, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
        ).stdout
        for threads in ("1", "2")
    ]
    assert results[0] == results[1]
    assert results[0].count(",") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sweeps": -1}, "sweeps -1 is negative"),
        ({"iterations": 0}, "iterations 0 is below 1"),
        ({"learning_rate": 0.0}, "learning rate 0 is not positive"),
        ({"damping": 0.0}, "damping 0 is not positive"),
        ({"damping": np.inf}, "damping inf is not positive and finite"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    weight, problem = make_layer((2, 1, 4))
    with pytest.raises(ValueError, match=message):
        solve(problem, weight_grid(weight, "int8"), "gptq", Options(**options))  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused() -> None:
    weight, problem = make_layer((2, 1, 4))
    with pytest.raises(ValueError, match="algorithm 'magic' is unknown, legal are adaquant, adaround"):
        solve(problem, weight_grid(weight, "int8"), "magic")
    with pytest.raises(ValueError, match=r"gram has shape \[3, 3\], a weight \[2, 4\] needs \[4, 4\]"):
        LayerProblem(problem.weight, np.eye(3), problem.cross)
    with pytest.raises(ValueError, match=r"cross has shape \[4, 2\]"):
        LayerProblem(problem.weight, problem.gram, problem.cross.T)
    with pytest.raises(ValueError, match="gram holds numbers that are not finite"):
        LayerProblem(problem.weight, problem.gram * np.nan, problem.cross)


def test_early_stop_takes_fewer_steps_and_is_no_worse_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one input, whose best rounding is found at once, Adam is called much less often."""
    counts: list[int] = []
    descend = Adam.descend
    monkeypatch.setattr(Adam, "descend", lambda self, *rest: (counts.append(1), descend(self, *rest))[1])
    weight = np.array([[0.3, 0.91]])
    problem = LayerProblem(weight, np.eye(2), weight @ np.eye(2))
    grid = weight_grid(weight.astype(np.float32).reshape(1, 1, 2), "int4")
    found = {}
    for early in (False, True):
        counts.clear()
        weights = solve(problem, grid, "adaround", Options(iterations=1000, early_stop=early))
        found[early] = error(problem, weights), len(counts)
    assert found[True][1] < found[False][1] == 1000
    assert found[True][0] <= error(problem, grid.round(weight))
