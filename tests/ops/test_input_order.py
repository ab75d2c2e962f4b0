"""The layout in which solvers visit inputs. Oracle: NumPy's transposes and takes, written out."""

from __future__ import annotations

import numpy as np

from ops.rounding.input_order import BLOCK, blocks, inputs_first, outputs_first


def test_inputs_come_first_in_their_order_and_go_back() -> None:
    weights = np.arange(24.0).reshape(2, 3, 4)
    order = np.array([2, 0, 3, 1])
    ordered = inputs_first(weights, order)
    np.testing.assert_array_equal(ordered[1, :, 2], weights[1, 2, order])
    np.testing.assert_array_equal(outputs_first(ordered, order), weights)
    assert outputs_first(ordered, order).flags.c_contiguous


def test_blocks_cover_all_inputs_once() -> None:
    for count in (0, 1, BLOCK, BLOCK + 1, 3 * BLOCK):
        places = [i for block in blocks(count) for i in range(count)[block]]
        assert places == list(range(count))
        assert all(block.stop - block.start <= BLOCK and block.stop <= count for block in blocks(count))
