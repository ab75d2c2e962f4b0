"""How outputs were joined. Oracle: ONNX Runtime, on parts that are told apart by their numbers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import plans
from transforms.graph.joined_channels import Joined, joined_channels
from transforms.run.run_model import open_model

CONSTANTS = (
    "<int64[1] one = {1}, int64[1] zero = {0}, float two = {2}, int64 first = {0},"
    " int64[1] three = {3}, int64[1] last = {2}>"
)
FORMS = {
    "a Concat": ("y = Concat <axis=1> (a, b)", "1, 6, 5", Joined(1, (4, 2))),
    "counted from the end": ("y = Concat <axis=-2> (a, b)", "1, 6, 5", Joined(1, (4, 2))),
    "turned": ("c = Concat <axis=1> (a, b) y = Transpose <perm=[2,0,1]> (c)", "5, 1, 6", Joined(2, (4, 2))),
    "of three": ("c = Concat <axis=1> (a, b) y = Concat <axis=1> (c, b)", "1, 8, 5", Joined(1, (4, 2, 2))),
    "of two scales": (
        "c = Concat <axis=1> (a, b) d = Mul (c, two) y = Concat <axis=2> (c, d)",
        "1, 6, 10",
        Joined(1, (4, 2)),
    ),
    "without its first axis": (
        "c = Concat <axis=1> (a, b) y = Gather <axis=0> (c, first)",
        "6, 5",
        Joined(0, (4, 2)),
    ),
    "with another": ("c = Concat <axis=1> (a, b) y = Unsqueeze (c, zero)", "1, 1, 6, 5", Joined(2, (4, 2))),
    "cut along another axis": (
        "c = Concat <axis=1> (a, b) y = Slice (c, zero, three, last)",
        "1, 6, 3",
        Joined(1, (4, 2)),
    ),
    "cut": ("c = Concat <axis=1> (a, b) y = Slice (c, zero, three, one)", "1, 3, 5", None),
    "multiplied": ("c = Concat <axis=1> (a, b) y = MatMul (w, c)", "1, 4, 5", None),
    "none": ("y = Add (a, a)", "1, 4, 5", None),
}


def _split(array: NDArray[np.float32], joined: Joined) -> list[NDArray[np.float32]]:
    return np.split(array, np.cumsum(joined.sizes)[:-1], axis=joined.axis)


@pytest.mark.parametrize(("body", "shape", "expected"), FORMS.values(), ids=FORMS.keys())
def test_parts_of_an_output(body: str, shape: str, expected: Joined | None) -> None:
    text = f"(float[1,4,5] a, float[1,2,5] b) => (float[{shape}] y) {CONSTANTS} {{ {body} }}"
    graph = plans.graph(text, {"w": (1, 4, 6)})
    found = joined_channels(graph.outputs[0])
    assert found == expected
    if found is not None:
        feed = {"a": np.full((1, 4, 5), 1, np.float32), "b": np.full((1, 2, 5), 100, np.float32)}
        largest = [abs(part).max() for part in _split(open_model(graph).run(feed)["y"], found)]
        assert largest[0] <= 2 and min(largest[1:]) >= 100


def test_parts_of_unknown_sizes_are_not_told_apart() -> None:
    text = "(float[1,N,5] a, float[1,2,5] b) => (float[1,M,5] y) { y = Concat <axis=1> (a, b) }"
    assert joined_channels(plans.graph(text).outputs[0]) is None
