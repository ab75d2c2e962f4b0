"""Models that are shifted already, and their float models. Oracle: a model that tuning shifts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.full_range.test_shift_tensors import CLOSE, DATA, NET, PADDED, PADDED_DATA
from tests.helpers import tunable
from tests.helpers.output_error import OutputError
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.options import FinetuneOptions
from transforms.full_range.share_shifts import on_full_range, shift_alike
from transforms.full_range.shift_tensors import shift_tensors
from transforms.graph.constants import load


def test_tuning_a_shifted_model_is_tuning_it_shifted() -> None:
    """Oracle: the model that is shifted by tuning, by the same headroom: equal sums, equal weights."""
    float_graph, quantized = tunable.pair(PADDED, "A8W8", PADDED_DATA)
    reference, shifted, _ = on_full_range(float_graph, quantized, padded_for=PADDED_DATA)
    alike = shift_alike(float_graph, shifted)
    found, expected = (OutputError(alike, PADDED_DATA).each(one).errors for one in (shifted, shifted))
    assert np.array_equal(found, expected)
    makers = [{n.outputs[0].name: n for n in g.nodes if n.op == "Conv"} for g in (alike, reference)]
    for name, node in makers[0].items():
        assert np.array_equal(load(node.inputs[2]), load(makers[1][name].inputs[2])), name
    first = finetune_model(float_graph, quantized, PADDED_DATA, FinetuneOptions())
    second = finetune_model(float_graph, shifted, PADDED_DATA, FinetuneOptions())
    assert first.spread == 4 and second.spread == 0
    assert second.after == pytest.approx(first.after, rel=1e-9)
    third = finetune_model(float_graph, first.graph, PADDED_DATA, FinetuneOptions())
    assert third.after <= first.after < CLOSE * third.after


def test_a_float_model_without_the_relu_is_refused() -> None:
    float_graph, quantized = tunable.pair(NET, "A8W8", DATA)
    assert len(shift_tensors(quantized, {"c1", "c2", "c3"})) == 3
    relu = next(node for node in float_graph.nodes if node.op == "Relu")
    relu.op = "Sigmoid"
    with pytest.raises(ValueError, match=r"^'c1' is shifted, and the float model has no Relu or Clip alone"):
        shift_alike(float_graph, quantized)
