"""Oracles: ONNX Runtime runs float and tuned models on samples that tuning has not seen; the samples
themselves for errors of layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import ops
from ops.rounding import Options
from ops.rounding.adaquant import LEARNING_RATE
from tests.helpers import tunable
from tests.helpers.output_error import OutputError
from tests.helpers.spread import spread
from transforms import model_io
from transforms.finetune import tune_layer
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.tuned import TunedLayers
from transforms.judge.sample_roles import is_held_out
from transforms.layers.match_layers import match_layers
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph

CONV, MATMUL = tunable.conv_net(), tunable.matmul_net()
DATA, UNSEEN = tunable.samples(CONV, 160), tunable.samples(CONV, 240)[160:]
MATMUL_DATA, MATMUL_UNSEEN = tunable.samples(MATMUL, 120), tunable.samples(MATMUL, 200)[120:]


def _gain(
    float_graph: gs.Graph, before: gs.Graph, after: gs.Graph, feeds: list[dict[str, np.ndarray]]
) -> float:
    """Return by how many dB the outputs are better."""
    errors = OutputError(float_graph, feeds)
    return float(10 * np.log10(errors.each(before).relative / errors.each(after).relative))


KEPT = {"keep_weight_nodes": True}


@pytest.mark.parametrize(
    ("name", "changes"),
    spread(
        [(name, {}) for name in tunable.PRESETS] + [(name, KEPT) for name in ("A8W8", "W4A8", "BF16", "MX6")],
        of=2,
    ),
)
def test_outputs_get_better_in_every_format(name: str, changes: dict[str, bool]) -> None:
    float_graph, quantized = tunable.pair(CONV, name, DATA, **changes)
    done = finetune_model(float_graph, quantized, DATA)
    assert done.attempt is not None and done.after < done.before
    assert _gain(float_graph, quantized, done.graph, UNSEEN) > 0.3
    assert len(done.walk.layers) == 4 and not done.walk.left_alone


@pytest.mark.parametrize("name", ["U8S8", "A16W8", "W4A8", "BF16", "MX6", "MXFP4E2M1"])
def test_products_get_better(name: str) -> None:
    float_graph, quantized = tunable.pair(MATMUL, name, MATMUL_DATA)
    done = finetune_model(float_graph, quantized, MATMUL_DATA)
    assert _gain(float_graph, quantized, done.graph, MATMUL_UNSEEN) > 0


@pytest.mark.parametrize(("algorithm", "rate"), [("adaquant", LEARNING_RATE), ("adaround", None)])
def test_layers_with_many_multiplications_take_few_steps_which_adaquant_makes_longer(
    algorithm: str, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: so few steps, of that length, asked for."""
    steps, usual = 20, Options().iterations
    few = Options(iterations=steps, learning_rate=rate and rate * usual / steps)
    float_graph, quantized = tunable.pair(tunable.two_products(), "W4A8", MATMUL_DATA)
    asked = finetune_model(float_graph, quantized, MATMUL_DATA, FinetuneOptions(algorithm, solver=few))
    monkeypatch.setattr(tune_layer, "_MOST_STEPPED", 8 * 16**2 * steps)  # of both layers
    bounded = finetune_model(float_graph, quantized, MATMUL_DATA, FinetuneOptions(algorithm))
    one, other = (graph_proto.export_model(done.graph).graph for done in (asked, bounded))
    assert one == other and one != graph_proto.export_model(quantized).graph


