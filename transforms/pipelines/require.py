"""Step: end the work where nothing of the model is quantized."""

from __future__ import annotations

from transforms.conversion.rows import features_of
from transforms.model.model_error import NothingToDoError
from transforms.pipelines.work import Work


def require(work: Work) -> None:
    """Raise NothingToDoError for a model that the scheme leaves as it is, unless parts are stored later."""
    if not (work.record.count or _is_stored_later(work)):
        raise NothingToDoError(f"no tensor of '{work.source}' can take a format of this scheme")


def _is_stored_later(work: Work) -> bool:
    """Return whether embeddings, or parts of features, are to be stored in few bits."""
    if work.options.embeddings:
        from transforms.graph.embeddings import tables

        if tables(work.graph):
            return True
    if not work.options.matmul_nbits:
        return False
    return any(feature.is_stored(work.graph) for feature in features_of(work.graph) if feature.is_stored)
