"""Activations clipped to the range of BF16 before they are rounded."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import Insertions
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.plan.infinities import meant_infinities
from transforms.plan.rounding import Rounding
from transforms.plan.rounding_plan import RoundingPlan, is_saturation


def saturate_activations(
    graph: gs.Graph,
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    keep_io_types: bool = True,
) -> int:
    """Clip every tensor that a conversion will round to +-3.38953139e38; return how many got a Clip.

    Call it before :func:`transforms.insert_cast.insert_cast` or a similar rewrite, so that no sum that
    overflows BF16 becomes infinite. Does nothing to weights (see :func:`transforms.saturate.saturate`), to
    tensors that are already clipped to the range, to those whose infinities have a meaning
    (:mod:`transforms.plan.infinities`), and to inputs that become bfloat16 with ``keep_io_types`` false.
    Raises ValueError below opset 12, where Clip does not take bounds as inputs for all types.
    """
    walk.check_graph(graph)
    if graph.opset < 12:
        raise ValueError(f"activations can be saturated from opset 12 on, the model has {graph.opset}")
    plan = RoundingPlan(graph, dtypes.BFLOAT16, exclude=resolve(exclude, graph, nodes))
    left = {id(tensor) for tensor in (() if keep_io_types else graph.inputs)}
    left |= meant_infinities(graph, computed=True).keys()
    roundings = [
        candidate
        for candidate in plan.roundings
        if not isinstance(candidate.tensor, gs.Constant)
        and (candidate.producer is None or not is_saturation(candidate.producer))
        and id(candidate.tensor) not in left
    ]
    names = walk.Names(graph)
    bounds = [
        gs.Constant(names.derive("", "bf16_min"), np.array(-dtypes.BFLOAT16_MAX)),
        gs.Constant(names.derive("", "bf16_max"), np.array(dtypes.BFLOAT16_MAX)),
    ]
    clips, insertions = [_clip(rounding, bounds, names) for rounding in roundings], Insertions()
    for rounding, clip in zip(reversed(roundings), reversed(clips), strict=True):
        insertions.add(rounding.owner, rounding.producer, [clip])
    insertions.place(graph)
    return len(roundings)


def _clip(rounding: Rounding, bounds: list[gs.Constant], names: walk.Names) -> gs.Node:
    source = target = rounding.tensor
    if rounding.is_output:
        source = rounding.split_off(names, "unclipped")
    else:
        target = dtypes.variable(names.derive(source.name, "clipped"), dtypes.FLOAT, source)
        rounding.redirect(target)
    return gs.Node(
        "Clip", names.derive(rounding.tensor.name, "saturate"), inputs=[source, *bounds], outputs=[target]
    )
