"""Oracle: ONNX Runtime itself on the float model, and NumPy with ml_dtypes' rounding."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from transforms.model import graph_proto
from transforms.run.run_model import open_model
from transforms.runtime.inputs import ModelInput, check_feed
from transforms.runtime.session import RunOptions, provider_name, session_settings

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


def add_model(kind: int, *, opset: int = 17) -> onnx.ModelProto:
    """y = x + x with a free first dimension."""
    ends = [helper.make_tensor_value_info(name, kind, ["n", 3]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"], name="twice")], "g", ends[:1], ends[1:]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def test_float_model_runs_as_it_is(tmp_path: Path) -> None:
    model = open_model(saved(add_model(TensorProto.FLOAT), tmp_path))
    assert model.widened == 0 and np.array_equal(model.run({"x": X})["y"], 2 * X)
    assert model.inputs == (ModelInput("x", np.dtype(np.float32), (None, 3)),)


def test_bfloat16_model_runs_and_says_so(tmp_path: Path) -> None:
    path = saved(add_model(TensorProto.BFLOAT16), tmp_path)
    before = path.read_bytes()
    model = open_model(path)
    rounded = X.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert model.widened == 3 and np.array_equal(model.run({"x": X})["y"], 2 * rounded)
    assert path.read_bytes() == before


def test_bfloat16_interface_alone_is_widened(tmp_path: Path) -> None:
    """Identity has a bfloat16 kernel, so the session opens; its ends cannot be fed from NumPy."""
    model = add_model(TensorProto.BFLOAT16)
    model.graph.node[0].CopyFrom(helper.make_node("Identity", ["x"], ["y"]))
    opened = open_model(saved(model, tmp_path))
    assert opened.widened == 2 and opened.run({"x": np.ones((1, 3), np.float32)})["y"].dtype == np.float32


@pytest.mark.parametrize(
    ("op", "attributes", "kind"),
    [
        ("RandomNormalLike", {"scale": 1e-12, "mean": 2.0}, TensorProto.BFLOAT16),
        (
            "RandomNormalLike",
            {"scale": 1e-12, "mean": 2.0, "dtype": TensorProto.BFLOAT16},
            TensorProto.BFLOAT16,
        ),
        ("RandomUniformLike", {"low": 2.0, "high": 2.0, "dtype": TensorProto.FLOAT}, TensorProto.FLOAT),
        ("RandomUniformLike", {"low": 2.0, "high": 2.0}, TensorProto.BFLOAT16),
        (
            "RandomNormal",
            {"scale": 1e-12, "mean": 2.0, "shape": [2, 3], "dtype": TensorProto.BFLOAT16},
            TensorProto.BFLOAT16,
        ),
        (
            "RandomUniform",
            {"low": 2.0, "high": 2.0, "shape": [2, 3], "dtype": TensorProto.BFLOAT16},
            TensorProto.BFLOAT16,
        ),
        ("Bernoulli", {}, TensorProto.BFLOAT16),
        ("Bernoulli", {"dtype": TensorProto.BFLOAT16}, TensorProto.BFLOAT16),
        ("Bernoulli", {"dtype": TensorProto.FLOAT}, TensorProto.FLOAT),
        ("Multinomial", {"sample_size": 3}, TensorProto.INT32),
        ("EyeLike", {"dtype": TensorProto.BFLOAT16}, TensorProto.BFLOAT16),
    ],
)
def test_bfloat16_models_that_draw_random_numbers(
    op: str, attributes: dict[str, object], kind: int, tmp_path: Path
) -> None:
    """Of these ONNX Runtime has kernels for definitions before opset 22. Oracle: draws without any chance;
    onnx's function of Bernoulli makes 1 where a draw is above the probability."""
    inputs = [] if op in ("RandomNormal", "RandomUniform") else ["x"]
    nodes = [helper.make_node(op, inputs, ["r"], name="random", **attributes)]
    if kind != TensorProto.BFLOAT16:
        nodes.append(helper.make_node("Cast", ["r"], ["b"], to=TensorProto.BFLOAT16))
    nodes.append(helper.make_node("Add", ["x", "b" if len(nodes) > 1 else "r"], ["y"], name="both"))
    model = add_model(TensorProto.BFLOAT16, opset=22)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    ones = np.ones((2, 3), np.float32)
    drawn = {"Bernoulli": 0 * ones, "Multinomial": 2 * ones, "EyeLike": np.eye(2, 3)}.get(op, 2 * ones)
    x = np.where([False, False, True], 100, -100 * ones).astype(np.float32) if op == "Multinomial" else ones
    opened = open_model(saved(model, tmp_path))
    assert opened.widened and np.array_equal(opened.run({"x": x})["y"], x + drawn)


