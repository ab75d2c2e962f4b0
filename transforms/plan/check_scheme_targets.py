"""Refusing what a scheme says of single layers and tensors where a plan could not do it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.plan.node_formats import FormatTable
from transforms.plan.quant_spec import QuantSite
from transforms.plan.scheme_targets import Targets
from transforms.scheme import Scheme


def check_targets(
    graph: gs.Graph,
    scheme: Scheme,
    targets: Targets,
    formats: FormatTable,
    quantizations: Sequence[QuantSite],
) -> None:
    """Raise ValueError for a layer or tensor that a scheme names and that got nothing in the format named.

    A rule that later rules or exclusions override on all its nodes is none such, nor one that gives a format
    to weights of nodes that have none but does something else. Also for a tensor that
    would need a range inside a body, where none is measured.
    """
    _check_tensors(graph, scheme, targets, quantizations)
    used = {(id(node), q.steps[0].format.name) for q in quantizations for node, _ in q.uses}
    for pattern, selection, rule in targets.rules:
        wanted = [
            (node, name)
            for part, name in {"activation": rule.activation, "weight": rule.weight}.items()
            if name is not None and (fmt := scheme.format(name)) is not None
            for node in walk.nodes(graph)
            if node in selection and getattr(formats[node], part) == fmt
        ]
        if wanted and not any((id(node), name) in used for node, name in wanted):
            kinds = ", ".join(sorted({node.op for node, _ in wanted}))
            names = " or ".join(dict.fromkeys(name for _, name in wanted))
            raise ValueError(f"layers entry '{pattern}': no input of {kinds} can take {names} there")


def _check_tensors(
    graph: gs.Graph, scheme: Scheme, targets: Targets, quantizations: Sequence[QuantSite]
) -> None:
    named = [q for q in quantizations if id(q.tensor) in targets.tensors]
    for quantization in named:
        name, format = targets.tensors[id(quantization.tensor)]
        measured = quantization.steps[0].needs_range and isinstance(quantization.tensor, gs.Variable)
        if measured and quantization.home is not graph:
            raise ValueError(
                f"tensors entry '{name}': {format} needs a range, none is measured in If, Loop and Scan"
            )
    placed = {targets.tensors[id(quantization.tensor)][0] for quantization in named}
    for name, format in targets.tensors.values():
        if name not in placed and scheme.format(format) is not None:
            raise ValueError(f"tensors entry '{name}': nothing that reads it can take {format}")
