"""``auto`` tries AdaRound's roundings on its best grid. Oracle: held-out errors of the same layers without."""

from __future__ import annotations

import pytest

from tests.helpers import tunable
from transforms.finetune.collect_gram import open_sums
from transforms.finetune.options import LayerwiseOptions
from transforms.finetune.tune_layer import tune_layer
from transforms.finetune.write_layer import current
from transforms.layers.match_layers import match_layers

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 40)


@pytest.mark.parametrize("name", ["W4A8", "MX6"])
def test_no_layer_is_worse_for_them_and_some_are_better(name: str) -> None:
    float_graph, quantized = tunable.pair(CONV, name, DATA)
    layers, _ = match_layers(float_graph, quantized)
    options = LayerwiseOptions()
    shares = []
    with open_sums(float_graph, quantized, DATA, layers, options) as sums:
        for number, layer in enumerate(layers):
            fit, held = sums.read(number)
            found = [
                tune_layer(layer, current(layer), fit, held, options, learn=learn) for learn in (False, True)
            ]
            assert found[1].best.what.endswith("learned") == (found[1].after < found[0].after)
            shares.append(found[1].after / found[0].after)
            sums.forget(number)
    assert max(shares) <= 1 and min(shares) < 0.99


def test_a_chosen_algorithm_is_left_alone() -> None:
    float_graph, quantized = tunable.pair(CONV, "W4A8", DATA)
    layers, _ = match_layers(float_graph, quantized)
    options = LayerwiseOptions("gptq")
    with open_sums(float_graph, quantized, DATA, layers, options) as sums:
        fit, held = sums.read(0)
        assert "learned" not in tune_layer(layers[0], current(layers[0]), fit, held, options).best.what
