"""What a language model writes by itself: the most likely token at each step, which is fed back."""

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
    """Continues texts with a model that is open, by its own caches if it has any.

    Without caches it reads the whole text again at each step, which takes longer and gives the same.
    """

    def __init__(self, model: OpenModel, graph: gs.Graph) -> None:
        """Take a model and its graph; ValueError if it does not take tokens and make logits."""
        self._model, self._caches = model, found_pairs(graph)
        integers = [one.name for one in model.inputs if one.dtype.kind in "iu"]
        if IDS not in integers and len(model.inputs) > 1:
            raise ValueError(f"the model has no input '{IDS}' of tokens")
        if not integers:
            raise ValueError("the model has no input of tokens: none is of integers")
        self._ids = IDS if IDS in integers else integers[0]
        self._logits = self._find_logits(graph)

    def write(self, feed: Feed, count: int, name: str) -> AnyArray:
        """Return the next tokens of the texts that are fed, int64 [texts, count].

        Nothing ends a text before. ``name``: of the sample, for errors. Raises ValueError for a model that
        takes no texts of other lengths.
        """
        found: list[AnyArray] = []
        while True:
            names = [self._logits, *self._caches.values()]
            made = self._model.run(feed, names)
            found.append(made[self._logits][:, -1].argmax(-1).astype(np.int64)[:, None])
            if len(found) == count:
                return np.concatenate(found, 1)
            feed = self._next(feed, found[-1], made)
            check_feed(self._model.inputs, feed, f"{name}, token {len(found)}")

    def _next(self, feed: Feed, tokens: AnyArray, made: Mapping[str, AnyArray]) -> Feed:
        """Return what is fed with the next tokens, [texts, 1]."""
        new = {self._ids: tokens, MASK: np.ones_like(tokens), TYPES: np.zeros_like(tokens)}
        if POSITIONS in feed:
            new[POSITIONS] = feed[POSITIONS][:, -1:] + 1
        grown = dict(feed)
        for key in feed.keys() & new.keys():
            alone = self._caches and key != MASK
            array = new[key].astype(feed[key].dtype)
            grown[key] = array if alone else np.concatenate([feed[key], array], 1)
        return grown | {fed: made[back] for fed, back in self._caches.items()}

    def _find_logits(self, graph: gs.Graph) -> str:
        """Return the output that is not a cache and has the rank of logits; of several, the known one."""
        ends = (one for one in self._model.session.get_outputs() if one.name not in self._caches.values())
        found = [one.name for one in ends if len(one.shape) == _LOGITS_RANK and "float" in one.type]
        if len(found) > 1:
            known = logits_of(graph) or {"logits"}
            found = [name for name in found if name in known] or found
        if len(found) != 1:
            raise ValueError(f"the model has {len(found)} outputs that may be logits, not one")
        return str(found[0])
