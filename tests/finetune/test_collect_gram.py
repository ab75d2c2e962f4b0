"""Oracle: sums over all rows of tensors that ONNX Runtime makes in the whole model, as it is by then."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import tunable
from tests.layers.test_shared_weights import CHAIN, STEPS, TWINS
from transforms.finetune.collect_gram import GramReader
from transforms.finetune.gram import GramStats
from transforms.finetune.layer_stats import RowStats, SharedGramStats
from transforms.finetune.options import FinetuneOptions
from transforms.judge.sample_roles import is_held_out
from transforms.layers.match_layers import match_layers
from transforms.layers.matched_layer import MatchedLayer
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph
from transforms.run.kept_arrays import ActivationStore
from transforms.run.run_model import open_model

COUNT = 6
CONV = tunable.conv_net()


def _reader(
    float_graph: gs.Graph, quantized: gs.Graph, layers: list[MatchedLayer], stores: list[ActivationStore]
) -> GramReader:
    data = tunable.samples(graph_proto.export_model(float_graph), COUNT)
    return GramReader(float_graph, quantized, data, layers, FinetuneOptions(), stores)


def _expected(float_graph: gs.Graph, quantized: gs.Graph, user: MatchedLayer) -> tuple[GramStats, GramStats]:
    """Return the sums of one user over the rows to fit to, and those to judge by."""
    groups, outputs, positions, channels = user.layer.size
    fit, held = (GramStats.zeros(groups, outputs, positions * channels) for _ in range(2))
    made = []
    for graph, name in ((quantized, user.source.name), (float_graph, user.target)):
        whole = copy_graph(graph)
        if all(tensor.name != name for tensor in whole.outputs):
            whole.outputs.append(whole.tensors()[name])
        model = open_model(whole)
        data = tunable.samples(graph_proto.export_model(float_graph), COUNT)
        made.append([model.run(feed, [name])[name] for feed in data])
    for i, (x, y) in enumerate(zip(*made, strict=True)):
        sums = held if is_held_out(i, COUNT, FinetuneOptions().held_out) else fit
        sums.add(user.layer.rows(x, y.shape), user.layer.outputs(y))
    return fit, held


def _assert_same(
    found: tuple[SharedGramStats, SharedGramStats], expected: list[tuple[GramStats, GramStats]]
) -> None:
    for part, sums in enumerate(found):
        assert len(sums.parts) == len(expected)
        for stats, pair in zip(sums.parts, expected, strict=True):
            one = stats.summed() if isinstance(stats, RowStats) else stats
            assert one.count == pair[part].count
            for name in ("x", "y", "xx", "yx", "yy"):  # kernels in float32 differ in last bits
                a, b = getattr(one, name), getattr(pair[part], name)
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize("model", [CONV, TWINS, STEPS, CHAIN], ids=["conv", "twins", "steps", "chain"])
@pytest.mark.parametrize("limit", [None, 0])
def test_sums_are_those_over_the_rows_of_every_user(model: onnx.ModelProto, limit: int | None) -> None:
    float_graph, quantized = tunable.pair(model, "MX6", tunable.samples(model, COUNT))
    layers, _ = match_layers(float_graph, quantized)
    with ActivationStore(limit) as floats, ActivationStore(limit) as given, ActivationStore(limit) as rows:
        reader = _reader(float_graph, quantized, layers, [floats, given, rows])
        for number, layer in enumerate(layers):
            found = reader.read(number)
            _assert_same(found, [_expected(float_graph, quantized, user) for user in layer.users])
            reader.forget(number)
        assert not rows._arrays and not reader._given._wanted  # the rest is for nodes that wait


@pytest.mark.parametrize("model", [TWINS, CHAIN, STEPS], ids=["twins", "chain", "steps"])
def test_sums_of_a_shared_weight_are_read_again_after_it_has_changed(model: onnx.ModelProto) -> None:
    """Layers behind it, too, read what the model makes with the weight that it has now."""
    float_graph, quantized = tunable.pair(model, "MX6", tunable.samples(model, COUNT))
    layers, _ = match_layers(float_graph, quantized)
    with ActivationStore() as floats, ActivationStore() as given, ActivationStore() as rows:
        reader = _reader(float_graph, quantized, layers, [floats, given, rows])
        first = reader.read(0)
        weight = layers[0].weight.source
        weight.values = np.asarray(weight.values) * np.float32(0.5)
        reader.restart()
        second = reader.read(0)
        _assert_same(second, [_expected(float_graph, quantized, user) for user in layers[0].users])
        same = np.allclose(first[1].parts[-1].xx, second[1].parts[-1].xx, rtol=1e-3)
        assert same == (model is TWINS)  # whose users read the model's input alone
        reader.forget(0)
        for number in range(1, len(layers)):
            users = layers[number].users
            _assert_same(reader.read(number), [_expected(float_graph, quantized, user) for user in users])
        assert not rows._arrays and not reader._given._wanted  # the rest is for nodes that wait


def test_layers_that_are_forgotten_unread_leave_the_others_as_they_are() -> None:
    float_graph, quantized = tunable.pair(TWINS, "MX6", tunable.samples(TWINS, COUNT))
    layers, _ = match_layers(float_graph, quantized)
    with ActivationStore() as floats, ActivationStore() as given, ActivationStore() as rows:
        reader = _reader(float_graph, quantized, layers, [floats, given, rows])
        reader.forget(0)
        _assert_same(reader.read(1), [_expected(float_graph, quantized, layers[1])])
        reader.forget(1)
        assert not rows._arrays and not reader._given._wanted  # the rest is for nodes that wait
