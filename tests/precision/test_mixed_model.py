"""Models in mixed formats. Oracle: ``quantize_graph`` by the scheme that names the layers, compared to the
last bit of stored numbers and of what ONNX Runtime computes."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase

import numpy as np
import onnx
import pytest
from onnx import helper

import ops
from tests.helpers import build, mixing, tunable
from transforms import model_io
from transforms.graph.selection import exactly
from transforms.model import graph_proto
from transforms.model.detached_weights import LARGE
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.weight_cache import WeightMemory
from transforms.precision.mixed_model import Mix, MixedModel
from transforms.scheme.scheme import Scheme
from transforms.scheme.sources import preset, scheme_from_keys

CONV, MATMUL, ATTENTION = tunable.conv_net(), tunable.matmul_net(), mixing.attention()


def compare(model: onnx.ModelProto, scheme: Scheme, labels: list[str]) -> tuple[MixedModel, list[Mix]]:
    """Return a model, and mixes of it that are not what quantizing makes.

    Layers have the scheme's formats and these in turns. All results pass the checker.
    """
    feeds = tunable.samples(model, 3)
    mixed, names = mixing.prepared(model, scheme, labels, feeds)
    assert len(names) > 1
    turns, unlike = [None, *labels], []
    for first in range(len(turns)):
        chosen = {name: turns[(first + i) % len(turns)] for i, name in enumerate(names)}
        mix = {name: mixing.rule(label) for name, label in chosen.items() if label}
        built, again = mixed.build(mix).graph, mixing.quantized(model, mixed.scheme_of(mix), feeds)
        onnx.checker.check_model(graph_proto.export_model(built), full_check=True)
        if mixing.stored(built) != mixing.stored(again) or not mixing.same(
            mixing.outputs(built, feeds), mixing.outputs(again, feeds)
        ):
            unlike.append(mix)
    return mixed, unlike


@pytest.mark.parametrize(
    ("model", "name", "labels"),
    [
        (CONV, "A16W8", ["int8"]),
        (CONV, "A8W8", ["int8/int4", "int16", "bfloat16"]),
        (CONV, "U8S8", ["int16/int8"]),
        (CONV, "BF16", ["bfp16", "mx6"]),
        (CONV, "A16W8", ["bfp16"]),
        (CONV, "BFP16", ["mx6", "float32"]),
        (MATMUL, "A16W8", ["int8"]),
        (ATTENTION, "A16W8", ["int8", "mxint8"]),
        (ATTENTION, "BF16", ["mxfp8_e4m3"]),
    ],
)
def test_a_mix_is_what_its_scheme_makes(model: onnx.ModelProto, name: str, labels: list[str]) -> None:
    # What the model is prepared for depends on the formats that may be mixed in: the scheme names them.
    assert not compare(model, preset(name).with_(auto_mixed_precision={"target": labels}), labels)[1]


def test_unlike_channels_of_a_depthwise_layer_that_may_get_blocks() -> None:
    # Whether channels are balanced follows from the formats of the whole scheme, not from what is moved.
    model = tunable.conv_net()
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w2")
    values = (
        onnx.numpy_helper.to_array(weight) * np.geomspace(1, 1000, 8, dtype=np.float32)[:, None, None, None]
    )
    weight.CopyFrom(onnx.numpy_helper.from_array(values, "w2"))
    assert not compare(model, preset("A16W8").with_(auto_mixed_precision={"target": "bfp16"}), ["bfp16"])[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"dual_quant_nodes": True},
        {"per_channel": True},
        {"keep_weight_nodes": True},
        {"fold_relu": True, "quantize_before_relu": False},
        {"layers": {"dense": "int8", "ConvTranspose": "mx9"}},
        {"exclude_nodes": ["conv"]},
        {"qdq_domain": "com.microsoft"},
        {"optimize": False},
    ],
)
def test_with_other_keys_of_the_scheme(changes: dict[str, object]) -> None:
    scheme = preset("A16W8").with_(auto_mixed_precision={"target": ["int8", "bfp16"]})
    assert not compare(CONV, scheme.with_(**changes), ["int8", "bfp16"])[1]


def test_dual_quantization_of_the_table_is_that_of_the_scheme() -> None:
    rule = {"target": "bfp16", "dual_quant_nodes": True}
    mixed, unlike = compare(CONV, preset("BF16").with_(auto_mixed_precision=rule), ["bfp16"])
    assert not unlike
    assert mixed.scheme.dual_quant_nodes


def test_the_scheme_survives_being_written() -> None:
    mixed = MixedModel(model_io.load(CONV), preset("BF16"))
    scheme = mixed.scheme_of({"conv": mixing.rule("bfp16")})
    assert scheme_from_keys(tomllib.loads(scheme.to_toml())) == scheme


def chain(*names: str) -> onnx.ModelProto:
    """Return x [2, 8] through MatMuls of these names, with a Relu behind each, to y."""
    tensors = ["x", *(f"t{i}" for i in range(len(names) - 1)), "y"]
    nodes, weights = [], {}
    for i, name in enumerate(names):
        weights[f"w{i}"] = mixing.normal(8, 8, seed=i)
        nodes.append(helper.make_node("MatMul", [tensors[i], f"w{i}"], [f"m{i}"], name))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [tensors[i + 1]], f"relu{i}"))
    return build.model(nodes, [build.value("x", [2, 8])], [build.value("y", [2, 8])], weights)


@pytest.mark.parametrize(
    "names",
    [
        ("", "", ""),
        ("a[0]", "a0", "a*"),
        ("MatMul", "Relu", "Conv"),
        ("t0", "y", "x"),
        ("/block/MatMul", "/block/MatMul/MatMulAddFusion", "?"),
    ],
)
def test_names(names: tuple[str, ...]) -> None:
    mixed, unlike = compare(
        chain(*names), preset("A16W8").with_(auto_mixed_precision={"target": "int8"}), ["int8"]
    )
    assert not unlike
    assert list(mixed.build({}).layers) == list(
        dict.fromkeys(name or f"m{i}" for i, name in enumerate(names))
    )


def test_two_layers_of_one_name_go_together() -> None:
    # ONNX Runtime runs no such model, and block formats need no ranges: stored numbers alone are compared.
    model, scheme = (
        chain("twin", "twin", "other"),
        preset("BF16").with_(auto_mixed_precision={"target": "mx6"}),
    )
    mixed = MixedModel(model_io.load(model), scheme)
    for mix in ({}, {"twin": mixing.rule("mx6")}, {"other": mixing.rule("mx6")}):
        graph = model_io.load(model)
        quantize_graph(graph, mixed.scheme_of(mix))
        built = mixed.build(mix)
        assert mixing.stored(built.graph) == mixing.stored(graph)
        assert [len(nodes) for nodes in built.layers.values()] == [2, 1]
        blocks = sum(node.op in (ops.formats.BFP, ops.formats.MX) for node in built.graph.nodes)
        assert blocks == sum(len(built.layers[name]) for name in mix)


def test_a_name_that_a_layer_shares_with_one_in_a_body() -> None:
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "w"], ["m"], "twin"),
                helper.make_node(
                    "If",
                    ["c"],
                    ["y"],
                    "if",
                    then_branch=helper.make_graph(
                        [helper.make_node("MatMul", ["m", "w"], ["t"], "twin")],
                        "t",
                        [],
                        [build.value("t", [2, 8])],
                    ),
                    else_branch=helper.make_graph(
                        [helper.make_node("Relu", ["m"], ["e"], "relu")], "e", [], [build.value("e", [2, 8])]
                    ),
                ),
            ],
            "graph",
            [build.value("x", [2, 8]), build.value("c", [], np.bool_)],
            [build.value("y", [2, 8])],
            [onnx.numpy_helper.from_array(mixing.normal(8, 8), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    feeds = [{"x": mixing.normal(2, 8, seed=i), "c": np.array(True)} for i in range(2)]
    scheme = preset("BF16").with_(auto_mixed_precision={"target": "mx6"})
    mixed, names = mixing.prepared(model, scheme, ["mx6"], feeds)
    assert names == ["twin"]
    mix = {"twin": mixing.rule("mx6")}
    again = mixing.quantized(model, mixed.scheme_of(mix), feeds)
    assert mixing.same(mixing.outputs(mixed.build(mix).graph, feeds), mixing.outputs(again, feeds))


@pytest.mark.parametrize("name", ["Conv", "conv", "a[0]*?", "[MatMul]", "[", "]", "[!x]"])
def test_a_name_as_a_pattern_matches_itself_alone(name: str) -> None:
    pattern = exactly(name)
    assert fnmatchcase(name, pattern)
    assert not any(
        fnmatchcase(other, pattern) for other in ("x", "a0", "aa", "M", "!", "Conv1") if other != name
    )
    assert not onnx.defs.has(pattern)


def test_what_is_remembered_of_weights_changes_nothing() -> None:
    # Weights of 256 x 256 are large enough to be remembered: models built first and last are the same.
    assert LARGE <= 4 * 256 * 256
    model = build.dense(256, layers=3)
    feeds = [{"x": mixing.normal(4, 256, seed=i)} for i in range(2)]
    scheme = preset("A16W8").with_(auto_mixed_precision={"target": ["int8/int4", "bfp16"]})
    mixed, names = mixing.prepared(model, scheme, ["int8/int4", "bfp16"], feeds)
    assert len(names) == 3
    mixes = [dict.fromkeys(names, mixing.rule(label)) for label in ("bfp16", "int8/int4", "int16/int8")]
    mixes.append({names[0]: mixing.rule("bfp16"), names[2]: mixing.rule("int8/int4")})
    for mix in (*mixes, *mixes):
        again = mixing.quantized(model, mixed.scheme_of(mix), feeds)
        assert mixing.stored(mixed.build(mix).graph) == mixing.stored(again)


def test_large_arrays_are_worked_on_once_and_small_ones_are_not_kept() -> None:
    memory, calls = WeightMemory(), []

    def _count() -> int:
        calls.append(1)
        return len(calls)

    large, other = (np.zeros(LARGE // 4, np.float32) for _ in range(2))
    small = np.zeros(3, np.float32)
    assert [memory.recall(large, "a", _count) for _ in range(3)] == [1, 1, 1]
    assert memory.recall(large, "b", _count) == 2
    assert memory.recall(other, "a", _count) == 3
    assert [memory.recall(small, "a", _count) for _ in range(2)] == [4, 5]


def test_arrays_that_are_named_are_the_only_ones_that_are_kept() -> None:
    small, large, calls = np.zeros(3, np.float32), np.zeros(LARGE // 4, np.float32), []

    def _count() -> int:
        calls.append(1)
        return len(calls)

    memory = WeightMemory([small])
    assert [memory.recall(small, "a", _count) for _ in range(2)] == [1, 1]
    assert [memory.recall(large, "a", _count) for _ in range(2)] == [2, 3]
