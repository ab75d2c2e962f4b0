"""Step: end the work where nothing of the model is quantized."""

from __future__ import annotations

from transforms.graph.embeddings import tables
from transforms.model.model_error import NothingToDoError
from transforms.pipelines.work import Work


def require(work: Work) -> None:
    """Raise NothingToDoError for a model that the scheme leaves as it is, unless embeddings are stored."""
    if not (work.record.count or (work.options.embeddings and tables(work.graph))):
        raise NothingToDoError(f"no tensor of '{work.source}' can take a format of this scheme")
