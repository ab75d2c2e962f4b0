"""Nodes that a user keeps in float are not merged into others, neither here nor by the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.helpers import build, conversion
from tools import convert_fp16_to_bf16
from transforms import model_io
from transforms.conversion.standard_form import standardize
from transforms.convert_opset import convert_opset
from transforms.fuse_gelu import find_gelu, fuse_gelu
from transforms.fuse_hardswish import fuse_hardswish
from transforms.fuse_layernorm import find_layernorm, fuse_layernorm
from transforms.graph.selection import Selection, select
from transforms.model.read_model import ModelError
from transforms.optimize import optimize

WIDTH = 8


def decomposed(dtype: type[np.floating] = np.float32) -> onnx.ModelProto:
    """Return LayerNorm, GELU and HardSwish as exporters take them apart, one after the other."""
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["x"], ["mean"], "mean", axes=[-1]),
        node("Sub", ["x", "mean"], ["centred"], "centre"),
        node("Pow", ["centred", "two"], ["square"], "square"),
        node("ReduceMean", ["square"], ["variance"], "variance", axes=[-1]),
        node("Add", ["variance", "epsilon"], ["positive"], "positive"),
        node("Sqrt", ["positive"], ["deviation"], "deviation"),
        node("Div", ["centred", "deviation"], ["normal"], "normal"),
        node("Div", ["normal", "root2"], ["scaled"], "scaled"),
        node("Erf", ["scaled"], ["erf"], "erf"),
        node("Add", ["erf", "one"], ["shifted"], "shifted"),
        node("Mul", ["normal", "shifted"], ["twice"], "twice"),
        node("Mul", ["twice", "half"], ["gelu"], "gelu"),
        node("HardSigmoid", ["gelu"], ["gate"], "gate", alpha=1 / 6, beta=0.5),
        node("Mul", ["gelu", "gate"], ["y"], "gated"),
    ]
    numbers = {"two": 2, "epsilon": 1e-5, "root2": 2**0.5, "one": 1, "half": 0.5}
    weights = {name: np.array(number, dtype) for name, number in numbers.items()}
    ends = [build.value(name, ["rows", WIDTH], dtype) for name in ("x", "y")]
    return build.model(nodes, ends[:1], ends[1:], weights, opset=17)


def load(opset: int = 20) -> gs.Graph:
    graph = model_io.load(decomposed())
    convert_opset(graph, opset)
    return graph


FUSIONS: list[tuple[Callable[..., int], list[str]]] = [
    (fuse_layernorm, ["centre", "square", "deviation", "normal"]),
    (fuse_gelu, ["scaled", "erf", "twice", "gelu"]),
    (fuse_hardswish, ["gate", "gated"]),
]


@pytest.mark.parametrize("fuse", [fuse for fuse, _ in FUSIONS])
def test_without_exclusion_all_fuse(fuse: Callable[..., int]) -> None:
    assert fuse(load(), exclude=Selection()) == 1


@pytest.mark.parametrize(("fuse", "name"), [(fuse, name) for fuse, names in FUSIONS for name in names])
def test_an_excluded_node_keeps_the_pattern_apart(fuse: Callable[..., int], name: str) -> None:
    graph = load()
    assert fuse(graph, exclude=select(graph, names=[name])) == 0
    assert name in {node.name for node in graph.nodes}


def test_counting_knows_exclusion_too() -> None:
    graph = load(17)
    assert (find_layernorm(graph), find_gelu(graph)) == (1, 1)
    assert find_layernorm(graph, exclude=select(graph, op_types=["Sqrt"])) == 0
    assert find_gelu(graph, exclude=select(graph, op_types=["Erf"])) == 0


@pytest.mark.parametrize("name", ["centre", "square", "deviation", "erf", "gate"])
def test_the_optimizer_keeps_what_an_excluded_node_makes(name: str) -> None:
    graph = load()
    (tensor,) = [node.outputs[0].name for node in graph.nodes if node.name == name]
    optimize(graph, exclude=select(graph, names=[name]))
    assert tensor in {output.name for node in graph.nodes for output in node.outputs}
    assert [output.name for output in graph.outputs] == ["y"]


@pytest.mark.parametrize("name", ["centre", "deviation", "erf", "gate"])
def test_the_tool_keeps_it_in_float(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    converted = conversion.convert(decomposed(), tmp_path, "--exclude-node", name)
    assert name in {node.name for node in converted.graph.node}
    assert "1 excluded by option" in capsys.readouterr().out


def test_scan_of_opset_8_is_refused() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["u"])],
        "body",
        [build.value("s", [2]), build.value("e", [2])],
        [build.value("t", [2]), build.value("u", [2])],
    )
    scan = helper.make_node("Scan", ["", "start", "x"], ["last", "y"], "scan", num_scan_inputs=1, body=body)
    ends = [build.value("start", [1, 2]), build.value("x", [1, 3, 2])]
    graph = helper.make_graph(
        [scan], "graph", ends, [build.value("last", [1, 2]), build.value("y", [1, 3, 2])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=7)
    with pytest.raises(ModelError, match="Scan of opset 8"):
        convert_opset(model_io.load(model), 13)


def test_float16_constants_are_known_for_what_they_are(tmp_path: Path) -> None:
    """1 / sqrt(2) in float16 is off by 1e-4, which in float32 would be another function."""
    source = build.save(decomposed(np.float16), tmp_path / "in.onnx")
    target = tmp_path / "out.onnx"
    assert convert_fp16_to_bf16.main(["--input", str(source), "--output", str(target)]) == 0
    found = [node.op_type for node in onnx.load(target).graph.node if node.op_type != "Cast"]
    assert found == ["LayerNormalization", "Gelu", "HardSwish"]


@pytest.mark.parametrize(
    ("op", "names"),
    (
        ("LayerNormalization", ("mean", "centre", "square", "variance", "positive", "deviation", "normal")),
        ("Gelu", ("scaled", "erf", "shifted", "twice", "gelu")),
        ("HardSwish", ("gate", "gated")),
    ),
)
def test_a_pattern_that_is_excluded_whole_is_one_node_in_float(
    op: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    """Nothing of it is rounded on the way: the fused node reads and makes float32, as its parts would."""
    excluded = [option for name in names for option in ("--exclude-node", name)]
    converted = conversion.convert(decomposed(), tmp_path, *excluded)
    fused = [node for node in converted.graph.node if node.op_type == op]
    assert len(fused) == 1
    graph = model_io.load(decomposed())
    exclude = select(graph, names=names)
    standardize(graph, exclude)
    assert [node.op for node in graph.nodes if node in exclude.resolve_in(graph)] == [op]
