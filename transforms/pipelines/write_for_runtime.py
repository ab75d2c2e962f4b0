"""Steps that bring the quantized model into the form in which its parts are stored."""

from __future__ import annotations

from transforms import features
from transforms.conversion.rows import features_of, run_feature_rows
from transforms.graph.embeddings import tables
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work


def tie_heads(work: Work) -> int:
    """Let a head in float read its table, in a model with tables."""
    if not tables(work.graph):
        return 0
    from transforms.store_embeddings import tie_embeddings

    return tie_embeddings(work.graph)


def store_features(work: Work) -> None:
    """Enter the rows that features have for the form in which their parts are stored."""
    run_feature_rows(work, features_of(work.graph), "store")


def write_interface(work: Work) -> None:
    """Enter the rows that features have for the form of inputs and outputs, as options ask for it."""
    run_feature_rows(work, features.asked_for(work.options), "interface")


def keep_unstored(work: Work) -> None:
    """Keep the graph before weights get another form, for which this machine may have no kernels."""
    work.record.unstored = copy_graph(work.graph)
