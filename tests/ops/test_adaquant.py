"""AdaQuant's native steps. Oracles: the same steps in NumPy, and what the paper claims (arXiv 2006.10518)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array
from ops.grids import weight_grid
from ops.grids.fixed import Grid, round_floating
from ops.rounding import Quadratic, adaquant, learn_scale, quadratic
from ops.rounding.adam import Adam
from ops.rounding.adaquant import PATIENCE
from ops.rounding.quadratic import OrderedHessian
from tests.helpers.layer_problems import make_layer, make_samples


@dataclass
class Steps:
    """The rows of one group, one after the other, in the arithmetic that the native code promises."""

    quadratic: Quadratic
    grid: Grid
    learning_rate: float = 0.002
    patience: int = 10**9
    learn_scale: bool = False

    def best(self, iterations: int) -> tuple[Float64Array, Float64Array]:
        """Return the best weights of so many iterations, and the scales of the rows."""
        hessian = np.float32(self.quadratic.hessian / np.abs(self.quadratic.hessian).max())
        rows = [self._row(n, hessian, iterations) for n in range(len(self.quadratic.target))]
        return np.array([row[0] for row in rows]), np.array([row[1:] for row in rows])

    def _row(self, n: int, hessian: Float32Array, iterations: int) -> tuple[Float64Array, float]:
        grid, target = self.grid.rows(slice(n, n + 1)), self.quadratic.target[n]
        unit, step = grid.scale.max(), grid.step(target[None])[0] / grid.scale[0]
        step = np.ones_like(target) if grid.element is None else step
        step_size = np.float32(step * self.learning_rate)
        scale = np.float32(np.broadcast_to(grid.scale[0] / unit, target.shape))
        u, weights = np.float32(target / grid.scale[0]), np.float32(target / unit)
        slope, pull, everywhere = np.zeros_like(u), np.zeros_like(u), np.arange(len(u))
        adam, error, lean, idle, least = Adam(u.shape), 0.0, 0.0, 0, np.inf
        if self.learn_scale:
            pull = _add_rows(pull, weights, hessian, everywhere)
        power = _along(weights, pull, everywhere)
        for _ in range(iterations):
            u = np.clip(u, np.float32(grid.lowest[0]), np.float32(grid.highest[0]))
            rounded = np.rint(u) if grid.element is None else round_floating(u, grid.element)
            change = rounded * scale - weights
            places = np.flatnonzero(change)
            error += _along(change, slope, places)
            lean += _along(change, pull, places)
            slope = _add_rows(slope, change, hessian, places)
            error += _along(change, slope, places)
            weights = rounded * scale
            total, found, more = power + 2 * lean + error, error, 0.0
            if self.learn_scale and power + lean > 0 and total > 0:
                found, more = (power * error - lean * lean) / total, -(lean + error) / total
            idle += 1
            if found < least:
                best, least, idle, factor = weights, found, 0, 1 + more
            if idle >= self.patience:
                break
            adam.descend(u, slope + np.float32(more) * (slope + pull), step_size)
        return best.astype(np.float64) * (unit * factor), unit * factor


def _add_rows(
    sums: Float32Array, change: Float32Array, hessian: Float32Array, places: NDArray[np.intp]
) -> Float32Array:
    for j in places:
        sums = sums + change[j] * hessian[j]
    return sums


def _along(change: Float32Array, values: Float32Array, places: NDArray[np.intp]) -> float:
    total = 0.0
    for j in places:
        total += float(change[j]) * float(values[j])
    return total


@pytest.mark.parametrize(
    "name", ["int4", "int8", "int16", "bfloat16", "float16", "mx6", "mxfp4", "mxfp8_e4m3"]
)
@pytest.mark.parametrize("inputs", [5, 21])
def test_native_steps_are_those_of_numpy_to_the_last_bit(name: str, inputs: int) -> None:
    weight, problem = make_layer((4, 1, inputs), seed=inputs)
    grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=True)
    found = adaquant(form, grid, iterations=150, learning_rate=0.01)
    np.testing.assert_array_equal(found, Steps(form, grid, 0.01).best(150)[0])
    assert np.any(found != grid.round(form.target))


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_learned_scales_are_those_of_numpy_to_the_last_bit(name: str) -> None:
    weight, problem = make_layer((4, 1, 21), seed=3)
    grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=True)
    found = learn_scale(form, grid, iterations=150, learning_rate=0.01)
    expected = Steps(form, grid, 0.01, learn_scale=True).best(150)[1]
    np.testing.assert_array_equal(found.scale, np.float32(expected))
    np.testing.assert_array_equal((found.lowest, found.highest), (grid.lowest, grid.highest))


def test_early_stop_ends_each_output_by_itself() -> None:
    weight, problem = make_layer((12, 1, 21), seed=5)
    grid, form = weight_grid(weight, "int4"), quadratic(problem, 0.01, shift=True)
    found = adaquant(form, grid, iterations=600, early_stop=True)
    np.testing.assert_array_equal(found, Steps(form, grid, patience=PATIENCE).best(600)[0])
    longer = adaquant(form, grid, iterations=600)
    differ = np.any(found != longer, axis=1)
    assert 0 < np.count_nonzero(differ) < 12
    assert np.all(form.row_errors(longer)[differ] < form.row_errors(found)[differ])


def test_error_that_is_followed_is_that_of_the_weights() -> None:
    """Each result is the best by errors in float64, of all numbers that the row was ever rounded to."""
    weight, problem = make_layer((6, 1, 40), seed=6)
    grid, form = weight_grid(weight, "int4"), quadratic(problem, 0.01, shift=True)
    errors = np.array([form.row_errors(adaquant(form, grid, iterations=n)) for n in range(1, 400)])[..., 0]
    # A row changes where float32 found it better: sums of a row err by 2^-24 of themselves for each of the
    # 40 terms and of the changes, some 40 * 400 / 5 of them, as a random walk.
    assert np.all(errors[1:] <= errors[:-1] * (1 + 2**-24 * np.sqrt(40 * 3200)))
    assert np.all(errors[-1] < errors[0])


def test_bits_that_steps_gain_do_not_depend_on_the_size_of_a_group() -> None:
    """A group whose inputs are 2^40 times larger leaves the other's steps alone."""
    weight, problem = make_layer((2, 3, 1, 20), seed=7)
    gain = np.array([1.0, 2.0**80])[:, None, None]
    grid = weight_grid(weight, "int8")
    form = quadratic(problem, 0.01, shift=True)
    found = adaquant(form, grid, iterations=100)
    scaled = adaquant(Quadratic(form.target, OrderedHessian.of(form.hessian * gain)), grid, iterations=100)
    np.testing.assert_array_equal(found, scaled)


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_learned_scale_is_better_than_the_largest_weight_s(name: str) -> None:
    """As measured on real layers: on the layers' inputs, and on others."""
    gains = []
    for seed in range(5):
        weight, problem = make_layer((8, 1, 64), seed=seed)
        grid, form = weight_grid(weight, name), quadratic(problem, 0.01, shift=True)
        learned = learn_scale(form, grid)
        errors = [form.error(adaquant(form, other)) for other in (learned, grid)]
        gains.append(10 * np.log10(errors[1] / errors[0]))
        assert np.all(learned.scale == learned.scale.astype(np.float32))
    assert min(gains) > 0, gains


def test_scale_is_learned_where_it_is_known() -> None:
    """Weights on a grid with another scale: it is found, and nothing is lost."""
    generator = np.random.default_rng(8)
    integers = generator.integers(-7, 8, (4, 1, 30))
    integers[..., 0] = 7
    true = np.array([0.11, 0.2, 0.37, 1.3])[:, None]
    flat = integers[:, 0] * true
    samples = make_samples(30, seed=8)
    form = Quadratic(flat, OrderedHessian.of(samples.T @ samples))
    grid = weight_grid((flat[:, None] * 1.04).astype(np.float32), "int4")
    learned = learn_scale(form, grid)
    np.testing.assert_allclose(learned.scale, true, rtol=2**-23)
    found = adaquant(form, learned)
    np.testing.assert_array_equal(np.rint(found / learned.scale), integers[:, 0])


def test_only_integers_learn_a_scale() -> None:
    weight, problem = make_layer((2, 1, 32))
    form = quadratic(problem, 0.01, shift=False)
    for name in ("mx6", "bfloat16"):
        with pytest.raises(ValueError, match="only integers have a scale"):
            learn_scale(form, weight_grid(weight, name))
