"""What a change of the model that is made costs its outputs, on random tokens."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph.embeddings import logits_of
from transforms.judge.budget import too_large
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work
from transforms.run.lifelike_feeds import FEEDS, lifelike_feeds

MOST = 0.005
"""Nats that a change by rule may cost."""


def random_cost(work: Work, changed: gs.Graph) -> float | None:
    """Return how far outputs of a changed graph are from those of the work's; None if it does not run so.

    Nats of rows of logits in the mean; without logits, ten times the share of the error in their power, so
    that 33 dB are .005.
    """
    if too_large(work.graph):
        return None
    logits = logits_of(work.graph)
    try:
        judge = Judge(work.graph, list(lifelike_feeds(work.graph, FEEDS)), work.run_here)
        errors = judge.errors_of(copy_graph(changed))
        places = [place for place, name in enumerate(judge.reference.outputs) if name in logits]
        return errors.of_outputs(places).relative if places else 10 * errors.relative
    except Exception:  # the runtime's exceptions share no narrower class
        return None
