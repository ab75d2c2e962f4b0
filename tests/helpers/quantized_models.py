"""What quantized real models have to reach: figures of other tools on the same data, or of the task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from tests.helpers import real_models
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.runtime.session import why_not_on_cpu
from transforms.scheme import preset

SAMPLES = 64  # for calibration
MARGIN = 0.5  # dB that a figure of the reference may be missed by

TASK = {
    "resnet8_cifar10": "top1",
    "mobilenet_v1_025": "top1",
    "magika_v3_3": "top1",
    "minilm_l6_op13": "retrieval_top1",
    "superres_zoo": "psnr_hires",
    "vittrack": "within2",
    "ppocrv3_det_en": "text_iou",
    "yolox_nano_ext": "det_f1",
    "mnist_cntk": "top1",
}
"""The name of each model's own metric; more is better."""

Bars = dict[str, tuple[float, float]]  # least SNR in dB and least metric, by preset; 0 where none is asked

BARS: dict[str, Bars] = {
    "resnet8_cifar10": {
        "A8W8": (16.6, 0.76), "A16W8": (18.1, 0.755),
        "BFP16": (22.8, 0), "MX9": (25.2, 0), "MXINT8": (21.5, 0),
    },
    "mobilenet_v1_025": {
        "A8W8": (-0.6, 0), "A16W8": (-0.6, 0),
        "BFP16": (6.9, 0.56), "MX9": (7.8, 0.57), "MXINT8": (5.1, 0.492),
    },
    "magika_v3_3": {
        "A8W8": (0, 0.96), "A16W8": (22.6, 0.96),
        "BFP16": (0, 0.96), "MX9": (0, 0.96), "MXINT8": (0, 0.96),
    },
    "minilm_l6_op13": {
        "A8W8": (0, 0.95), "A16W8": (25, 1), "BFP16": (25, 1), "MX9": (25, 1), "MXINT8": (25, 1),
    },
    "superres_zoo": {
        "A8W8": (30.0, 27.56), "A16W8": (29.6, 27.72),
        "BFP16": (39.6, 28.4), "MX9": (40.1, 28.59), "MXINT8": (34.6, 28.06),
    },
    "vittrack": {
        "A8W8": (16.6, 0.93), "A16W8": (30.2, 1), "BFP16": (29.3, 1), "MX9": (31.0, 1), "MXINT8": (30.0, 1),
    },
    "ppocrv3_det_en": {
        "A8W8": (2.8, 0.8), "A16W8": (3.2, 0.97),
        "BFP16": (16.9, 0.97), "MX9": (18.1, 0.97), "MXINT8": (14.0, 0.97),
    },
    "yolox_nano_ext": {
        "A8W8": (3.8, 0.4), "A16W8": (4.1, 0.95), "U8S8": (0, 0.63),
        "BFP16": (7.7, 0.95), "MX9": (8.3, 0.95), "MXINT8": (6.0, 0.95),
    },
    "mnist_cntk": {
        "A8W8": (34.8, 0.979), "A16W8": (37.1, 0.979),
        "BFP16": (38.9, 0.979), "MX9": (41.0, 0.979), "MXINT8": (37.7, 0.979),
    },
}  # fmt: skip
"""The reference's figures less the margin, and where it fails, what the task needs."""

PER_CHANNEL: dict[str, Bars] = {
    "resnet8_cifar10": {"A8W8": (17.6, 0), "A16W8": (28.2, 0), "U8S8": (23.2, 0)},
    "mobilenet_v1_025": {"A8W8": (9.7, 0.58), "A16W8": (11.7, 0.61)},
    "magika_v3_3": {"A8W8": (0, 0.96), "A16W8": (25.9, 0.96)},
    "minilm_l6_op13": {"A8W8": (0, 0.95), "A16W8": (25, 1)},
    "superres_zoo": {"A8W8": (25.0, 0), "A16W8": (25.2, 0)},
    "vittrack": {"A8W8": (17.1, 0), "A16W8": (36.0, 1)},
    "yolox_nano_ext": {"A8W8": (0, 0.4), "A16W8": (15.1, 1)},
}
"""Figures of ``onnxruntime.quantization.quantize_static`` with a scale per channel, and of the task.

Less 0.1 dB where the two are equal but for that.
"""


@dataclass(frozen=True)
class Figures:
    """What a quantized model reaches."""

    snr: float
    metric: float
    finite: bool


def quantize(name: str, config: str, target: Path, **changes: object) -> None:
    """Quantize a real model with a preset and changes of it, as the tool does, on its calibration samples."""
    graph = model_io.load(real_models.MODELS / name / "model.onnx")
    scheme = preset(config).with_(**changes)
    quantize_graph(graph, scheme, CalibrationData(calibration_feeds(name)))
    model_io.save(graph, target)  # runs the full checker
    assert why_not_on_cpu(*model_io.export(graph)) is None


def measure(name: str, model: Path) -> Figures:
    """Run a quantized model on the evaluation data."""
    baseline, outputs = _baseline(name), real_models.all_outputs(model, name)
    finite = all(np.isfinite(array).all() for array in outputs.values() if array.dtype.kind == "f")
    metric = real_models.metrics(name, baseline, outputs)[TASK[name]]
    return Figures(real_models.snr_db(name, baseline, outputs), metric, finite)


def calibration_feeds(name: str) -> list[dict[str, np.ndarray]]:
    """Return at most 64 calibration samples, evenly taken."""
    found: list[dict[str, np.ndarray]] = real_models.task(name).calib
    places = np.linspace(0, len(found) - 1, min(SAMPLES, len(found)))
    return [found[int(place)] for place in places]


@lru_cache(maxsize=1)
def _baseline(name: str) -> real_models.Outputs:
    return real_models.all_outputs(real_models.MODELS / name / "model.onnx", name)
