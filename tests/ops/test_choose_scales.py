"""Oracle: the error tr(W H W^T) - 2 tr(C W^T) of every choice, computed in full."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ops
from ops.grids import block_grids
from ops.rounding.choose_scales import Candidate, choose_candidates
from ops.rounding.row_space import RowGram


def _error(gram: np.ndarray, cross: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the error of each output [G, N]."""
    return np.asarray((weights * (weights @ gram - 2 * cross)).sum(-1))


def _problem(seed: int, groups: int, outputs: int, inputs: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((groups, inputs + 3, inputs)) @ random.standard_normal((inputs, inputs))
    made = random.standard_normal((groups, inputs + 3, outputs))
    weights = random.standard_normal((4, groups, outputs, inputs))
    turned = rows.transpose(0, 2, 1)
    return turned @ rows, made.transpose(0, 2, 1) @ rows, weights


def _candidates(weights: np.ndarray) -> list[Candidate]:
    return [lambda block, one=one: one[..., block] for one in weights[1:]]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 999),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from([1, 2, 4, 9]),
)
def test_blocks_are_chosen_one_after_another(
    seed: int, groups: int, outputs: int, inputs: int, size: int
) -> None:
    gram, cross, weights = _problem(seed, groups, outputs, inputs)
    blocks = [slice(first, min(first + size, inputs)) for first in range(0, inputs, size)]
    chosen, found = choose_candidates(gram, cross, weights[0], _candidates(weights), blocks)
    expected = weights[0].copy()
    for number, block in enumerate(blocks):
        tried = []
        for one in weights:
            changed = expected.copy()
            changed[..., block] = one[..., block]
            tried.append(changed)
        errors = np.stack([_error(gram, cross, one) for one in tried])
        np.testing.assert_array_equal(chosen[..., number], errors.argmin(0))
        expected = np.take_along_axis(np.stack(tried), errors.argmin(0)[None, ..., None], 0)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert (_error(gram, cross, found) <= _error(gram, cross, weights[0]) + 1e-9).all()


@pytest.mark.parametrize("shared", [(0, 1), (0,)])
def test_shared_choices(shared: tuple[int, ...]) -> None:
    gram, cross, weights = _problem(5, 3, 4, 6)
    chosen, _ = choose_candidates(gram, cross, weights[0], _candidates(weights), [slice(None)], shared)
    errors = np.stack([_error(gram, cross, one) for one in weights]).sum(
        tuple(a + 1 for a in shared), keepdims=True
    )
    np.testing.assert_array_equal(chosen[..., 0], np.broadcast_to(errors.argmin(0), (3, 4)))


def test_rows_take_the_place_of_their_gram_matrix() -> None:
    random = np.random.default_rng(6)
    rows = random.standard_normal((2, 3, 8))
    gram = rows.transpose(0, 2, 1) @ rows + 0.5 * np.eye(8)
    _, cross, weights = _problem(6, 2, 3, 8)
    blocks = [slice(0, 3), slice(3, 8)]
    found = [
        choose_candidates(h, cross, weights[0], _candidates(weights), blocks)
        for h in (gram, RowGram(rows, np.full((2, 1, 1), 0.5)))
    ]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][0].any()


@pytest.mark.parametrize("format", ["mx4", "mx6", "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3"])
def test_numbers_of_all_exponents_survive_their_format(format: str) -> None:
    """Oracle: the format's own rounding, for every mixture of exponents of blocks."""
    random = np.random.default_rng(1)
    weight = (random.standard_normal((1, 3, 2, 70)) * np.exp(random.standard_normal((1, 3, 2, 1)))).astype(
        np.float32
    )
    grids = block_grids(weight, format, importance=random.random(140))
    target = weight.reshape(1, 3, 140).astype(np.float64)
    rounded = [grid.round(target) for grid in grids]
    assert any(np.any(a != b) for a, b in itertools.combinations(rounded, 2))
    for one in rounded:
        numbers = one.reshape(weight.shape).astype(np.float32)
        np.testing.assert_array_equal(ops.quantize_dequantize(numbers, format, -1), numbers)
