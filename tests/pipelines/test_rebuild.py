"""The scheme of a result makes the same file again, and judges nothing. Oracle: the bytes of the first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import tunable
from tests.helpers.judged_networks import network, samples
from tests.helpers.spread import spread
from tools import quantize
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError
from transforms.conversion.record import Record
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.tensor_grids import FixedGrids, TensorGrid
from transforms.scheme import Scheme, preset

MODELS = {
    "convolutions": tunable.conv_net(),
    "products": tunable.matmul_net(),
    "channels": network(3, 1.5, 4),
}
PRESETS = ("A8W8", "U8S8", "A16W8", "XINT8", "W4A8", "W4", "MX4", "MX6", "MXFP4E2M1", "BFP16", "FP16")


def _feeds(name: str, count: int = 12) -> list[dict[str, np.ndarray]]:
    return samples(count, 1) if name == "channels" else tunable.samples(MODELS[name], count)


def _quantized(model: onnx.ModelProto, scheme: Scheme, feeds: object, **how: object) -> tuple[bytes, Record]:
    graph = model_io.load(model)
    done = quantize_graph(graph, scheme, CalibrationData(feeds), **how)  # type: ignore[arg-type]
    return graph_proto.export_model(graph).SerializeToString(deterministic=True), done


@pytest.mark.parametrize(("config", "name"), spread(PRESETS, MODELS, of=2))
def test_the_recorded_scheme_makes_the_same_file_without_judging(
    name: str, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, done = _quantized(MODELS[name], preset(config), _feeds(name))
    assert done.scheme is not None and isinstance(done.scheme.fit_weights, bool)
    monkeypatch.setattr("transforms.pipelines.decide.Judge", None)
    again, rebuilt = _quantized(MODELS[name], done.scheme, _feeds(name))
    assert again == first
    assert rebuilt.scheme == done.scheme
    assert not rebuilt.decisions.tried


@pytest.mark.parametrize("config", ["W4A8", "MX4"])
def test_weights_are_fitted_as_by_the_command_line(config: str, tmp_path: Path) -> None:
    model, feeds = MODELS["convolutions"], _feeds("convolutions", 20)
    onnx.save(model, tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(feeds):
        np.savez(tmp_path / "data" / f"{i:02}.npz", **feed)
    paths = [("--input", "float.onnx"), ("--output", "q.onnx"), ("--data", "data")]
    command = [word for option, name in paths for word in (option, str(tmp_path / name))]
    assert quantize.main([*command, "--config", config]) == 0
    graph = model_io.load(model)
    done = quantize_graph(graph, preset(config), CalibrationData(feeds))
    assert done.decisions.fitted and done.scheme is not None and done.scheme.fit_weights
    expected = model_io.load(tmp_path / "q.onnx")
    stored = [
        {t.name: t.values.tobytes() for t in g.tensors().values() if hasattr(t, "values")}
        for g in (graph, expected)
    ]
    assert stored[0] == stored[1]


@pytest.mark.parametrize("once", [False, True])
def test_a_source_that_is_read_once_fits_weights_too(once: bool) -> None:
    feeds = _feeds("convolutions", 20)
    source = (feed for feed in feeds) if once else feeds
    made, done = _quantized(MODELS["convolutions"], preset("W4A8"), source)
    assert done.scheme is not None and done.scheme.fit_weights is True
    assert made == _quantized(MODELS["convolutions"], preset("W4A8"), feeds)[0]


@pytest.mark.parametrize(
    "changes",
    [{"fit_weights": False}, {"weight_method": "MSE"}, {"weight": "int8", "weight_method": "MinMax"}],
)
def test_what_leaves_roundings_to_the_weights_alone(changes: dict[str, object]) -> None:
    done = _quantized(MODELS["convolutions"], preset("W4A8").with_(**changes), _feeds("convolutions"))[1]
    assert done.scheme is not None and done.scheme.fit_weights is False
    assert not done.decisions.fitted


def test_weights_of_8_bits_are_rounded_so_only_where_that_is_asked_for() -> None:
    """Beside activations of more bits, in a model that makes no logits of tokens."""
    feeds, scheme = _feeds("convolutions", 8), preset("A16W8")
    plain, done = _quantized(MODELS["convolutions"], scheme, feeds)
    assert done.scheme is not None and done.scheme.fit_weights is False and not done.decisions.fitted
    fitted, done = _quantized(MODELS["convolutions"], scheme.with_(fit_weights=True), feeds)
    assert done.scheme is not None and done.scheme.fit_weights is True and done.decisions.fitted
    assert fitted != plain


def test_by_rule_leaves_out_only_what_is_not_asked_for() -> None:
    assert preset("W4A8").by_rule().fit_weights is False
    assert preset("W4A8").with_(fit_weights=True).by_rule().fit_weights is True


def test_fitting_that_cannot_be_is_refused() -> None:
    model, feeds, scheme = (
        MODELS["convolutions"],
        _feeds("convolutions"),
        preset("W4A8").with_(fit_weights=True),
    )
    with pytest.raises(ValueError, match="fewer than 7 bits, or 8 beside activations of more: it is int8"):
        _quantized(model, scheme.with_(weight="int8"), feeds)
    with pytest.raises(MissingDataError, match="fit_weights is true, and calibration data"):
        quantize_graph(model_io.load(model), scheme)
    with pytest.raises(ValueError, match="keep_grids requires fit_weights = false"):
        _quantized(model, scheme, feeds, keep_grids=True)
    grid = TensorGrid("x", "activation", "int8", 8, None, np.float32([1]), np.int64([128]))
    with pytest.raises(ValueError, match="fit_weights is true, and grids are given"):
        _quantized(model, scheme, feeds, fixed=FixedGrids([grid]))
