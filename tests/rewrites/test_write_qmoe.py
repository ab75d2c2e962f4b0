"""Oracle: NumPy in float64, on the weights that the stored integers stand for.

A token's experts are two products of K float32 numbers with an activation between them: a thousand roundings
at the most, each of 2^-24 of what is summed, are beyond 80 dB; a GELU by tanh, as the kernel has it, is
beyond 70. Products whose inputs kernels round to int8 in blocks have 35 dB and more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.helpers import experts
from tests.helpers.experts import Experts
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset
from transforms.write_qmoe import write_qmoe

TOKENS = np.random.default_rng(7).standard_normal((48, 64)).astype(np.float32)
EXACT, ROUNDED = 70, 35  # dB

FORMS = {
    "silu": Experts(),
    "normalized": Experts(is_normalized=True),
    "relu, one expert": Experts("relu", k=1, has_bias=False),
    "gelu": Experts("gelu", count=3),
    "identity": Experts("identity"),
    "gate and value in turns": Experts("swiglu", fusion=1),
    "gate before value": Experts("swiglu", fusion=2, is_normalized=True),
    "third product": Experts("swiglu"),
    "odd sizes": Experts(inner=100),
}


def _written(form: Experts, bits: int, block: int = 32, level: int | None = 1) -> onnx.ModelProto:
    graph = graph_proto.import_model(experts.moe(form, form.weights()))
    assert write_qmoe(graph, bits, block, accuracy_level=level) == 1
    assert write_qmoe(graph, bits, block) == 0
    return graph_proto.export_model(graph)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_outputs_are_those_of_the_decoded_weights(form: Experts, bits: int) -> None:
    model = _written(form, bits)
    stored = replace(form, fusion=1) if form.is_gated else form
    wanted = experts.outputs_of(stored, experts.decoded(model), TOKENS)
    has_blocks = form.inner % 16 == 0
    least = ROUNDED if has_blocks and bits != 4 else EXACT
    for optimize in (True, False):
        assert experts.sqnr(wanted, experts.run(model, TOKENS, optimize=optimize)) > least


@pytest.mark.parametrize(("bits", "least"), [(8, 35), (4, 20), (2, 6)])
def test_what_is_left_of_four_experts(bits: int, least: float) -> None:
    """Gaussian weights in steps of b bits have 6 b - 2 dB, and two products half of the ratio."""
    form = Experts(is_normalized=True)
    wanted = experts.outputs_of(form, form.weights(), TOKENS)
    model = _written(form, bits, 16, None)
    made = [experts.run(model, TOKENS, optimize=optimize) for optimize in (True, False)]
    assert experts.sqnr(wanted, made[0]) > least
    assert experts.sqnr(made[1], made[0]) > (EXACT if bits == 4 else ROUNDED)


def test_zero_points_where_numbers_are_not_around_0() -> None:
    form = Experts()
    weights = form.weights() | {
        "w1": np.full((4, 96, 64), 3, np.float32),
        "w2": np.zeros((4, 64, 96), np.float32),
    }
    weights["w1"][..., 0] = np.linspace(1, 3, 96)
    graph = graph_proto.import_model(experts.moe(form, weights))
    write_qmoe(graph)
    first, second = graph.nodes[-1].inputs[11], graph.nodes[-1].inputs[12]
    assert not first.is_empty() and second.is_empty()


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sparse_mixer": 1},
        {"activation_type": "relu2"},
        {"swiglu_limit_after_activation": 1},
    ],
)
def test_without_a_kernel_it_stays(changes: dict[str, object]) -> None:
    form = Experts()
    graph = graph_proto.import_model(experts.moe(form, form.weights()))
    graph.nodes[-1].attrs.update(changes)
    assert write_qmoe(graph) == 0
    assert graph.nodes[-1].op == "MoE"


def test_excluded_stays_and_wrong_arguments_are_refused() -> None:
    form = Experts()
    graph = graph_proto.import_model(experts.moe(form, form.weights()))
    assert write_qmoe(graph, exclude="experts") == 0
    with pytest.raises(ValueError, match="experts cannot have 3 bits, legal are 8, 4, 2"):
        write_qmoe(graph, 3)
    with pytest.raises(ValueError, match="block_size is 24, legal are powers of two from 16 on"):
        write_qmoe(graph, block_size=24)


def test_a_graph_with_integers_is_quantized_already() -> None:
    model = _written(Experts(), 4)
    with pytest.raises(ValueError, match="quantized already: 'experts' is a QMoE node"):
        quantize_graph(graph_proto.import_model(model), preset("W4"))
