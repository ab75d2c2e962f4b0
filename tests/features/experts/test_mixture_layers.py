"""A mixture in integers is the layer that it was made of. Oracle: names of the float model."""

from __future__ import annotations

from tests.helpers.experts import Experts, moe
from transforms.model import graph_proto
from transforms.precision.pair_nodes import PairedModels
from transforms.write_qmoe import write_qmoe


def test_it_is_paired_with_the_mixture_in_float() -> None:
    made = moe(Experts(), Experts().weights())
    floats, integers = graph_proto.import_model(made), graph_proto.import_model(made)
    assert write_qmoe(integers) == 1
    [mixture] = [node for node in floats.nodes if node.op == "MoE"]
    pairs = PairedModels(floats, integers)
    assert list(pairs.base.layers) == [mixture.name]
