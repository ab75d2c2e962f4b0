"""HardSwish restored, which ONNX Runtime's optimizer decomposes for lack of a kernel, and exporters did."""

from __future__ import annotations

from collections.abc import Container

import onnx_graphsurgeon as gs

from transforms.algebra.find_form import Form, FormMatch, each_form
from transforms.algebra.polynomial import monomial
from transforms.graph import walk
from transforms.graph.rewire import Replacements, detach, take_over
from transforms.graph.selection import Exclusion, resolve

OPSET = 14
"""First opset with HardSwish."""

_FORM = Form("HardSwish", ("Clip",), {"relu6": {monomial(relu6=1, x=1): 1 / 6}})


def fuse_hardswish(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Replace ``x * HardSigmoid(x, alpha=1/6, beta=1/2)`` by HardSwish, in all bodies; return how many.

    So is ``x * Clip(x + 3, 0, 6) / 6``, associated in any way, up to rounding. The node rounds its result
    once, the others would round each of theirs. Does nothing below opset 14, for another alpha or beta, if
    one of the nodes is in ``exclude``, and if the HardSigmoid is used elsewhere or is an output.
    """
    if graph.opset < OPSET:
        return 0
    kept = resolve(exclude, graph)
    names = walk.Names(graph)
    count = sum(_fuse_in(inner, kept) for inner in walk.graphs(graph))
    return count + each_form(graph, _FORM, kept, lambda fused, match: _replace(fused, match, names))


def find_hardswish(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Return how many HardSwishes written with a Clip :func:`fuse_hardswish` would replace in opset 14."""
    return each_form(graph, _FORM, resolve(exclude, graph))


def _replace(fused: Replacements, match: FormMatch, names: walk.Names) -> None:
    name = names.derive(match.output.name, "hardswish")
    node = gs.Node("HardSwish", name, inputs=[match.context.root])
    fused.replace([take_over(node, match.output)], [node])


def _fuse_in(graph: gs.Graph, exclude: Container[gs.Node]) -> int:
    outputs = {id(tensor) for tensor in graph.outputs}
    gone: set[int] = set()
    for node in graph.nodes:
        sigmoid = _hard_sigmoid(node, outputs)
        if sigmoid is None or node in exclude or sigmoid in exclude:
            continue
        source = sigmoid.inputs[0]
        gone.add(id(sigmoid))
        detach(sigmoid)
        node.op, node.inputs = "HardSwish", [source]
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]
    return len(gone)


def _hard_sigmoid(node: gs.Node, outputs: set[int]) -> gs.Node | None:
    """Return the HardSigmoid of a Mul that multiplies it by its own input."""
    if node.op != "Mul" or node.domain:
        return None
    for factor, other in ((0, 1), (1, 0)):
        tensor = node.inputs[factor]
        producers = [p for p in tensor.inputs if p.op == "HardSigmoid" and not p.domain]
        if (
            producers
            and _is_hardswish(producers[0], node.inputs[other], tensor)
            and id(tensor) not in outputs
        ):
            return producers[0]
    return None


def _is_hardswish(sigmoid: gs.Node, x: gs.Tensor, result: gs.Tensor) -> bool:
    alpha, beta = sigmoid.attrs.get("alpha", 0.2), sigmoid.attrs.get("beta", 0.5)
    exact = abs(alpha - 1 / 6) < 1e-7 and beta == 0.5
    return exact and sigmoid.inputs[0] is x and len(result.outputs) == 1
