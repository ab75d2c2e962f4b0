"""Oracles: layers whose outliers are made by hand; a transformer in ONNX Runtime on samples that gave no
ranges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from ops import FORMATS
from tests.benchmarks.transformer import Size, transformer
from tests.helpers import plans
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.channels.factors import lowered, smoothed
from transforms.channels.propose_moves import LayerWeights, find_operands, propose_moves
from transforms.conversion.prepare import prepare_for
from transforms.conversion.record import Record
from transforms.judge.errors import MAY_LOSE
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.quant_spec import QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.run_model import RunOptions, open_model
from transforms.scheme import preset
from transforms.scheme.outlier_move import parse_move

CHANNELS = 16
TEXT = """(float[1,40,16] x) => (float[1,40,16] y) {
    h = Softplus(x) m = MatMul(h, w) n = Add(m, b) r = Add(n, x) y = LayerNormalization<axis = -1>(r, e) }"""
WEIGHTS: plans.Weights = {"w": (CHANNELS, CHANNELS), "b": (CHANNELS,), "e": (CHANNELS,)}
SIZE = Size(layers=2, width=32, heads=4, vocabulary=100, positions=16)


def proposed(rows: NDArray[np.float32], scheme: str = "A8W8", **weights: Any) -> str:
    """Return what is proposed for ``h`` that has such rows in each of eight samples."""
    plan = QuantizationPlan(model_io.load(plans.model(TEXT, {**WEIGHTS, **weights})), preset(scheme))
    return str(propose_moves(find_operands(plan), {"h": np.split(rows, 8)}, clips=False).get("h", ""))


def rows(*outliers: tuple[int, float], share: float = 1.0) -> NDArray[np.float32]:
    """Return 320 rows of positive numbers; channels are as much larger, in a share of the rows."""
    random = np.random.default_rng(5)
    made = np.abs(random.standard_normal((320, CHANNELS))).astype(np.float32)
    for channel, factor in outliers:
        made[random.random(320) < share, channel] *= factor
    return made


def test_channels_that_are_alike_stay() -> None:
    assert proposed(rows()) == ""


@pytest.mark.parametrize("scheme", ["A8W8", "U8S8"])
def test_outliers_get_products_of_their_own(scheme: str) -> None:
    assert proposed(rows((3, 50), (11, 80)), scheme) == "3:own 11:own"


def test_nothing_is_proposed_of_few_rows_or_numbers_that_are_not_finite() -> None:
    assert proposed(rows((3, 50))[:48]) == ""
    broken = rows((3, 50))
    broken[7, 7] = np.inf
    assert proposed(broken) == ""


def test_inputs_of_sixteen_bits_have_no_outliers_to_move() -> None:
    assert proposed(rows((3, 50)), "A16W8") == ""


def test_tensors_made_in_integers_are_left_out_unless_their_layer_takes_the_factors() -> None:
    text = "(float[1,40,16] x) => (float[1,40,16] y{}) {{ m = MatMul(x, w) h = Relu(m) y = MatMul(h, v) }}"
    for seen, count in ((", float[1,40,16] m", 0), ("", 1)):  # the first layer can divide what it alone makes
        weights: plans.Weights = {"w": (CHANNELS, CHANNELS), "v": (CHANNELS, CHANNELS)}
        graph = model_io.load(plans.model(text.format(seen), weights))
        assert len(find_operands(QuantizationPlan(graph, preset("A8W8")))) == count


def with_outliers() -> onnx.ModelProto:
    """Return a small transformer with large channels after its norms, and a large neuron in each layer."""
    model = transformer(SIZE, seed=2)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).copy()
        if tensor.name.endswith("norm1.weight"):
            array[[3, 17]] = 12, 25
        elif tensor.name.endswith("up.weight"):
            array *= 4
            array[:, 9] *= 20
        elif not tensor.name.endswith("down.weight"):
            continue
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def feeds(count: int, seed: int) -> list[dict[str, NDArray[np.int64]]]:
    """Return sentences of random words."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, SIZE.vocabulary, (count, 1, SIZE.positions))
    return [{"input_ids": one, "attention_mask": np.ones_like(one)} for one in ids]


