"""Step: refuse a model of which nothing was quantized."""

from __future__ import annotations

from transforms.conversion.rows import features_of
from transforms.model.model_error import NothingToDoError
from transforms.pipelines.work import Work


def require(work: Work) -> None:
    """Raise NothingToDoError if the scheme quantized nothing, unless later rows store parts in few bits."""
    if not (work.record.count or _is_stored_later(work)):
        raise NothingToDoError(f"no tensor of '{work.source}' can take a format of this scheme")


def _is_stored_later(work: Work) -> bool:
    """Return whether later rows store embeddings, or parts of features, in few bits."""
    if work.options.embeddings:
        from transforms.graph.embeddings import tables

        if tables(work.graph):
            return True
    if not work.options.matmul_nbits:
        return False
    return any(feature.is_stored(work.graph) for feature in features_of(work.graph) if feature.is_stored)