def test_newer_operators_beside_random_numbers_are_no_reason_to_change_a_meaning(tmp_path: Path) -> None:
    model = add_model(TensorProto.BFLOAT16, opset=24)
    del model.graph.node[:]
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"], name="random")]
    nodes.append(helper.make_node("RMSNormalization", ["r", "s"], ["y"], name="norm"))
    model.graph.node.extend(nodes)
    scale = helper.make_tensor("s", TensorProto.BFLOAT16, [3], [1.0, 1.0, 1.0])
    model.graph.initializer.append(scale)
    with pytest.raises(ValueError, match=r"cannot run the model: .*RandomNormalLike\(22\) node"):
        open_model(saved(model, tmp_path))


def test_graph_in_memory() -> None:
    model = open_model(
        graph_proto.import_model(add_model(TensorProto.FLOAT)), RunOptions(threads=1, optimize=False)
    )
    assert np.array_equal(model.run({"x": X}, ["y"])["y"], 2 * X)


@pytest.mark.parametrize("domain", ["ai.onnx.contrib", "com.amd.quark"])
def test_our_operators_are_registered(domain: str, tmp_path: Path) -> None:
    model = add_model(TensorProto.FLOAT)
    del model.graph.node[:]
    names = ["x", "scale", "zero"]
    model.graph.node.append(helper.make_node("ExtendedQuantizeLinear", names, ["q"], domain=domain))
    names[0] = "q"
    model.graph.node.append(helper.make_node("ExtendedDequantizeLinear", names, ["y"], domain=domain))
    scale = onnx.numpy_helper.from_array(np.float32(0.5), "scale")
    zero = onnx.numpy_helper.from_array(np.int8(0), "zero")
    model.graph.initializer.extend([scale, zero])
    model.opset_import.append(helper.make_opsetid(domain, 1))
    assert np.array_equal(open_model(saved(model, tmp_path)).run({"x": X})["y"], np.rint(X * 2) / 2)


@pytest.mark.parametrize("content", [b"", b"no model at all"])
def test_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"ONNX Runtime refuses the model"):
        open_model(path)


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_model(tmp_path / "none.onnx")


def test_unknown_operator(tmp_path: Path) -> None:
    model = add_model(TensorProto.FLOAT)
    model.graph.node[0].domain = "somebody.else"
    model.opset_import.append(helper.make_opsetid("somebody.else", 1))
    with pytest.raises(ValueError, match=r"somebody\.else"):
        open_model(saved(model, tmp_path))


def test_kernel_that_is_missing_for_other_reasons(tmp_path: Path) -> None:
    """ONNX Runtime has no Selu of double: nothing that widening could help."""
    model = add_model(TensorProto.DOUBLE)
    model.graph.node[0].CopyFrom(helper.make_node("Selu", ["x"], ["y"]))
    with pytest.raises(ValueError, match=r"CPUExecutionProvider cannot run the model: .*Selu"):
        open_model(saved(model, tmp_path))


@pytest.mark.parametrize("name", ["cpu", "CPU", "CPUExecutionProvider"])
def test_provider_names(name: str) -> None:
    assert provider_name(name) == "CPUExecutionProvider"


def test_provider_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"provider 'tpu' is not one of .*CPUExecutionProvider"):
        open_model(saved(add_model(TensorProto.FLOAT), tmp_path), RunOptions(provider="tpu"))


INPUTS = (
    ModelInput("ids", np.dtype(np.int64), (1, None)),
    ModelInput("x", np.dtype(np.float32), (None, 3)),
)
GOOD = {"ids": np.zeros((1, 5), np.int64), "x": X}


def test_a_good_feed_passes() -> None:
    assert check_feed(INPUTS, GOOD, "s") is None
    assert check_feed(INPUTS, GOOD | {"x": X.astype(">f4")}, "s") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": X}, "sample 's.npz': 'y' is not an input of the model, which has 'ids', 'x'"),
        ({"x": X.astype(np.float64)}, "sample 's.npz', input 'x': type float64 instead of float32"),
        ({"ids": np.zeros((1, 5), np.int32)}, "sample 's.npz', input 'ids': type int32 instead of int64"),
        ({"x": X[0]}, "sample 's.npz', input 'x': shape [3] instead of [?, 3]"),
        ({"x": X[:, :2]}, "sample 's.npz', input 'x': shape [2, 2] instead of [?, 3]"),
    ],
)
def test_a_wrong_feed_names_sample_and_input(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_feed(INPUTS, GOOD | change, "s.npz")
    assert str(caught.value) == message


def test_a_missing_input() -> None:
    with pytest.raises(ValueError, match="no array for input 'x', only for 'ids'"):
        check_feed(INPUTS, {"ids": GOOD["ids"]}, "s.npz")


def test_weights_are_not_packed_where_that_is_asked_for() -> None:
    """Oracle: the runtime's own record of its settings, which has no entry that nobody has set."""
    entry = "session.disable_prepacking"
    assert session_settings(RunOptions(prepack=False)).get_session_config_entry(entry) == "1"
    with pytest.raises(RuntimeError, match=entry):
        session_settings(RunOptions()).get_session_config_entry(entry)
