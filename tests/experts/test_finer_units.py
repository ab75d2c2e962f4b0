"""Experts in two parts. Oracle: the sum of what both parts make of tokens is what the whole makes of them."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import experts
from tests.helpers.experts import Experts
from transforms.experts.find_mixtures import mixtures
from transforms.experts.finer_units import split
from transforms.experts.mixture import Mixture
from transforms.experts.outputs import mixture_outputs
from transforms.model import graph_proto

FORMS = {"relu": Experts("relu"), "third product": Experts("swiglu"), "in turns": Experts("swiglu", fusion=1)}
STEP = 16


def _mixture(form: Experts, weights: experts.Arrays | None = None) -> Mixture:
    graph: gs.Graph = graph_proto.import_model(experts.moe(form, weights or form.weights()))
    return next(mixtures(graph)).mixture


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_both_parts_sum_to_the_whole(form: Experts) -> None:
    mixture = _mixture(form)
    parts = split(mixture, 0.07, STEP)
    assert parts is not None
    assert [part.second.shape[2] for part in parts] == [form.inner - STEP, STEP]
    random = np.random.default_rng(0)
    data, logits = random.standard_normal((9, form.width)), random.standard_normal((9, form.count))
    whole, *made = (mixture_outputs(one, data, logits) for one in (mixture, *parts))
    assert np.abs(made[0] + made[1] - whole).max() < 1e-9 * np.abs(whole).max()


def test_each_expert_has_its_own_largest_numbers_in_the_finer_part() -> None:
    form = Experts("relu", has_bias=False)
    weights = form.weights()
    wanted = [np.arange(STEP) * (expert + 1) for expert in range(form.count)]
    for expert, places in enumerate(wanted):
        weights["w2"][expert][:, places] *= 10
    parts = split(_mixture(form, weights), 0.07, STEP)
    assert parts is not None
    for expert, places in enumerate(wanted):
        assert np.array_equal(parts[1].second.of_expert(expert), weights["w2"][expert][:, places])


@pytest.mark.parametrize(
    ("share", "inner", "count"), [(0.0, 96, 0), (0.07, 48, 0), (0.07, 240, 32), (0.2, 96, 16), (1.0, 192, 48)]
)
def test_whole_steps_of_at_most_a_quarter(share: float, inner: int, count: int) -> None:
    parts = split(_mixture(Experts("relu", inner=inner)), share, STEP)
    assert (0 if parts is None else parts[1].second.shape[2]) == count
