"""Masks that a model is fed: inputs that hold zero, and one number so large that it stands for nothing.

A tensor to which such an input is added has no range that suits the mask and the ordinary numbers beside it.
Constants show that before a plan is made (:mod:`transforms.plan.stand_ins`), an input in samples alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph import dtypes
from transforms.graph.masks import MASK
from transforms.graph.some_names import some_names
from transforms.plan.quant_spec import ACTIVATION
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.stand_ins import Bounds, stand_ins

_HALF = 0.5  # as of masks that are constants


def fed_masks(graph: gs.Graph, feeds: Iterable[Feed]) -> dict[int, Bounds]:
    """Return the bounds of the masks among the inputs of a graph, by the id of the input.

    A mask holds nothing but zero and one finite number of 10000 or more, in all feeds.
    """
    inputs = [tensor for tensor in graph.inputs if dtypes.is_type(tensor, dtypes.FLOAT)]
    numbers: dict[str, set[float]] = {str(tensor.name): set() for tensor in inputs}
    for feed in feeds if inputs else ():
        for name in [name for name in numbers if name in feed]:
            numbers[name] |= _few(feed[name])
            if len(numbers[name]) > 2:
                del numbers[name]
        if not numbers:
            break
    return {id(one): bounds for one in inputs if (bounds := _bounds(numbers.get(str(one.name), set())))}


def masked_by(plan: QuantizationPlan, masks: dict[int, Bounds]) -> list[str]:
    """Return the names of activations of a plan that hold a mask that is fed, the masks among them."""
    if not masks:
        return []
    found = stand_ins(plan.graph, masks)
    without = stand_ins(plan.graph)
    held = (found.bounds.keys() | found.counted) - (without.bounds.keys() | without.counted)
    sites = (site.tensor for site in plan.quantizations if site.role == ACTIVATION)
    return list(dict.fromkeys(str(tensor.name) for tensor in sites if id(tensor) in held))


def kept_for_masks(names: Sequence[str]) -> str:
    """Return a note on tensors that stay float because a mask that is fed would set their range."""
    return f"Kept in float for masks in the samples: {some_names(names)}"


def _few(values: np.ndarray) -> set[float]:
    """Return the numbers of an array, of more than two any three."""
    flat = np.asarray(values).reshape(-1)
    found = set[float]()
    while flat.size and len(found) < 3:
        found.add(float(flat[0]))
        flat = flat[flat != flat[0]]
        if any(map(math.isnan, found)):
            break
    return found


def _bounds(numbers: set[float]) -> Bounds | None:
    others = numbers - {0.0}
    if len(numbers) != 2 or len(others) != 1:
        return None
    (mask,) = others
    if not math.isfinite(mask) or abs(mask) < MASK:
        return None
    return (mask * _HALF, np.nan) if mask < 0 else (np.nan, mask * _HALF)
