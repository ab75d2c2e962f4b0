"""What is said of CUDA, seen on a CUDA device. Oracles: the processor, float64, ml_dtypes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.helpers import build, tunable
from tools import convert_fp32_to_bf16, finetune, inspect, quantize
from transforms.runtime import devices
from transforms.runtime.session import RunOptions, open_session, session_settings, why_not_on

CUDA = "CUDAExecutionProvider"
ON_CUDA = RunOptions("cuda:0")
NETS = {"conv": tunable.conv_net(), "matmul": tunable.matmul_net()}


@cache
def _why_no_device() -> str:
    try:
        devices.provider(devices.CUDA)
        open_session_of(tunable.matmul_net(), ON_CUDA)
    except ValueError as error:
        return str(error)
    return ""


def open_session_of(model: onnx.ModelProto, options: RunOptions) -> Any:
    import onnx_graphsurgeon as gs

    return open_session(gs.import_onnx(model), options)


@pytest.fixture(autouse=True)
def _device() -> None:
    if _why_no_device():
        pytest.skip(_why_no_device())


def _sqnr(reference: np.ndarray, made: np.ndarray) -> float:
    error = np.square(reference.astype(np.float64) - made).sum()
    return float(10 * np.log10(np.square(reference.astype(np.float64)).sum() / max(error, 1e-300)))


def _outputs(path: Path, options: RunOptions, feeds: list[dict[str, np.ndarray]]) -> np.ndarray:
    model = open_session(path, options)
    return np.concatenate([model.run(feed)[model.outputs[0]].reshape(-1) for feed in feeds])


def _one(op: str, shape: list[int], weight: np.ndarray, **attributes: Any) -> onnx.ModelProto:
    nodes = [helper.make_node(op, ["x", "w"], ["y"], **attributes)]
    ends = build.value("x", shape), build.value("y", [f"d{i}" for i in range(len(shape))])
    return build.model(nodes, [ends[0]], [ends[1]], {"w": weight})


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_products_of_float32_are_not_tf32(op: str) -> None:
    """TF32 rounds both factors to 11 bits: an error of 3e-4; float32 with sums of 1,024 is below 4e-6."""
    random = np.random.default_rng(0)
    x = random.standard_normal((256, 1024)).astype(np.float32)
    w = random.standard_normal((1024, 64)).astype(np.float32)
    wanted = x.astype(np.float64) @ w
    if op == "Conv":
        x, w = x.reshape(256, 1024, 1, 1), np.ascontiguousarray(w.T).reshape(64, 1024, 1, 1)
    made = open_session_of(_one(op, list(x.shape), w), ON_CUDA).run({"x": x})["y"].reshape(wanted.shape)
    assert np.linalg.norm(made - wanted) < 4e-6 * np.linalg.norm(wanted)


def test_casts_round_as_everywhere() -> None:
    """Every upper half of a float32 with lower halves around ties."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    x = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | low).reshape(-1).view(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    model = build.model(nodes, [build.value("x", ["n"])], [build.value("y", ["n"])], {})
    made = open_session_of(model, RunOptions("cuda:0", optimize=False)).run({"x": x})["y"]
    with np.errstate(invalid="ignore"):
        wanted = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    numbers = ~np.isnan(wanted)
    assert (made.view(np.uint32) == wanted.view(np.uint32))[numbers].all() and np.isnan(made[~numbers]).all()


