"""Mixed precision on real models keeps to its target in fewer bits than a plain search takes. Marked heavy.

Oracles: outputs of the written model, run anew; a search that moves the least harmful layers one by one and
stops at the first that breaks the target; sensitivities measured on all samples, whose ranking those on the
few that are taken have to agree with (Spearman's correlation).
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import quantized_models, real_models
from tests.helpers.rank_correlation import spearman
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.precision import measured_sensitivity
from transforms.precision.measured_sensitivity import RUNS
from transforms.precision.mix import MixedPrecision, mix_precision
from transforms.precision.mixed_model import Mix, MixedModel
from transforms.precision.mixing_options import MixingOptions
from transforms.run.run_model import open_model
from transforms.runtime.session import open_session
from transforms.scheme import Scheme, preset
from transforms.scheme.layer_rule import LayerRule
from transforms.search.output_metrics import METRICS
from transforms.search.target import TargetError

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not real_models.NAMES, reason="the real models are not there"),
]

CNNS = ("resnet8_cifar10", "mobilenet_v1_025", "superres_zoo")
MODELS = (*CNNS, "magika_v3_3", "minilm_l6_op13")
MIXES = {
    "A16W8 to A8W8": ("A16W8", "int8"),
    "BF16 to BFP16": ("BF16", "bfp16"),
    "BF16 to MX6": ("BF16", "mx6"),
}
DROPS = {"A16W8 to A8W8": 1.0, "BF16 to BFP16": 3.0, "BF16 to MX6": 15.0}
"""dB below the model in which nothing is moved: enough for some layers, not for all."""
RANKED_ALIKE = 0.8


def mixed(name: str, scheme: Scheme, **options: object) -> MixedPrecision:
    graph = model_io.load(real_models.MODELS / name / "model.onnx")
    data = CalibrationData(quantized_models.calibration_feeds(name))
    return mix_precision(graph, scheme, data, MixingOptions(**options))  # type: ignore[arg-type]


def scheme_of(case: str, **rule: object) -> Scheme:
    base, target = MIXES[case]
    return preset(base).with_(auto_mixed_precision={"target": target, **rule})


class Judge:
    """The SQNR of mixes of one model, from sessions of its own."""

    def __init__(self, name: str, scheme: Scheme) -> None:
        self._feeds = quantized_models.calibration_feeds(name)
        self._model = MixedModel(model_io.load(real_models.MODELS / name / "model.onnx"), scheme)
        source = open_model(real_models.MODELS / name / "model.onnx")
        self._wanted = [source.run(feed) for feed in self._feeds]
        self._everywhere: Mix = {}

    def prepare(self, everywhere: Mix) -> None:
        self._model.measure(CalibrationData(self._feeds), [{}, everywhere])

    def sqnr(self, mix: Mix) -> float:
        session = open_session(self._model.build(mix).graph)
        found = [session.run(feed) for feed in self._feeds]
        return METRICS["sqnr"].score(zip(self._wanted, found, strict=True))


def plain_search(judge: Judge, result: MixedPrecision, choice: LayerRule, limit: float) -> Mix:
    """Return the layers that a search moves which stops where the target breaks."""
    assert result.sensitivity is not None
    mix: dict[str, LayerRule] = {}
    for damage in result.sensitivity.ranked():
        trial = {**mix, damage.layer: choice}
        if judge.sqnr(trial) < limit:
            break
        mix = trial
    return mix


def bits(result: MixedPrecision, scheme: Scheme, mix: Mix) -> float:
    """Return the bits of the operands of all candidates, with some of them in the formats of a mix."""
    base = LayerRule(scheme.activation, scheme.weight)
    return sum(one.size(mix.get(one.name, base), scheme).total for one in result.candidates)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", MIXES)
def test_the_target_holds_in_fewer_bits_than_by_a_plain_search(case: str, name: str, tmp_path: Path) -> None:
    scheme = scheme_of(case, sqnr_drop_target=DROPS[case])
    result = mixed(name, scheme)
    found = result.assignment
    assert found is not None and found.target is not None
    model_io.save(
        result.graph, tmp_path / "mixed.onnx", metadata={"onnx_narrow.scheme": result.scheme.to_toml()}
    )
    judge = Judge(name, scheme)
    choice = LayerRule(MIXES[case][1], MIXES[case][1])
    judge.prepare(dict.fromkeys((one.name for one in result.candidates), choice))
    written = open_model(tmp_path / "mixed.onnx")
    outputs = [written.run(feed) for feed in quantized_models.calibration_feeds(name)]
    true = METRICS["sqnr"].score(zip(judge._wanted, outputs, strict=True))
    plain = plain_search(judge, result, choice, found.target.limit)
    plain_bits = bits(result, scheme, plain)
    print(
        f"{name:18} {case:14} {found.baseline:6.2f} -> {true:6.2f} dB, at least {found.target.limit:6.2f};"
        f" moved {len(result.choices)} of {result.count}, plain {len(plain)}; {len(found.steps)} tried;"
        f" {found.baseline_size.total / 8e6:.3f} -> {found.size.total / 8e6:.3f} MB of operands,"
        f" plain {plain_bits / 8e6:.3f}"
    )
    assert true >= found.target.limit - 0.01
    assert found.size.total <= plain_bits


def test_few_samples_rank_layers_as_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mean of all cases: one of few samples may hold most of the error of a layer."""
    found = {}
    for name, case in itertools.product(CNNS, MIXES):
        tables = []
        for runs in (RUNS, 1 << 30):
            monkeypatch.setattr(measured_sensitivity, "RUNS", runs)
            sensitivity = mixed(name, scheme_of(case), analyse_only=True).sensitivity
            assert sensitivity is not None
            tables.append(sensitivity)
        found[name, case] = spearman(*tables)
        print(f"{name:18} {case:14} Spearman {found[name, case]:.3f} of {len(tables[0].damages)} layers")
    assert np.mean([*found.values()]) >= RANKED_ALIKE


