"""Roundings as functions. Oracle: ONNX Runtime on the nodes of the quantized model, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import build, mixing, tunable
from transforms.model.copy_graph import copy_graph
from transforms.model.detached_weights import LARGE
from transforms.plan.qparams import QParamsTable
from transforms.plan.quant_spec import BIAS
from transforms.plan.quantization_plan import each_use
from transforms.precision.candidates import layers_of
from transforms.precision.mixed_model import Mix, MixedModel
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import preset

AS_WRITTEN = RunOptions(threads=1, simulate=True, optimize=False)
CONV, MATMUL, ATTENTION = tunable.conv_net(), tunable.matmul_net(), mixing.attention()


def source(tensor: gs.Tensor) -> gs.Tensor:
    """Return what Q/DQ nodes of ours and of ONNX round to make a tensor."""
    while tensor.inputs and "quantize" in tensor.inputs[0].op.lower():
        tensor = tensor.inputs[0].inputs[0]
    return tensor


def rounders(mixed: MixedModel, mix: Mix) -> dict[str, list[dict[int, Callable[[np.ndarray], np.ndarray]]]]:
    """Return what is done to the operands of layers in a mix: for each node of a name, by input."""
    plan, built = mixed._plan(mix)
    read, uses = QParamsTable(plan, mixed._ranges, mixed._memory).read, each_use(plan)
    found = {(id(node), index): partial(read, site) for node, index, site in uses if site.role != BIAS}
    return {
        name: [{i: found[id(node), i] for i in range(2) if (id(node), i) in found} for node in nodes]
        for name, nodes in built.layers.items()
    }


def compared(mixed: MixedModel, names: list[str], label: str | None, feed: Mapping[str, np.ndarray]) -> int:
    """Compare what each layer reads with rounders; return how many operands change."""
    mix = dict.fromkeys(names, mixing.rule(label)) if label else {}
    built = copy_graph(mixed.build(mix, finished=False).graph)
    layers, floats = layers_of(built), layers_of(mixed.graph)
    found = rounders(mixed, mix)
    read = [tensor for name in names for tensor in layers[name][0].inputs[:2]]
    raw = [source(tensor) for tensor in read]
    built.outputs = list({t.name: t for t in (*read, *raw) if t.inputs}.values())
    arrays = {**feed, **open_model(built, AS_WRITTEN).run(feed)}
    changed = 0
    for name in names:
        for index, tensor in enumerate(layers[name][0].inputs[:2]):
            weight = floats[name][0].inputs[index]
            values = weight.values if isinstance(weight, gs.Constant) else arrays[source(tensor).name]
            made = tensor.values if isinstance(tensor, gs.Constant) else arrays[tensor.name]
            rounder = found[name][0].get(index)
            rounded = values if rounder is None else rounder(np.asarray(values))
            assert rounded.dtype == made.dtype == np.float32, (name, index)
            assert rounded.shape == made.shape and rounded.tobytes() == made.tobytes(), (name, index)
            changed += rounded.tobytes() != values.tobytes()
    return changed


FORMATS = ["int16", "int8/int4", "bfloat16", "float16", "bfp16", "mx6", "mxfp8_e4m3", "mxint8"]


@pytest.mark.parametrize("model", [CONV, MATMUL, ATTENTION], ids=["conv", "matmul", "attention"])
@pytest.mark.parametrize(
    ("scheme", "changes", "labels"),
    [
        ("A8W8", {"per_channel": True}, FORMATS),
        ("U8S8", {}, ["int16/int8"]),
        ("A8W8", {"activation_symmetric": False, "keep_weight_nodes": True}, ["int16", "mx9"]),
        ("BF16", {"dual_quant_nodes": True}, ["mx6", "bfp16", "int8/int4"]),
    ],
)
def test_what_layers_read_to_the_last_bit(
    model: onnx.ModelProto, scheme: str, changes: dict[str, object], labels: list[str]
) -> None:
    feeds = tunable.samples(model, 2)
    rule = {"target": labels}
    known = preset(scheme).with_(optimize=False, auto_mixed_precision=rule, **changes)
    mixed, names = mixing.prepared(model, known, labels, feeds)
    for label in (None, *labels):
        assert compared(mixed, names, label, feeds[1]) >= len(names)


def test_large_weights_that_were_rounded_before() -> None:
    # Scales of large weights are remembered: a second plan, and a model that is built, have the same.
    model = build.dense(144, layers=2)
    assert LARGE < 144 * 144 * 4
    feeds = [{"x": mixing.normal(3, 144, seed=i)} for i in range(2)]
    labels = ["int8/int4", "int16/int4"]
    known = preset("A8W8").with_(optimize=False, auto_mixed_precision={"target": labels})
    mixed, names = mixing.prepared(model, known, labels, feeds)
    for label in (*labels, *labels):
        assert compared(mixed, names, label, feeds[0]) == 4


def test_a_layer_in_float_has_nothing_done_to_it() -> None:
    mixed, names = mixing.prepared(CONV, preset("A8W8"), ["float32"], tunable.samples(CONV, 2))
    found = rounders(mixed, dict.fromkeys(names, mixing.rule("float32")))
    assert found == {name: [{}] for name in names}
