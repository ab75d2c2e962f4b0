"""Raising the version of the standard operator set, with ``onnx.version_converter``."""

from __future__ import annotations

import logging

import onnx
import onnx.version_converter
import onnx_graphsurgeon as gs

from transforms import model_pass, walk
from transforms.read_model import ModelError
from transforms.substitute import STANDARD_DOMAINS

log = logging.getLogger(__name__)

_SCAN_CHANGED = 9
"""Opset in which Scan lost its batch axis, which the converter of the onnx package passes over in silence."""

CAST_TO_BFLOAT16 = 13
"""First opset in which Cast, and the ops that only move data, take bfloat16."""


def convert_opset(graph: gs.Graph, version: int) -> int:
    """Raise the graph to an opset; return 1 when it changed, 0 when it is there already or above.

    Raises ModelError when the converter of the onnx package knows no way for one of the operators, or gets it
    wrong (Scan of opset 8).
    """
    if graph.opset >= version:
        return 0
    before = graph.opset
    if all(node.domain not in STANDARD_DOMAINS for node in walk.nodes(graph)):
        _import_standard(graph, version)  # nothing to convert, and perhaps no import to convert from
        return 1
    if before < _SCAN_CHANGED and any(node.op == "Scan" for node in walk.nodes(graph)):
        raise ModelError(f"Scan of opset {before} has other inputs than later ones; export the model anew")

    def _convert(model: onnx.ModelProto) -> onnx.ModelProto:
        return onnx.version_converter.convert_version(model, version)

    try:
        model_pass.apply(graph, _convert)
    except (RuntimeError, onnx.version_converter.ConvertError) as error:
        raise ModelError(f"the model can not be raised from opset {before} to {version}: {error}") from error
    log.debug("opset %d -> %d, %d nodes", before, version, sum(1 for _ in walk.nodes(graph)))
    return 1


def _import_standard(graph: gs.Graph, version: int) -> None:
    others = [opset for opset in graph.import_domains if opset.domain not in STANDARD_DOMAINS]
    graph.import_domains = [onnx.helper.make_opsetid("", version), *others]
    for inner in walk.graphs(graph):
        inner.opset = version
