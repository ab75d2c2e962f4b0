"""Greedy continuation by a language model: the most likely token at each step is fed back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from transforms.graph.embeddings import logits_of
from transforms.graph.state_outputs import found_pairs
from transforms.run.samples import IDS, MASK, POSITIONS, TYPES
from transforms.runtime.inputs import check_feed
from transforms.runtime.session import OpenModel

_LOGITS_RANK = 3  # texts, tokens, vocabulary


class GreedyWriter:
    """Continues texts with an open model, through its own caches if it has any.

    Without caches it reads the whole text at each step, which takes longer and gives the same tokens.
    """

    def __init__(self, model: OpenModel, graph: gs.Graph) -> None:
        """Take a model and its graph; ValueError unless it takes tokens and returns logits."""
        self._model, self._caches = model, found_pairs(graph)
        integers = [tensor.name for tensor in model.inputs if tensor.dtype.kind in "iu"]
        if IDS not in integers and len(model.inputs) > 1:
            raise ValueError(f"the model has no input '{IDS}' of tokens")
        if not integers:
            raise ValueError("the model has no input of tokens: none is of integers")
        self._ids = IDS if IDS in integers else integers[0]
        self._logits = self._find_logits(graph)

    def write(self, feed: Feed, count: int, name: str) -> AnyArray:
        """Return the next tokens of the fed texts, int64 [texts, count].

        No token ends a text early. ``name``: of the sample, for errors. Raises ValueError for a model that
        does not take texts of other lengths.
        """
        written: list[AnyArray] = []
        while True:
            names = [self._logits, *self._caches.values()]
            outputs = self._model.run(feed, names)
            written.append(outputs[self._logits][:, -1].argmax(-1).astype(np.int64)[:, None])
            if len(written) == count:
                return np.concatenate(written, 1)
            feed = self._next(feed, written[-1], outputs)
            check_feed(self._model.inputs, feed, f"{name}, token {len(written)}")

    def _next(self, feed: Feed, tokens: AnyArray, outputs: Mapping[str, AnyArray]) -> Feed:
        """Return the feed for the next tokens, [texts, 1]."""
        new = {self._ids: tokens, MASK: np.ones_like(tokens), TYPES: np.zeros_like(tokens)}
        if POSITIONS in feed:
            new[POSITIONS] = feed[POSITIONS][:, -1:] + 1
        grown = dict(feed)
        for key in feed.keys() & new.keys():
            alone = self._caches and key != MASK
            array = new[key].astype(feed[key].dtype)
            grown[key] = array if alone else np.concatenate([feed[key], array], 1)
        return grown | {fed: outputs[back] for fed, back in self._caches.items()}

    def _find_logits(self, graph: gs.Graph) -> str:
        """Return the output that is not a cache and has the rank of logits; of several, the named one."""
        ends = (
            output for output in self._model.session.get_outputs() if output.name not in self._caches.values()
        )
        candidates = [
            output.name for output in ends if len(output.shape) == _LOGITS_RANK and "float" in output.type
        ]
        if len(candidates) > 1:
            logits = logits_of(graph) or {"logits"}
            candidates = [name for name in candidates if name in logits] or candidates
        if len(candidates) != 1:
            raise ValueError(f"the model has {len(candidates)} outputs that may be logits, not one")
        return str(candidates[0])
