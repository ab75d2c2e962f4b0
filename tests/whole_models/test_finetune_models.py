"""Fine-tuning real models wins back accuracy, and never loses any. Marked ``heavy``: minutes.

Oracle of the gains: what an experiment in NumPy reached on these models (64 samples, round to nearest on the
largest weight against the best recipe), less 1 dB. As there, products with a constant have rounded operands
and nothing else is rounded; of classifiers the outputs in front of the last Softmax are compared, of texts
the rows of tokens, without padding. (Rounded to nearest, models have the SNR of the experiment to 0.1 dB.)

What never gets worse is measured on models as presets make them, on all of their outputs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import quantized_models, real_models
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.float_reference import float_reference
from transforms.finetune.finetune_model import finetune_model
from transforms.graph import dot_products
from transforms.graph.constants import Constants
from transforms.judge.constants import MAY_LOSE
from transforms.judge.errors import jackknife
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import Scheme, preset

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
_PARTS = 8
WITHOUT_LAYERS = ("silero_vad",)  # all of it is in bodies of If
FLOORS = {"W4A8": (Scheme("int8", "int4", per_channel=True, **PLAIN), (20, 35, 9, 10))}


NEVER_WORSE = {
    "A8W8": preset("A8W8"),
    "MX6": Scheme("mx6", "mx6"),
    "MXFP4": Scheme("mxfp4", "mxfp4"),
    "BFP16": Scheme("bfp16", "bfp16"),
}


def tuned(name: str, scheme: Scheme, folder: Path) -> list[Path]:
    """Write a real model rounded to nearest, and tuned; return both files."""
    source = real_models.MODELS / name / "model.onnx"
    feeds = quantized_models.calibration_feeds(name)
    graph = model_io.load(source)
    quantize_graph(graph, scheme, CalibrationData(feeds))
    files = [folder / "rounded.onnx", folder / "tuned.onnx"]
    model_io.save(graph, files[0], metadata={"onnx_narrow.scheme": scheme.to_toml()})
    rounded = model_io.load(files[0])
    done = finetune_model(float_reference(lambda: model_io.load(source), rounded), rounded, feeds)
    model_io.save(done.graph, files[1])
    return files


def gain(name: str, scheme: Scheme, folder: Path) -> tuple[float, float]:
    """Return the SNR of a model in dB, rounded to nearest and tuned, as the experiment had it."""
    graph = model_io.load(real_models.MODELS / name / "model.onnx")
    computed = tuple(node.name for node in graph.nodes if _multiplies_computed(node))
    operators = tuple(sorted({node.op for node in graph.nodes} & set(dot_products.DOT_PRODUCTS)))
    outputs = {tensor.name: "float32" for tensor in graph.outputs}
    changes = {"op_types": operators, "exclude_nodes": computed, "tensors": outputs, "fit_weights": False}
    scheme = scheme.with_(**changes)
    before, after = (snr_db(name, file) for file in tuned(name, scheme, folder))
    return before, after


def _multiplies_computed(node: gs.Node) -> bool:
    constants = Constants(gs.Graph())
    return node.op == "MatMul" and all(constants.values(tensor) is None for tensor in node.inputs)


def snr_db(name: str, model: Path) -> float:
    """Return the SNR on the evaluation data, in front of the last Softmax, of tokens."""
    files = [real_models.MODELS / name / "model.onnx", model]
    outputs = [real_models.all_outputs(_without_softmax(file, model.parent), name) for file in files]
    first, second = (next(iter(found.values())) for found in outputs)
    feeds = real_models.task(name).feeds
    if "attention_mask" in feeds[0]:
        tokens = np.concatenate([feed["attention_mask"] for feed in feeds]) == 1
        first, second = first[tokens], second[tokens]
    return float(real_models.score_module().snr(first, second))


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
    before, after = gain(name, scheme, tmp_path)
    print(f"{name:18} {case:18} {before:6.2f} -> {after:6.2f} dB  {after - before:+6.2f} of {wanted:+.1f}")
    assert after - before >= max(wanted - 1, 0)


@pytest.mark.parametrize("name", MODELS)
def test_four_bit_weights_reach_their_floor(name: str, tmp_path: Path) -> None:
    scheme, floors = FLOORS["W4A8"]
    before, after = gain(name, scheme, tmp_path)
    print(f"{name:18} {'W4A8':18} {before:6.2f} -> {after:6.2f} dB of {floors[MODELS.index(name)]}")
    assert after >= floors[MODELS.index(name)]


@pytest.mark.parametrize("name", [name for name in real_models.NAMES if name not in WITHOUT_LAYERS])
@pytest.mark.parametrize("case", NEVER_WORSE)
def test_no_model_gets_worse(case: str, name: str, tmp_path: Path) -> None:
    files = tuned(name, NEVER_WORSE[case], tmp_path)
    baseline = real_models.all_outputs(real_models.MODELS / name / "model.onnx", name)
    outputs = [real_models.all_outputs(file, name) for file in files]
    before, after = (real_models.snr_db(name, baseline, found) for found in outputs)
    error = _standard_error(name, baseline, *outputs)
    print(f"{name:18} {case:18} {before:6.2f} -> {after:6.2f} dB  {after - before:+6.2f} +- {error:.2f}")
    assert after >= before - max(MAY_LOSE, 2 * error)


def _standard_error(name: str, *outputs: real_models.Outputs) -> float:
    """Return the standard error of the gain in dB, by leaving out an eighth of the data in turn.

    A few of the data may make nearly all of the error.
    """
    gains = []
    for part in range(_PARTS):
        rest = [
            {
                key: np.delete(array, np.array_split(np.arange(len(array)), _PARTS)[part], axis=0)
                for key, array in found.items()
            }
            for found in outputs
        ]
        before, after = (real_models.snr_db(name, rest[0], found) for found in rest[1:])
        gains.append(after - before)
    return jackknife(gains)
