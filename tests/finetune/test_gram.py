"""Oracle: the error of the layer computed row by row in float64."""

from __future__ import annotations

import numpy as np

from transforms.finetune.gram import GramStats
from transforms.finetune.layer_stats import total

G, N, K, R = 3, 4, 5, 40
RANDOM = np.random.default_rng(0)
X = (RANDOM.standard_normal((G, R, K)) + 2).astype(np.float32)
WEIGHT = RANDOM.standard_normal((G, N, K))
Y = (X @ WEIGHT.transpose(0, 2, 1) + 0.1 * RANDOM.standard_normal((G, R, N)) - 1).astype(np.float32)
OTHER = WEIGHT + 0.05 * RANDOM.standard_normal(WEIGHT.shape)
BIAS = RANDOM.standard_normal((G, N))


def _sums() -> GramStats:
    sums = GramStats.zeros(G, N, K)
    for part in (slice(0, 7), slice(7, 7), slice(7, R)):
        sums.add(X[:, part], Y[:, part])
    return sums


def test_error_is_that_of_the_rows() -> None:
    made = X.astype(np.float64) @ OTHER.transpose(0, 2, 1) + BIAS[:, None]
    # sums of some hundred terms in float64: twelve digits are left where terms cancel by a factor of 1e3
    assert np.allclose(_sums().error(OTHER, BIAS), ((Y - made) ** 2).sum(1), rtol=1e-11)


def test_the_free_bias_is_the_best() -> None:
    sums = _sums()
    best = sums.bias(OTHER)
    expected = (Y - X.astype(np.float64) @ OTHER.transpose(0, 2, 1)).mean(1)
    assert np.allclose(best, expected, rtol=1e-11)
    assert np.allclose(sums.error(OTHER), sums.error(OTHER, best), rtol=1e-9)
    assert (sums.error(OTHER) < sums.error(OTHER, best + 1e-3)).all()


def test_centred_sums_are_covariances() -> None:
    centred = _sums().centred()
    x, y = X.astype(np.float64), Y.astype(np.float64)
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    assert np.allclose(centred.xx, x.transpose(0, 2, 1) @ x)
    assert np.allclose(centred.yx, y.transpose(0, 2, 1) @ x)
    assert np.allclose(centred.yy, (y * y).sum(1))


def test_parts_add_up() -> None:
    parts = [GramStats.zeros(G, N, K) for _ in range(3)]
    for i, part in enumerate(parts):
        part.add(X[:, i::3], Y[:, i::3])
    whole = _sums()
    together = total(parts)
    assert together.count == whole.count == R
    assert np.allclose(together.error(OTHER, BIAS), whole.error(OTHER, BIAS))


def test_rows_that_are_not_finite_are_left_out() -> None:
    x, y = X.copy(), Y.copy()
    x[1, 3, 2], y[0, 8, 1] = np.nan, np.inf
    sums, expected = GramStats.zeros(G, N, K), GramStats.zeros(G, N, K)
    sums.add(x, y)
    kept = np.delete(np.arange(R), [3, 8])
    expected.add(X[:, kept], Y[:, kept])
    assert sums.count == expected.count
    assert np.array_equal(sums.xx, expected.xx) and np.array_equal(sums.yx, expected.yx)


def test_sums_over_no_rows() -> None:
    empty = GramStats.zeros(G, N, K)
    assert (empty.error(OTHER) == 0).all() and (empty.bias(OTHER) == 0).all()


def test_sums_over_what_a_layer_makes() -> None:
    """Errors against the outputs of WEIGHT and BIAS, not Y; to those themselves there is none."""
    sums = _sums().of_layer(WEIGHT, BIAS)
    made = X.astype(np.float64) @ WEIGHT.transpose(0, 2, 1) + BIAS[:, None]
    other = X.astype(np.float64) @ OTHER.transpose(0, 2, 1)
    assert np.allclose(sums.error(OTHER, 0 * BIAS), ((made - other) ** 2).sum(1), rtol=1e-11)
    assert np.allclose(sums.error(WEIGHT, BIAS), 0, atol=1e-11 * sums.yy)
    assert np.allclose(sums.bias(WEIGHT), BIAS)
