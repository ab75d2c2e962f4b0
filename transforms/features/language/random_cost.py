"""What a change of the model that is made costs its outputs, on random tokens."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph.embeddings import logits_of
from transforms.judge.budget import too_large
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work
from transforms.run.lifelike_feeds import lifelike_feeds

MOST = 0.02
"""Nats on random tokens that a change by rule may cost. Random tokens lose 1.5 to 4 times as much as a text,
from rounded weights as from rounded inputs: of a text these are about .005 to .013."""

SHARE = 10**-3.3
"""The share of the error in the power of outputs that are no logits, which counts as much: 33 dB."""

_FEEDS = 2


class RandomCost:
    """Tells how far outputs of changed graphs are from those of a work's graph as it was at first.

    ``is_text``: it makes logits of tokens.
    """

    def __init__(self, work: Work) -> None:
        """Run nothing yet."""
        self._work, self._taken = work, 0.0
        self._judge: Judge | None = None
        self.is_text = bool(logits_of(work.graph))

    def of(self, changed: gs.Graph) -> float | None:
        """Return what a changed graph costs beside the changes that were taken; None if it does not run so.

        Nats of rows of logits in the mean; without logits, the share of the error in their power, by the
        share that counts as much as ``MOST``.
        """
        work = self._work
        if too_large(work.graph):
            return None
        try:
            if self._judge is None:
                self._judge = Judge(work.graph, list(lifelike_feeds(work.graph, _FEEDS)), work.run_here)
            judge = self._judge
            errors = judge.errors_of(copy_graph(changed))
        except Exception:  # the runtime's exceptions share no narrower class
            return None
        places = judge.reference.tokens(judge.reference.outputs)
        cost = errors.of_outputs(places).relative if places else MOST / SHARE * errors.relative
        return max(0.0, cost - self._taken)

    def take(self, cost: float) -> None:
        """Count a change no more that is taken: errors of independent changes add up."""
        self._taken += cost
