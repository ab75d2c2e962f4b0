"""Lowering the version of the standard operator set without changing the meaning of a node."""

from __future__ import annotations

import logging

import onnx
import onnx_graphsurgeon as gs

from transforms.convert_opset import import_standard
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.selection import label_of
from transforms.model import detached_weights, graph_proto
from transforms.model.read_model import ModelError
from transforms.opset.lowers import LEAST, CannotLowerError, lowered
from transforms.runtime.compare_runs import compare_runs

log = logging.getLogger(__name__)


def lower_opset(graph: gs.Graph, version: int) -> int:
    """Lower the graph to an opset; return 1 if it changed, 0 if its opset is not higher.

    A node stays as it is if its operator's older definition says the same of it: newer attributes with the
    old meaning are left out, axes of reductions and equal parts of a Split become attributes again. Nothing
    is put in place of an operator that is newer. Raises ModelError naming operator, node and opset for any
    other node, with the graph unchanged, for an opset below 13, and if the lowered model differs from the
    original on random input.
    """
    if graph.opset <= version:
        return 0
    before = graph.opset
    where = f"the model cannot be lowered from opset {before} to {version}"
    if version < LEAST:
        raise ModelError(f"{where}: {LEAST} is the least")
    constants, found = Constants(graph), []
    for node in walk.nodes(graph):
        if node.domain not in STANDARD_DOMAINS:
            continue
        try:
            found.append((node, *lowered(node, before, version, constants)))
        except CannotLowerError as error:
            raise ModelError(f"{where}: {node.op} '{label_of(node)}': {error}") from None
    original, weights = _light(graph)
    for node, attributes, count in found:
        node.attrs, node.inputs = attributes, node.inputs[:count]
    import_standard(graph, version)
    graph.ir_version = onnx.helper.find_min_ir_version_for(graph.import_domains, ignore_unknown=True)
    try:
        compare_runs(original, _light(graph)[0], weights, change="lowered")
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    log.debug("opset %d -> %d", before, version)
    return 1


def _light(graph: gs.Graph) -> tuple[onnx.ModelProto, dict]:
    light, weights = graph_proto.export_light(graph)
    return detached_weights.as_inputs(light, weights), weights
