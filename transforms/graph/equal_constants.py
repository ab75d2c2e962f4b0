"""Constants with the same numbers, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph.constants import load


def equal_constants(constants: list[gs.Constant]) -> list[list[gs.Constant]]:
    """Return those of constants of one shape that are equal, bit for bit, in groups of two and more."""
    groups: dict[bytes, list[list[gs.Constant]]] = {}
    for tensor in constants:
        values = load(tensor)
        begun = groups.setdefault(values[:1].tobytes(), [])  # few have the same first numbers
        group = next((one for one in begun if _is_same(load(one[0]), values)), None)
        if group is None:
            begun.append([tensor])
        else:
            group.append(tensor)
    return [group for begun in groups.values() for group in begun if len(group) > 1]


def _is_same(one: np.ndarray, two: np.ndarray) -> bool:
    return np.array_equal(
        np.ascontiguousarray(one).view(np.uint32), np.ascontiguousarray(two).view(np.uint32)
    )
