"""AdaQuant learns the scales of integers along with the weights, where each output has its own.

Oracle: the same run without that candidate; errors are those of held-out samples, and the smaller wins.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ops.rounding import Options
from tests.helpers import tunable
from transforms.finetune import tune_layer
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.options import LayerwiseOptions
from transforms.finetune.tuned_layers import TunedLayers
from transforms.layers.match_layers import match_layers
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 60)


def tuned(name: str) -> tuple[TunedLayers, list[np.ndarray]]:
    float_graph, quantized = tunable.pair(CONV, name, DATA)
    graph = copy_graph(quantized)
    options = LayerwiseOptions("adaquant", solver=Options(iterations=300))
    done = finetune_weights(float_graph, graph, DATA, options)
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
    layers = match_layers(float_graph, graph)[0]
    return done, [layer.weight.parameters[0] for layer in layers if layer.weight.parameters]


def test_learned_scales_are_kept_where_they_are_better(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it, scales = tuned("W4A8")
    monkeypatch.setattr(tune_layer._Tuning, "_with_learned_scale", lambda self, damping: iter(()))
    without, plain_scales = tuned("W4A8")
    learned = [i for i, layer in enumerate(with_it.layers) if layer.what == "learned scale"]
    assert learned
    first = learned[0]  # up to there both runs are the same
    assert with_it.layers[first].after < without.layers[first].after
    assert scales[first].shape == plain_scales[first].shape
    assert not np.array_equal(scales[first], plain_scales[first])


def test_formats_without_a_scale_of_each_output_learn_none() -> None:
    for name in ("A8W8", "MX6"):
        assert all(layer.what != "learned scale" for layer in tuned(name)[0].layers)
