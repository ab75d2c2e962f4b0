"""Models in mixed formats for tests: built, switched, and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.helpers import build
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.precision.candidates import find_candidates
from transforms.precision.mixed_model import Mix, MixedModel
from transforms.precision.switched_model import Switch, switched_model
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule

Feeds = Sequence[Mapping[str, NDArray[Any]]]

SIMULATED = RunOptions(threads=1, simulate=True)


def rule(label: str) -> LayerRule:
    """Return the rule of a label, ``int8`` or ``int16/int8``."""
    activation, slash, weight = label.partition("/")
    return LayerRule(activation, weight if slash else activation)


def prepared(
    model: onnx.ModelProto, scheme: Scheme, labels: Sequence[str], feeds: Feeds
) -> tuple[MixedModel, list[str]]:
    """Return a model that is measured for its candidates in some formats, and their names."""
    mixed = MixedModel(model_io.load(model), scheme)
    names = list(find_candidates(mixed, ()))
    mixed.measure(CalibrationData(feeds), [{}, *(dict.fromkeys(names, rule(label)) for label in labels)])
    return mixed, names


def quantized(model: onnx.ModelProto, scheme: Scheme, feeds: Feeds) -> gs.Graph:
    """Return what quantizing by a scheme makes of a model."""
    graph = model_io.load(model)
    quantize_graph(graph, scheme, CalibrationData(feeds))
    return graph


def stored(graph: gs.Graph) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return type, shape and bytes of all initializers of the main graph by name."""
    proto = graph_proto.export_model(graph).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.initializer}
    return {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in arrays.items()}


def outputs(graph: gs.Graph, feeds: Feeds, run: RunOptions = SIMULATED) -> list[dict[str, NDArray[Any]]]:
    """Return what ONNX Runtime computes."""
    model = open_model(graph, run)
    return [model.run(feed) for feed in feeds]


def same(a: Sequence[Mapping[str, NDArray[Any]]], b: Sequence[Mapping[str, NDArray[Any]]]) -> bool:
    """Return whether all arrays are the same to the last bit."""
    return all(
        x.keys() == y.keys() and all(x[name].tobytes() == y[name].tobytes() for name in x)
        for x, y in zip(a, b, strict=True)
    )


def switched(
    mixed: MixedModel, names: Sequence[str], labels: Sequence[str]
) -> tuple[gs.Graph, dict[Switch, str]]:
    """Return the model of the scheme in which each layer can be switched to each label."""
    base = mixed.build({}, finished=False)
    mixes: dict[str, Mix] = {label: dict.fromkeys(names, rule(label)) for label in labels}
    others = {label: mixed.build(mix, finished=False) for label, mix in mixes.items()}
    switches = switched_model(base, others, [(name, label) for name in names for label in labels])
    return base.graph, switches


def with_switch(feeds: Feeds, switches: Mapping[Switch, str], on: Switch | None) -> Feeds:
    """Return the feeds with one switch on, or none."""
    flags = {name: np.array(switch == on) for switch, name in switches.items()}
    return [{**feed, **flags} for feed in feeds]


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Return normally distributed numbers for a weight, whose products are about as large as its inputs."""
    fan = max(1, int(np.prod(shape[1:])))
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(fan)).astype(np.float32)


def attention(seed: int = 0) -> onnx.ModelProto:
    """Return x [n, 6, 8] through products of computed operands to y and, of its first layer, z.

    Layers: ``query`` and ``key`` read the input, ``scores`` and ``context`` two computed operands, ``value``
    makes an output.
    """
    weights = {name: normal(8, 8, seed=seed + i) for i, name in enumerate(("wq", "wk", "wv", "wo"))}
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], "query"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], "key"),
        helper.make_node("MatMul", ["x", "wv"], ["z"], "value"),
        helper.make_node("Transpose", ["k"], ["kt"], "transpose", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["s"], "scores"),
        helper.make_node("Softmax", ["s"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "z"], ["c"], "context"),
        helper.make_node("MatMul", ["c", "wo"], ["y"], "output"),
    ]
    ends = [build.value(name, ["n", 6, 8]) for name in ("x", "y", "z")]
    return build.model(nodes, ends[:1], ends[1:], weights)
