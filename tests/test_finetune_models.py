"""Fine-tuning real models wins back accuracy, and never loses any. Marked ``heavy``: minutes.

Oracle: the gains in SNR of the outputs that an experiment in NumPy reached on these models (64 samples, round
to nearest on the largest weight against the best recipe), less 1 dB. As there, operands of dot products are
quantized and outputs of the model are not, and of classifiers the outputs in front of the last Softmax are
compared.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests import quantized_models, real_models
from transforms import model_io
from transforms.calibrate_plan import CalibrationData
from transforms.finetune_model import finetune_model
from transforms.float_twin import float_twin
from transforms.quantize_graph import quantize_graph
from transforms.scheme import Scheme

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not real_models.NAMES, reason="the real models are not there"),
]

MODELS = ("resnet8_cifar10", "superres_zoo", "mobilenet_v1_025", "minilm_l6_op13")
PLAIN = {"weight_method": "MinMax"}
GAINS = {
    "A8W8 per tensor": (Scheme("int8", "int8", **PLAIN), (5.6, 22, 11, 0.4)),
    "A8W8 per channel": (Scheme("int8", "int8", per_channel=True, **PLAIN), (1.5, 16, 7, 0.5)),
    "MX6": (Scheme("mx6", "mx6"), (6, 14, 6, 1.2)),
    "BFP16": (Scheme("bfp16", "bfp16"), (3.5, 10, 6, 1.4)),
    "BF16": (Scheme("bfloat16", "bfloat16", other="float32"), (8, 6, 8, 0.4)),
    "MXFP4": (Scheme("mxfp4", "mxfp4"), (4, 10, 2.6, 0.7)),
}
FLOORS = {"W4A8": (Scheme("int8", "int4", per_channel=True, **PLAIN), (20, 35, 9, 10))}


def tuned(name: str, scheme: Scheme, folder: Path) -> tuple[float, float]:
    """Return the SNR of a real model in dB, rounded to nearest and tuned."""
    source = real_models.MODELS / name / "model.onnx"
    feeds = quantized_models.calibration_feeds(name)
    graph = model_io.load(source)
    scheme = scheme.with_(tensors={tensor.name: "float32" for tensor in graph.outputs})
    quantize_graph(graph, scheme, CalibrationData(feeds))
    model_io.save(graph, folder / "rounded.onnx", metadata={"onnx_narrow.scheme": scheme.to_toml()})
    rounded = model_io.load(folder / "rounded.onnx")
    done = finetune_model(float_twin(lambda: model_io.load(source), rounded), rounded, feeds)
    model_io.save(done.graph, folder / "tuned.onnx")
    return snr_db(name, folder / "rounded.onnx"), snr_db(name, folder / "tuned.onnx")


def snr_db(name: str, model: Path) -> float:
    """Return the SNR on the evaluation data, in front of the last Softmax."""
    files = [real_models.MODELS / name / "model.onnx", model]
    outputs = [real_models.all_outputs(_without_softmax(file, model.parent), name) for file in files]
    first, second = (next(iter(found.values())) for found in outputs)
    score = real_models.score_module()
    return float(score.snr(first, second))


def _without_softmax(file: Path, folder: Path) -> Path:
    model = onnx.load(file)
    maker = {output: node for node in model.graph.node for output in node.output}
    last = maker[model.graph.output[0].name]
    while last.op_type in ("Reshape", "Flatten", "Cast") or last.op_type.lower().endswith("quantizelinear"):
        last = maker[last.input[0]]
    if last.op_type != "Softmax":
        return file
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(last.input[0], 1, None))
    target = folder / f"cut_{file.stem}.onnx"
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", GAINS)
def test_gain_over_rounding_to_nearest(case: str, name: str, tmp_path: Path) -> None:
    scheme, gains = GAINS[case]
    wanted = gains[MODELS.index(name)]
    before, after = tuned(name, scheme, tmp_path)
    print(f"{name:18} {case:18} {before:6.2f} -> {after:6.2f} dB  {after - before:+6.2f} of {wanted:+.1f}")
    assert after - before >= max(wanted - 1, 0)


@pytest.mark.parametrize("name", MODELS)
def test_four_bit_weights_reach_their_floor(name: str, tmp_path: Path) -> None:
    scheme, floors = FLOORS["W4A8"]
    before, after = tuned(name, scheme, tmp_path)
    print(f"{name:18} {'W4A8':18} {before:6.2f} -> {after:6.2f} dB of {floors[MODELS.index(name)]}")
    assert after >= floors[MODELS.index(name)]
