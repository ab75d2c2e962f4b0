"""Gradient steps on the best grid and target. Oracle: held-out errors of the same layers without."""

from __future__ import annotations

import pytest

from tests.helpers import tunable
from transforms.finetune.collect_gram import open_sums
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.tune_layer import tune_layer
from transforms.finetune.write_layer import current
from transforms.layers.match_layers import match_layers

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 40)


@pytest.mark.parametrize("algorithm", ["auto", "adaround", "adaquant"])
def test_no_layer_is_worse_for_them_and_some_are_better(algorithm: str) -> None:
    float_graph, quantized = tunable.pair(CONV, "W4A8", DATA)
    layers, _ = match_layers(float_graph, quantized)
    options = [FinetuneOptions(one) for one in ("gptq", algorithm)]
    shares = []
    with open_sums(float_graph, quantized, DATA, layers, options[0]) as sums:
        for number, layer in enumerate(layers):
            fit, held = sums.read(number)
            plain, found = (tune_layer(layer, current(layer), fit, held, one) for one in options)
            assert found.best.what.endswith("learned") == (found.after < plain.after)
            shares.append(found.after / plain.after)
            sums.forget(number)
    assert max(shares) <= 1 and min(shares) < 0.99


def test_auto_learns_no_roundings_of_blocks() -> None:
    float_graph, quantized = tunable.pair(CONV, "MX6", DATA)
    layers, _ = match_layers(float_graph, quantized)
    with open_sums(float_graph, quantized, DATA, layers, FinetuneOptions()) as sums:
        fit, held = sums.read(0)
        found = tune_layer(layers[0], current(layers[0]), fit, held, FinetuneOptions())
        assert "learned" not in found.best.what and found.after < found.before
