"""Measure on random tokens what a change of a model costs its outputs."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph.embeddings import logits_of
from transforms.judge.budget import too_large
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work
from transforms.run.lifelike_feeds import lifelike_feeds

MOST = 0.02
"""Limit in nats, on random tokens, of a change made by rule. Random tokens lose 1.5 to 4 times as much as
text, whether weights or inputs are rounded: .005 to .013 nats on text."""

SHARE = 10**-3.3
"""Relative error power of other outputs that counts as ``MOST``: 33 dB."""

_FEEDS = 2


class RandomCost:
    """Measures how far outputs of changed graphs are from those of the graph at the start.

    ``is_text``: the model returns logits of tokens.
    """

    def __init__(self, work: Work) -> None:
        """Prepare; nothing is run yet."""
        self._work, self._taken = work, 0.0
        self._judge: Judge | None = None
        self.is_text = bool(logits_of(work.graph))

    def of(self, changed: gs.Graph) -> float | None:
        """Return the cost of a changed graph less that of the changes already taken; None if it does not run.

        The unit is mean nats of rows of logits. Without logits it is the error's share of the output power,
        scaled so that ``SHARE`` counts as ``MOST``.
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
        """Count the cost of an accepted change: errors of independent changes add up."""
        self._taken += cost
