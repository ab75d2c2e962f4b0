"""Models with operators of ONNX Runtime, and the same model with these taken apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.helpers import conversion


def runtime_operators(model: onnx.ModelProto) -> set[str]:
    """Return the operators of domain com.microsoft that a model has."""
    return {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}


def check_same(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, NDArray]) -> None:
    """Assert that the checker takes a model, and that it computes what another does.

    Both are float32 sums of a few dozen numbers near 1, in which another order, or another approximation of
    erf and tanh, changes units in the last place: 1e-5 of the largest number is some 80 of them.
    """
    onnx.checker.check_model(after, full_check=True)
    expected, found = conversion.run(before, feeds), conversion.run(after, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5 * np.abs(array).max())
