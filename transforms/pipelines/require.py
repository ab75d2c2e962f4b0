"""Step: end the work where nothing of the model is quantized."""

from __future__ import annotations

from transforms.graph.embeddings import tables
from transforms.model.model_error import NothingToDoError
from transforms.pipelines.store_experts import has_experts
from transforms.pipelines.work import Work


def require(work: Work) -> None:
    """Raise NothingToDoError for a model that the scheme leaves as it is, unless parts are stored later."""
    options, graph = work.options, work.graph
    stored_later = (options.embeddings and tables(graph)) or (options.matmul_nbits and has_experts(graph))
    if not (work.record.count or stored_later):
        raise NothingToDoError(f"no tensor of '{work.source}' can take a format of this scheme")
