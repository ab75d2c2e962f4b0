"""Asking ONNX Runtime whether it can run a model, without handing it the large weights."""

from __future__ import annotations

import onnx_graphsurgeon as gs

import ops
from transforms.model import detached_weights, graph_proto

_SILENT = 4


def why_not_on_cpu(graph: gs.Graph) -> str | None:
    """Return why the installed ONNX Runtime's CPU provider can not load the graph as a model; None where it
    can.

    Our operators are registered. Large weights are declared as inputs, which changes nothing about which
    kernels a node needs.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    ops.register_custom_ops(options)
    model = detached_weights.as_inputs(*graph_proto.export_light(graph)).SerializeToString()
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions share no narrower class
        return " ".join(str(error).split())
    return None
