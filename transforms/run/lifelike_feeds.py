"""Random numbers that a model takes much as it takes samples: tokens of its vocabulary, masks of ones.

They say nothing of what a model is for. But which channels lie far outside of all others is mostly a matter
of weights: it shows on random tokens too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from transforms.graph import walk
from transforms.graph.embeddings import rows_looked_up
from transforms.graph.rewire import onnx_op
from transforms.run.samples import IDS, takes_tokens, token_feed
from transforms.runtime.inputs import ModelInput, model_inputs, random_array

_PASSING = frozenset({"Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Flatten"})
"""What may lie between an input and the lookup of its numbers as rows of a table."""

FEEDS = 4
"""How many of them stand for samples where there are none."""

LENGTH = 32
"""Size of free dimensions after the first, which is 1: about a sentence, or a third of a second of speech."""


def lifelike_feeds(graph: gs.Graph, count: int, length: int = LENGTH, seed: int = 0) -> Iterator[Feed]:
    """Yield feeds for the inputs of a graph, the same for the same seed.

    Integers whose numbers are rows of a table are drawn from all its rows, all others, and booleans, are 1;
    floats are standard normal. Free dimensions of one name have one size: 1 where the name is that of an
    input's first dimension, else ``length``. Inputs that follow from tokens are those of a text of that
    length with nothing before it (:func:`transforms.run.samples.token_feed`). Raises ModelError for inputs
    that samples cannot have.
    """
    inputs, sizes, random = _sized(graph, length), _vocabularies(graph), np.random.default_rng(seed)
    declared = model_inputs(graph)
    for _ in range(count):
        feed = {one.name: _array(one, sizes.get(one.name, 0), random) for one in inputs}
        yield _text(feed, declared) or feed


def _text(feed: Feed, declared: Sequence[ModelInput]) -> Feed | None:
    """Return the feed of the tokens in one, if it follows from them."""
    try:
        text = token_feed(feed[IDS].reshape(-1), declared) if takes_tokens(declared) else None
    except ValueError:
        return None
    return text


def _array(one: ModelInput, rows: int, random: np.random.Generator) -> AnyArray:
    shape = [size or 0 for size in one.shape]  # none is free any more
    if one.dtype.kind in "iu" and rows:
        return random.integers(0, rows, shape).astype(one.dtype)
    return np.ones(shape, one.dtype) if one.dtype.kind in "iub" else random_array(one, random)


def _sized(graph: gs.Graph, length: int) -> list[ModelInput]:
    """Return the inputs of a graph with a size for each free dimension."""
    inputs = model_inputs(graph)
    named = {tensor.name: tensor.shape for tensor in graph.inputs}
    firsts = {named[one.name][0] for one in inputs if len(one.shape) > 1}

    def _size(name: object, known: int | None, place: int) -> int:
        if known is not None:
            return known
        is_first = name in firsts if isinstance(name, str) else place == 0
        return 1 if is_first else length

    return [
        ModelInput(
            one.name,
            one.dtype,
            tuple(_size(named[one.name][i], known, i) for i, known in enumerate(one.shape)),
        )
        for one in inputs
    ]


def _vocabularies(graph: gs.Graph) -> dict[str, int]:
    """Return how many rows the smallest table has that an input's numbers are looked up in, by its name."""
    found: dict[str, int] = {}
    for tensor in graph.inputs:
        uses = walk.uses_beyond(tensor, lambda node, index: index == 0 and onnx_op(node) in _PASSING)
        rows = [count for node, index in uses if index == 1 and (count := rows_looked_up(node))]
        if rows:
            found[str(tensor.name)] = min(rows)
    return found
