"""Steps that rewrite parts of a quantized model to their stored form."""

from __future__ import annotations

from transforms import features
from transforms.conversion.rows import features_of, run_feature_rows
from transforms.graph.embeddings import tables
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work


def tie_heads(work: Work) -> int:
    """Let a head with a copy of an embedding table as its weight read the table; return how many do."""
    if not tables(work.graph):
        return 0
    from transforms.store_embeddings import tie_embeddings

    return tie_embeddings(work.graph)


def store_features(work: Work) -> None:
    """Enter the rows of features that store their parts."""
    run_feature_rows(work, features_of(work.graph), "store")


def write_interface(work: Work) -> None:
    """Enter the rows of features that change inputs and outputs, as options ask for."""
    run_feature_rows(work, features.asked_for(work.options), "interface")


def keep_unstored(work: Work) -> None:
    """Keep a copy of the graph before weights are stored in a form that may have no kernels here."""
    work.record.unstored = copy_graph(work.graph)