def quantized(model: onnx.ModelProto, **changes: Any) -> tuple[float, Record]:
    """Return the SNR in dB on new samples of the model in A8W8, and what was done."""
    graph = model_io.load(model)
    done = quantize_graph(graph, preset("A8W8").with_(**changes), CalibrationData(feeds(8, 1)))
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
    models = [open_model(one, RunOptions(simulate=True)) for one in (model_io.load(model), graph)]
    outputs = [
        np.stack([m.run(f)["last_hidden_state"] for f in feeds(16, 2)]).astype(np.float64) for m in models
    ]
    error = np.square(outputs[1] - outputs[0]).sum()
    return float(10 * np.log10(np.square(outputs[0]).sum() / error)), done


def test_a_transformer_with_outliers_gets_better() -> None:
    model = with_outliers()
    plain, _ = quantized(model, move_outliers=False)
    better, done = quantized(model)
    assert done.changes["tensors with outliers moved into weights"] > 0
    assert better > plain + 3
    again, repeated = quantized(model, outliers=done.scheme.outliers)
    assert (again, repeated.scheme.outliers) == (better, done.scheme.outliers)


def test_moves_of_the_scheme_leave_the_float_model_as_it_is() -> None:
    """The reference of a later tuning has the moves that are recorded."""
    _, done = quantized(with_outliers())
    assert done.scheme is not None
    scheme = done.scheme.with_(outliers=dict(done.scheme.outliers))
    moved = model_io.load(with_outliers())
    prepare_for(moved, scheme)
    feed = feeds(1, 3)[0]
    before, after = (open_model(one).run(feed) for one in (model_io.load(with_outliers()), moved))
    assert np.allclose(*(found["last_hidden_state"] for found in (before, after)), rtol=1e-4, atol=1e-4)


def test_a_tensor_of_the_scheme_that_nothing_multiplies_is_refused() -> None:
    with pytest.raises(ValueError, match="outliers entry 'nothing' is not a tensor that layers multiply"):
        quantized(with_outliers(), outliers={"nothing": "1:own"})


def test_a_transformer_without_outliers_stays_as_it_is() -> None:
    model = transformer(SIZE, seed=4)
    plain, _ = quantized(model, move_outliers=False)
    same, done = quantized(model)
    assert same >= plain - MAY_LOSE
    assert done.scheme is not None


def test_channels_that_weights_make_up_for_are_brought_to_like_sizes() -> None:
    """Sizes of channels are 2^0 to 2^9, those of weights the opposite: these take the factors in."""
    sizes = np.ldexp(np.float32(1), np.arange(CHANNELS) % 10)
    random = np.random.default_rng(8)
    weight = random.standard_normal((CHANNELS, CHANNELS)).astype(np.float32) / sizes[:, None]
    move = parse_move(proposed(rows() * sizes, w=weight))
    assert not move.own
    found = np.ldexp(sizes, -move.of_channels("h", CHANNELS))
    assert found.max() / found.min() <= 8


def test_heads_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(9)
    weight = random.standard_normal((CHANNELS, 50)).astype(np.float32)
    weight[3] *= 30
    grid, squares = QuantSpec(FORMATS["int8"], symmetric=True, axis=1), random.random(CHANNELS)
    factors, own = np.float64(2) ** random.integers(0, 4, CHANNELS), np.array([3, 7])
    whole = LayerWeights(weight, grid).error(squares, factors, own)
    monkeypatch.setattr("transforms.channels.propose_moves._COLUMNS", 7)
    assert LayerWeights(weight, grid).error(squares, factors, own) == whole


def test_too_few_samples_move_nothing() -> None:
    graph = model_io.load(with_outliers())
    done = quantize_graph(graph, preset("A8W8"), CalibrationData(feeds(3, 1)))
    assert done.scheme is not None
    assert not done.scheme.outliers


def test_smoothing_by_hand() -> None:
    """2211.10438, equation 4: log2 of sqrt(64 / 1), of sqrt(4 / 4), and a channel of zeros."""
    assert smoothed(np.array([64.0, 4.0, 0.0]), np.array([1.0, 4.0, 1.0]), 0.5).tolist() == [3, 0, 0]
    assert smoothed(np.array([1.0, 2.0**-60]), np.ones(2), 0.75).tolist() == [10, 0]
    assert smoothed(np.zeros(2), np.ones(2), 0.5).tolist() == [0, 0]


def test_channels_above_a_limit_are_lowered_to_it_by_powers_of_two() -> None:
    """2211.10438, equation 4 with a = 1, by hand: log2(40 / 4) is nearest to 3."""
    assert lowered(np.array([4.0, 40.0, 0.5, 6.0]), 4.0).tolist() == [0, 3, 0, 1]
