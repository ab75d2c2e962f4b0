"""``auto`` tries AdaRound on its best grid. Oracle: held-out errors of the same layers without."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import tunable
from transforms.finetune.collect_gram import open_sums
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.options import LayerwiseOptions
from transforms.finetune.put_back import SomeLayers, unlearn
from transforms.finetune.tune_layer import tune_layer
from transforms.finetune.write_layer import current
from transforms.layers.match_layers import match_layers
from transforms.model.copy_graph import copy_graph

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
            other = found[1].unlearned
            assert (other is not None) == (found[1].after < found[0].after)
            assert other is None or np.array_equal(other.best.weights, found[0].best.weights)
            assert other is None or other.after == found[0].after
            shares.append(found[1].after / found[0].after)
            sums.forget(number)
    assert max(shares) <= 1 and min(shares) < 0.99


def test_a_tuned_model_is_made_without_them() -> None:
    """Other layers stay as they are. Oracle: weights before they are learned."""
    float_graph, quantized = tunable.pair(CONV, "W4A8", DATA)
    walked = finetune_weights(float_graph, copy_graph(quantized), DATA)
    learned = {i for i, layer in enumerate(walked.layers) if layer.what.endswith("learned")}
    assert learned and walked.unlearned.keys() == learned
    some = SomeLayers((float_graph, quantized), [walked.matched], sorted(walked.changed), (), ())
    plain, layers = unlearn(some, walked)
    assert not any(layer.what.endswith("learned") for layer in layers.layers)
    for number, layer in enumerate(match_layers(float_graph, plain)[0]):
        wanted = walked.unlearned[number][0] if number in learned else current(walked.matched[number])
        assert np.allclose(current(layer).weights, wanted.weights, rtol=1e-6, atol=1e-7)


def test_a_chosen_algorithm_is_left_alone() -> None:
    float_graph, quantized = tunable.pair(CONV, "W4A8", DATA)
    layers, _ = match_layers(float_graph, quantized)
    options = LayerwiseOptions("gptq")
    with open_sums(float_graph, quantized, DATA, layers, options) as sums:
        fit, held = sums.read(0)
        assert "learned" not in tune_layer(layers[0], current(layers[0]), fit, held, options).best.what