@pytest.mark.parametrize("preset", ["A8W8", "U8S8", "A16W8", "W8", "W4", "BF16", "MX9", "MXINT8", "BFP16"])
@pytest.mark.parametrize("net", NETS)
def test_presets_compute_on_cuda_what_they_do_on_the_processor(net: str, preset: str, tmp_path: Path) -> None:
    """Our operators run on the processor inside; a code on a tie of the grid may fall the other way."""
    feeds = tunable.samples(NETS[net], 6)
    for i, feed in enumerate(feeds):
        (tmp_path / "data").mkdir(exist_ok=True)
        np.savez(tmp_path / "data" / f"{i}.npz", **feed)
    onnx.save(NETS[net], tmp_path / "m.onnx")
    data = ["--data", str(tmp_path / "data"), "--fast"] if preset[0] in "AU" else []
    paths = ["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "q.onnx")]
    assert quantize.main([*paths, "--config", preset, *data]) == 0
    wanted, made = (
        _outputs(tmp_path / "q.onnx", RunOptions(name, simulate=True), feeds) for name in ("cpu", "cuda:0")
    )
    assert _sqnr(wanted, made) > 40


@pytest.mark.parametrize("net", NETS)
def test_a_model_for_ort_cuda_runs_there_alone(net: str, tmp_path: Path, capsys: Any) -> None:
    """Oracle: a session that refuses nodes on the processor. 8 bits of mantissa in 10 nodes: above 30 dB."""
    onnx.save(NETS[net], tmp_path / "m.onnx")
    paths = ["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "b.onnx")]
    assert convert_fp32_to_bf16.main([*paths, "--target", "ort-cuda"]) == 0
    settings = session_settings(RunOptions(optimize=False))
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    ort.InferenceSession(str(tmp_path / "b.onnx"), settings, providers=[CUDA], enable_fallback=0)
    feeds = tunable.samples(NETS[net], 6)
    wanted, made = (_outputs(tmp_path / name, ON_CUDA, feeds) for name in ("m.onnx", "b.onnx"))
    assert _sqnr(wanted, made) > 30
    capsys.readouterr()
    assert inspect.main(["--input", str(tmp_path / "b.onnx")]) == 0
    assert "Runs on ONNX Runtime CUDA: yes" in capsys.readouterr().out


def test_weights_of_8_bits_in_blocks_have_no_kernel() -> None:
    """What the row of the target says: int4 in blocks runs, int8 does not."""
    for kind, runs in ((TensorProto.INT4, True), (TensorProto.INT8, False)):
        nodes = [
            helper.make_node("DequantizeLinear", ["q", "s"], ["d"], axis=1, block_size=4),
            helper.make_node("Add", ["x", "d"], ["y"]),
        ]
        inits = [
            helper.make_tensor("q", kind, [4, 8], [1] * 32),
            helper.make_tensor("s", 1, [4, 2], [1.0] * 8),
        ]
        ends = [build.value("x", [4, 8])], [build.value("y", [4, 8])]
        graph = helper.make_graph(nodes, "g", *ends, inits)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        session = ort.InferenceSession(
            model.SerializeToString(), session_settings(RunOptions()), providers=[CUDA], enable_fallback=0
        )
        feed = {"x": np.zeros((4, 8), np.float32)}
        if runs:
            assert (session.run(None, feed)[0] == 1).all()
        else:
            with pytest.raises(Exception, match="Unsupported quantization type"):
                session.run(None, feed)


def test_a_model_is_tuned_on_the_device(tmp_path: Path, capsys: Any) -> None:
    """Oracle: the model that is tuned on the processor: sums of float64 differ in their last bits."""
    pytest.importorskip("cupy")
    feeds = tunable.samples(NETS["conv"], 8)
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(feeds):
        np.savez(tmp_path / "data" / f"{i}.npz", **feed)
    onnx.save(NETS["conv"], tmp_path / "m.onnx")
    data = ["--data", str(tmp_path / "data")]
    paths = ["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "q.onnx")]
    assert quantize.main([*paths, "--config", "A8W8", "--fast", *data]) == 0
    paths = ["--float", str(tmp_path / "m.onnx"), "--quantized", str(tmp_path / "q.onnx"), *data]
    places = {"cpu": [], "optim": ["--optim-device", "cuda:0"], "both": ["--infer-device", "cuda:0"]}
    places["both"] += places["optim"]
    found = {}
    for name, options in places.items():
        assert finetune.main([*paths, "--output", str(tmp_path / f"{name}.onnx"), *options]) == 0
        made = _outputs(tmp_path / f"{name}.onnx", RunOptions(simulate=True), feeds)
        found[name] = _sqnr(_outputs(tmp_path / "m.onnx", RunOptions(), feeds), made)
    assert abs(found["optim"] - found["cpu"]) < 0.5 and abs(found["both"] - found["cpu"]) < 1.5


def test_opening_on_cuda_says_yes() -> None:
    assert why_not_on(CUDA, NETS["conv"]) is None
