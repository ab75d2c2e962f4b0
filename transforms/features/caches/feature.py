"""The feature of caches in few bits."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.conversion.rows import Row
from transforms.features.hooks import Feature, ModelView
from transforms.pipelines.later import later


def view(graph: gs.Graph) -> ModelView | None:
    """Return the view of a model with caches in few bits, or None for another model with 8-bit inputs."""
    from transforms.features.caches.cache_view import CacheView
    from transforms.features.caches.coded_caches import coded_caches

    caches = coded_caches(graph)
    return CacheView(caches) if caches else None


FEATURE = Feature(
    noun="a cache",
    rows={"interface": tuple(map(Row, later(__package__, "store_caches")))},
    view=view,
)
