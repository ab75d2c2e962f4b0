"""BF16 weights and inputs in a model that computes in float32, for a quick estimate of the effect of BF16."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

import ops
from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import become_constant, constant, derived
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.insert_cast import cast_pair
from transforms.plan.rounding_plan import RoundingPlan, insert_rounding


def simulate_bf16(
    graph: gs.Graph,
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    keep_io_types: bool = True,
) -> int:
    """Round weights to bfloat16, stored as float32, and give each input one pair of Casts.

    Nothing else changes: activations stay float32. Inputs are float32, or float16 that a Cast widens (see
    :mod:`transforms.widen_float16`). Returns how many tensors changed: weights that were not on the grid and
    inputs that had no pair. Weights that only excluded nodes, arithmetic on shapes and positions, or inputs
    tied to float32 (the scales of Resize) use are unchanged; if other nodes use them too, those read a
    rounded copy.
    """
    excluded = resolve(exclude, graph, nodes)
    plan = RoundingPlan(graph, dtypes.BFLOAT16, exclude=excluded, round_before_relu=True)
    weights = [r for r in plan.roundings if isinstance(r.tensor, gs.Constant)]
    inputs = {id(tensor) for tensor in input_tensors(graph)}
    plan.roundings = [r for r in plan.roundings if id(r.tensor) in inputs]
    names, changed = walk.Names(graph), 0
    for rounding in weights:
        target = tensor = rounding.tensor
        if np.array_equal(_rounded(tensor.values).view(np.uint32), tensor.values.view(np.uint32)):
            continue
        source = tensor._values
        if len(rounding.uses) < len(tensor.outputs):  # some need it unrounded
            target = constant(names.derive(tensor.name, "bf16"), source)
        become_constant(target, derived(source, _rounded, np.float32))
        rounding.redirect(target)
        changed += 1
    pair = cast_pair("bfloat16")
    return changed + insert_rounding(graph, plan, pair, keep_io_types=keep_io_types)


def input_tensors(graph: gs.Graph) -> list[gs.Tensor]:
    """Return the inputs of a model, and the widened tensors of those that are float16."""
    narrow = [tensor for tensor in graph.inputs if dtypes.is_type(tensor, dtypes.FLOAT16)]
    casts = [node for tensor in narrow for node in tensor.outputs if node.op == "Cast"]
    return [*graph.inputs, *(node.outputs[0] for node in casts)]


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return ops.from_bfloat16(ops.to_bfloat16(values))
