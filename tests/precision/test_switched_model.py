"""Models whose layers can be switched. Oracle: the model rebuilt with that one layer in other formats, run by
ONNX Runtime between float32 numbers, as sensitivities are measured: the same to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers import build, mixing, tunable
from transforms import model_io
from transforms.model import graph_proto
from transforms.scheme import Scheme, preset

FLOAT = Scheme("float32", "float32")
CONV, MATMUL, ATTENTION = tunable.conv_net(), tunable.matmul_net(), mixing.attention()


def unlike(model: onnx.ModelProto, name: str, labels: list[str], **changes: object) -> dict[str, list[str]]:
    """Return, for each format, the layers with which a switched model is not what a rebuilt one is.

    Also asserts that the model with no switch on is the baseline, and that switches do something. Not each of
    them: coarse formats behind a layer may swallow what it does.
    """
    feeds = tunable.samples(model, 2)
    scheme = FLOAT if name == "float" else preset(name)
    scheme = scheme.with_(auto_mixed_precision={"target": labels}, **changes)
    mixed, names = mixing.prepared(model, scheme, labels, feeds)
    graph, switches = mixing.switched(mixed, names, labels)
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
    opened = mixing.open_model(graph, mixing.SIMULATED)

    def _run(on: tuple[str, str] | None) -> list[dict[str, np.ndarray]]:
        return [opened.run(feed) for feed in mixing.with_switch(feeds, switches, on)]

    plain = _run(None)
    assert mixing.same(plain, mixing.outputs(mixed.build({}).graph, feeds))
    found: dict[str, list[str]] = {label: [] for label in labels}
    idle = 0
    for layer, label in switches:
        rebuilt = mixing.outputs(mixed.build({layer: mixing.rule(label)}).graph, feeds)
        switched = _run((layer, label))
        idle += mixing.same(switched, plain)
        if not mixing.same(switched, rebuilt):
            found[label].append(layer)
    assert idle < len(switches) / 2
    return found


@pytest.mark.parametrize(
    ("model", "name", "labels"),
    [
        (CONV, "float", ["mx9", "bfp16", "mxint8"]),
        (MATMUL, "float", ["mxfp8_e4m3", "bfp16"]),
        (ATTENTION, "float", ["bfp16", "mx6"]),
        (CONV, "BF16", ["bfp16", "mx6", "mxint8"]),
        (CONV, "BFP16", ["float32", "mx4"]),
        (CONV, "MXINT8", ["mxint8/mx6", "bfp16/mx9"]),
        (MATMUL, "BF16", ["mxfp8_e4m3", "bfp16"]),
        (ATTENTION, "BF16", ["bfp16", "mx6"]),
        (ATTENTION, "BFP16", ["mx4"]),
    ],
)
def test_floats_and_blocks(model: onnx.ModelProto, name: str, labels: list[str]) -> None:
    assert unlike(model, name, labels) == {label: [] for label in labels}


@pytest.mark.parametrize(
    ("model", "name", "labels", "outputs"),
    [
        (CONV, "A16W8", ["int8", "int16/int4"], ["dense"]),
        (CONV, "U8S8", ["uint8/int4"], []),
        (MATMUL, "A16W8", ["int8"], ["second"]),
        (ATTENTION, "A16W8", ["int8", "int16/int4"], ["value", "output"]),
    ],
)
def test_integers(model: onnx.ModelProto, name: str, labels: list[str], outputs: list[str]) -> None:
    # A layer that makes an output of the model gives it its format, which its switch leaves as it is: it
    # changes what the layer reads. That of a weight alone does not reach the output.
    found = unlike(model, name, labels)
    for label in labels:
        assert set(found[label]) <= (
            set() if label.startswith("int16/") and name == "A16W8" else set(outputs)
        )


def test_all_layers_off_but_one_in_a_model_with_many_formats_and_scales_per_channel() -> None:
    found = unlike(CONV, "A16W8", ["int8", "int8/int4"], per_channel=True)
    assert all(set(layers) <= {"dense"} for layers in found.values())


@pytest.mark.parametrize("changes", [{"keep_weight_nodes": True}, {"qdq_domain": "com.microsoft"}])
def test_other_ways_to_write_a_model(changes: dict[str, object]) -> None:
    assert set(unlike(CONV, "A16W8", ["int8"], **changes)["int8"]) <= {"dense"}


def test_weights_in_blocks_of_integers() -> None:
    assert not unlike(build.dense(64, layers=3), "W8", ["float32/int4"], block_size=16)["float32/int4"]


def test_one_layer_reads_the_input_and_makes_the_output() -> None:
    weights = {"w": mixing.normal(8, 8), "b": mixing.normal(8, seed=1)}
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "only")
    model = build.model([node], [build.value("x", ["n", 8])], [build.value("y", ["n", 8])], weights)
    assert unlike(model, "BF16", ["bfp16", "mx4"]) == {"bfp16": [], "mx4": []}


@pytest.mark.parametrize("label", ["mxint8", "mx6"])
def test_large_weights_lie_beside_the_model(label: str, tmp_path: Path) -> None:
    model = build.dense(128, layers=3)  # 64 KiB each
    feeds = [{"x": mixing.normal(4, 128, seed=i)} for i in range(2)]
    scheme = FLOAT.with_(auto_mixed_precision={"target": label})
    mixed, names = mixing.prepared(model, scheme, [label], feeds)
    graph, switches = mixing.switched(mixed, names, [label])
    files = model_io.save(graph, tmp_path / "switched.onnx", external_data=True, functions=False)
    weights = 6 * 4 * 128 * 128
    assert files[0].stat().st_size < weights / 20 and files[1].stat().st_size >= weights
    opened = mixing.open_model(files[0], mixing.SIMULATED)
    for layer in names[:-1]:
        rebuilt = mixing.outputs(mixed.build({layer: mixing.rule(label)}).graph, feeds)
        found = [opened.run(feed) for feed in mixing.with_switch(feeds, switches, (layer, label))]
        assert mixing.same(found, rebuilt)


def test_names_of_switches_are_new_and_inputs_keep_theirs() -> None:
    model = tunable.matmul_net()
    scheme = preset("BF16").with_(auto_mixed_precision={"target": ["bfp16", "mx6"]})
    mixed, names = mixing.prepared(model, scheme, ["bfp16", "mx6"], tunable.samples(model, 1))
    graph, switches = mixing.switched(mixed, names, ["bfp16", "mx6"])
    assert [tensor.name for tensor in graph.inputs] == ["x", *switches.values()]
    assert len(set(switches.values())) == 4 and list(switches)[1] == ("first", "mx6")
    assert [tensor.name for tensor in graph.outputs] == ["y"]


def test_an_output_in_a_float_type_stays_as_it_is() -> None:
    # A layer with bfloat16 operands has a bfloat16 output, too, where it is an output of the model.
    assert unlike(CONV, "MXINT8", ["bfloat16/mx6"]) == {"bfloat16/mx6": ["dense"]}