@pytest.mark.parametrize("name", spread(tunable.PRESETS, of=2))
def test_tuned_models_load_and_keep_their_formats(name: str, tmp_path: Path) -> None:
    float_graph, quantized = tunable.pair(CONV, name, DATA)
    formats = [layer.weight.format for layer in match_layers(float_graph, quantized)[0]]
    done = finetune_model(float_graph, quantized, DATA)
    model_io.save(done.graph, tmp_path / "tuned.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "tuned.onnx"), full_check=True)
    layers, _ = match_layers(float_graph, model_io.load(tmp_path / "tuned.onnx"))
    for layer, row in zip(layers, formats, strict=True):
        assert row is not None
        if row.block > 1:
            stored = layer.weight.source.values
            axis = 0 if layer.node.op == "ConvTranspose" else 1
            assert np.array_equal(ops.quantize_dequantize(stored, row, axis), stored)
        else:
            assert layer.weight.format is row


def test_the_quantized_graph_is_not_changed() -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
    before = graph_proto.export_model(quantized).SerializeToString(deterministic=True)
    finetune_model(float_graph, quantized, DATA)
    assert graph_proto.export_model(quantized).SerializeToString(deterministic=True) == before


def test_reported_errors_are_those_of_the_rows() -> None:
    """The first layer's inputs are the same before and after, so that its error can be measured directly."""
    float_graph, quantized = tunable.pair(CONV, "MX6", DATA)
    tuned = copy_graph(quantized)
    options = FinetuneOptions(least_rows=1 << 16)  # more than there are
    report = finetune_weights(float_graph, tuned, DATA, options).layers[0]
    held = [feed for i, feed in enumerate(DATA) if is_held_out(i, len(DATA), options.held_out)]
    for graph, reported in ((quantized, report.before), (tuned, report.after)):
        assert np.isclose(_squared(float_graph, graph, "c1", held), reported, rtol=1e-4)  # sums in float32
    assert report.after < report.before


def _squared(float_graph: gs.Graph, graph: gs.Graph, name: str, feeds: list[dict[str, np.ndarray]]) -> float:
    made = []
    for source in (float_graph, graph):
        model = graph_proto.export_model(source)
        model.graph.output.append(onnx.ValueInfoProto(name=name))
        import onnxruntime as ort

        settings = ort.SessionOptions()
        ops.register_custom_ops(settings)
        session = ort.InferenceSession(model.SerializeToString(), settings)
        made.append(np.stack([session.run([name], feed)[0] for feed in feeds]).astype(np.float64))
    return float(((made[0] - made[1]) ** 2).sum())


def test_another_seed_picks_other_rows() -> None:
    float_graph, quantized = tunable.pair(CONV, "W4A8", DATA)
    errors = []
    for seed in (0, 0, 1):
        tuned = copy_graph(quantized)
        done = finetune_weights(
            float_graph, tuned, DATA, FinetuneOptions(most_rows=1, least_rows=64, seed=seed)
        )
        errors.append([layer.power for layer in done.layers])
    assert errors[0] == errors[1] != errors[2]


def test_the_same_seed_makes_the_same_model() -> None:
    models = []
    for _ in range(2):
        float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
        done = finetune_model(float_graph, quantized, DATA)
        models.append(graph_proto.export_model(done.graph).SerializeToString(deterministic=True))
    assert models[0] == models[1]


@pytest.mark.parametrize("limit", [0, 20_000])
def test_a_memory_limit_changes_nothing(limit: int) -> None:
    data = DATA[:40]
    float_graph, quantized = tunable.pair(CONV, "MX6", data)
    free, bounded = copy_graph(quantized), copy_graph(quantized)
    finetune_weights(float_graph, free, data)
    finetune_weights(float_graph, bounded, data, FinetuneOptions(memory_limit=limit))
    same = [graph_proto.export_model(g).SerializeToString(deterministic=True) for g in (free, bounded)]
    assert same[0] == same[1]


@pytest.mark.parametrize("algorithm", ["gptq", "coordinate_descent", "adaquant", "adaround"])
def test_every_algorithm_helps(algorithm: str) -> None:
    float_graph, quantized = tunable.pair(CONV, "W4A8", DATA)
    done = finetune_model(float_graph, quantized, DATA, FinetuneOptions(algorithm))
    assert _gain(float_graph, quantized, done.graph, UNSEEN) > 1


def test_layers_of_some_operators_alone() -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
    done = finetune_weights(float_graph, quantized, DATA, FinetuneOptions(op_types=("Gemm",)))
    assert [layer.name for layer in done.layers] == ["dense"]
    assert {one.reason for one in done.left_alone} == {"its operator is not selected"}


def test_an_operator_that_is_not_there() -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
    with pytest.raises(ValueError, match="operator type 'MatMul': no layer of it"):
        finetune_weights(float_graph, quantized, DATA, FinetuneOptions(op_types=("MatMul",)))


def test_too_few_samples() -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
    with pytest.raises(ValueError, match="1 sample, at least 2"):
        finetune_model(float_graph, quantized, DATA[:1])


def test_models_that_do_not_match() -> None:
    _, quantized = tunable.pair(CONV, "A8W8", DATA)
    other, _ = tunable.pair(tunable.conv_net(seed=5), "A8W8", DATA)
    with pytest.raises(ValueError, match=r"no layer can be tuned, of 4 dot products: 'conv' \(Conv\)"):
        finetune_model(other, quantized, DATA)


def test_models_with_other_outputs() -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
    float_graph.outputs[0].name = "z"
    with pytest.raises(ValueError, match="different outputs: 'y'"):
        finetune_model(float_graph, quantized, DATA)


def test_a_model_that_can_not_get_better_stays_as_it_is() -> None:
    """Weights and data that every grid holds exactly leave no error to take away; so many are not copied."""
    model = tunable.matmul_net()
    for tensor in model.graph.initializer:
        dims = list(tensor.dims)
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones(dims, np.float32), tensor.name))
    data = [{"x": np.full((1, 7, 16), float(i % 2), np.float32)} for i in range(30)]
    float_graph, quantized = tunable.pair(model, "BF16", data)
    done = finetune_model(float_graph, quantized, data)
    assert done.attempt is None and done.graph is quantized and done.before == done.after == 0


