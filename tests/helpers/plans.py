"""Quantization plans of small models, and what they say, in a form that tests can write down."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import numpy_helper

from ops.array_types import Feed
from tests.helpers.output_error import OutputError
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.lift_constants import lift_constants
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.plan.quant_spec import QuantSite
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import Scheme, preset

Weights = dict[str, NDArray[np.generic] | tuple[int, ...]]


def model(text: str, weights: Weights | None = None, *, opset: int = 18) -> onnx.ModelProto:
    """Return a model from its text; weights are arrays, or shapes to fill with random numbers.

    Types and shapes of all tensors are those that onnx infers.
    """
    built = _parse(text, weights, opset)
    onnx.checker.check_model(built, full_check=True)
    return onnx.shape_inference.infer_shapes(built, strict_mode=True)


def _parse(text: str, weights: Weights | None, opset: int) -> onnx.ModelProto:
    built = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> main {text}')
    random = np.random.default_rng(7)
    for name, values in (weights or {}).items():
        if isinstance(values, tuple):
            values = (random.standard_normal(values) / 4).astype(np.float32)
        built.graph.initializer.append(numpy_helper.from_array(values, name))
    return built


def graph(text: str, weights: Weights | None = None, *, opset: int = 18) -> gs.Graph:
    """Return the graph of such a model, its constants as initializers."""
    loaded = model_io.load(model(text, weights, opset=opset))
    lift_constants(loaded)
    return loaded


def loose_graph(text: str, weights: Weights | None = None, *, opset: int = 18) -> gs.Graph:
    """Return such a graph where the text need not know the shape of the outputs."""
    built = _parse(text, weights, opset)
    for output in built.graph.output:
        output.type.tensor_type.ClearField("shape")
    loaded = model_io.load(onnx.shape_inference.infer_shapes(built, strict_mode=True))
    lift_constants(loaded)
    return loaded


def plan(
    text: str, weights: Weights | None = None, scheme: str | Scheme = "A8W8", **changes: Any
) -> QuantizationPlan:
    """Return the plan for such a model and a scheme, a preset with changes if it is a name."""
    chosen = preset(scheme) if isinstance(scheme, str) else scheme
    return QuantizationPlan(graph(text, weights), chosen.with_(**changes))


def made_by(built: gs.Graph, ids: Set[int]) -> set[str]:
    """Return the first outputs of the nodes with some ids, in bodies too."""
    return {node.outputs[0].name for node in walk.nodes(built) if id(node) in ids}


def reads(planned: QuantizationPlan) -> dict[str, str]:
    """Return what is quantized: formats by place, joined with ``+`` where there are several steps.

    A place is ``y.1`` for input 1 of the node that makes ``y`` first, ``=y`` for ``y`` as model output.
    """
    found: dict[str, str] = {}
    for quantization in planned.quantizations:
        formats = "+".join(step.format.name for step in quantization.steps)
        for node, index in quantization.uses:
            found[f"{node.outputs[0].name}.{index}"] = formats
        if quantization.is_output:
            found[f"={quantization.tensor.name}"] = formats
    return found


def at(planned: QuantizationPlan, place: str) -> QuantSite:
    """Return the quantization that serves a place."""
    for quantization in planned.quantizations:
        places = {f"{node.outputs[0].name}.{index}" for node, index in quantization.uses}
        if place in places or (quantization.is_output and place == f"={quantization.tensor.name}"):
            return quantization
    raise KeyError(place)


def source_names(planned: QuantizationPlan) -> dict[str, str]:
    """Return, for each quantized tensor, the name of the tensor that gives it its range."""
    return {q.tensor.name: planned.specs.integers.source(q.tensor).name for q in planned.quantizations}


def decibels(built: gs.Graph, scheme: Scheme, feeds: Sequence[Feed], seen: int = 8) -> float:
    """Quantize a graph by the first feeds, in place; return its SNR in dB on the others."""
    work = run(
        Work(built, scheme, CalibrationData(feeds[:seen]), options=Options(keeps_float=True)), IN_MEMORY
    )
    assert work.base.graph is not None
    return float(-10 * np.log10(OutputError(work.base.graph, feeds[seen:]).each(built).relative))