LABELLED = ("resnet8_cifar10", "mobilenet_v1_025", "magika_v3_3", "mnist_cntk")


def labels_of(name: str) -> np.ndarray:
    score = real_models.score_module()
    data = score.Data(str(real_models.MODELS))
    if name == "mobilenet_v1_025":
        return np.asarray(score.imagenet(data, "images")[1])
    parts = ("exact100", "jpeg500") if name == "resnet8_cifar10" else ("",)
    return np.concatenate([data.npy(name, f"labels_{part}.npy" if part else "labels.npy") for part in parts])


def halves(name: str) -> list[tuple[list[dict[str, np.ndarray]], np.ndarray]]:
    """Return the feeds of the evaluation data with their labels, every other one in each half."""
    feeds, labels = real_models.task(name).feeds, labels_of(name)
    ends = np.cumsum([len(next(iter(feed.values()))) for feed in feeds])
    of_feed = np.split(labels, ends[:-1])
    return [(feeds[i::2], np.concatenate(of_feed[i::2])) for i in range(2)]


def accuracy(model: Path, feeds: list[dict[str, np.ndarray]], labels: np.ndarray) -> float:
    opened = open_model(model)
    rows = [next(iter(opened.run(feed).values())) for feed in feeds]
    found = np.concatenate([row.reshape(-1, row.shape[-1]).argmax(1) for row in rows])
    return float((found == labels).mean())


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize("case", MIXES)
@pytest.mark.parametrize("drop", [0.01, 0.02, 0.05])
def test_the_drop_of_top1_holds_on_the_other_half_of_the_data(
    drop: float, case: str, name: str, tmp_path: Path
) -> None:
    (feeds, labels), (others, other_labels) = halves(name)
    source = real_models.MODELS / name / "model.onnx"
    scheme = scheme_of(case, top1_target=drop)
    try:
        result = mix_precision(
            model_io.load(source), scheme, CalibrationData(feeds), MixingOptions(labels=labels)
        )
    except TargetError as error:
        print(f"{name:18} {case:14} {drop}: {error}")
        return
    model_io.save(result.graph, tmp_path / "mixed.onnx")
    before, after = (accuracy(model, others, other_labels) for model in (source, tmp_path / "mixed.onnx"))
    moved = f"moved {len(result.choices)} of {result.count}"
    print(f"{name:18} {case:14} {drop}: {moved}, other half {before:.4f} -> {after:.4f}")
    assert before - after <= drop