@pytest.mark.parametrize(("worse", "attempt"), [(0.999, "weights, biases and scales"), (1.3, None)])
def test_one_output_that_gets_worse_is_enough(
    worse: float, attempt: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two products, one gets the float weights; the difference of the other is made larger or smaller."""
    model = tunable.two_products()
    data = tunable.samples(model, 40)
    float_graph, quantized = tunable.pair(model, "MX6", data)

    def tune(twin: gs.Graph, graph: gs.Graph, *_: object, **__: object) -> TunedLayers:
        first, second = match_layers(twin, graph)[0]
        first.weight.source.values = first.layer.unpack(first.float_weight)
        exact = second.layer.unpack(second.float_weight)
        second.weight.source.values = exact + np.float32(worse) * (second.weight.source.values - exact)
        return TunedLayers()

    monkeypatch.setattr("transforms.finetune.finetune_model.finetune_weights", tune)
    done = finetune_model(float_graph, quantized, data)
    assert done.attempt == attempt
    assert done.after < done.before if attempt else done.graph is quantized


def test_selective_update_keeps_what_helps_the_outputs() -> None:
    float_graph, quantized = tunable.pair(CONV, "W4A8", DATA)
    done = finetune_model(float_graph, quantized, DATA, FinetuneOptions(selective=True))
    assert done.after < done.before
    first = next(layer for layer in done.walk.layers if layer.is_kept)
    assert first.after < first.before


def test_a_judge_that_never_agrees_changes_nothing() -> None:
    float_graph, quantized = tunable.pair(CONV, "W4A8", DATA)
    before = [layer.weight.values() for layer in match_layers(float_graph, quantized)[0]]
    done = finetune_weights(float_graph, quantized, DATA, model_error=lambda: 1.0)
    after = [layer.weight.values() for layer in match_layers(float_graph, quantized)[0]]
    assert not any(layer.is_kept for layer in done.layers)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("count", [2, 3, 5, 6, 64])
def test_a_fifth_of_the_samples_is_held_out(count: int) -> None:
    held = [is_held_out(i, count, FinetuneOptions().held_out) for i in range(count)]
    assert sum(held) == max(1, count // 5)
