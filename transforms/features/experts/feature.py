"""The feature of mixtures of experts."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.conversion.rows import Row
from transforms.features.experts.runtime_moe import mixtures
from transforms.features.hooks import Feature
from transforms.graph import walk
from transforms.graph.rewire import RUNTIME_DOMAIN
from transforms.pipelines.later import later


def is_stored(graph: gs.Graph) -> bool:
    """Return whether a model has experts that can be stored as integers."""
    return any(True for inner in walk.graphs(graph) for _ in mixtures(inner))


(routers,) = later(__package__, "routers")

FEATURE = Feature(
    noun="a mixture of experts",
    domains=(RUNTIME_DOMAIN,),
    written_as=frozenset({("MoE", "QMoE")}),
    rows={"store": tuple(map(Row, later(__package__, "store_experts")))},
    is_stored=is_stored,
    finer=routers,
)
