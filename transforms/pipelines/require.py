"""Step: end the work where nothing of the model is quantized."""

from __future__ import annotations

from transforms import features
from transforms.graph import walk
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
    opened = features.open_in(node.op for node in walk.nodes(work.graph))
    return any(feature.is_stored(work.graph) for feature in opened if feature.is_stored)
