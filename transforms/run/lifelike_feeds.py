"""Random feeds that resemble samples: tokens of the vocabulary, masks of ones.

They say nothing about a model's purpose. But which channels are outliers is mostly determined by weights: it
shows on random tokens too.
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
"""Operators that may stand between an input and its lookup in a table."""

FEEDS = 4
"""Number of random feeds where there are no samples."""

LENGTH = 32
"""Size of free dimensions after the first, which is 1: about a sentence, or a third of a second of speech."""


def lifelike_feeds(graph: gs.Graph, count: int, length: int = LENGTH, seed: int = 0) -> Iterator[Feed]:
    """Yield feeds for the inputs of a graph, the same for the same seed.

    Integers that are looked up in a table are drawn from all its rows; other integers, and booleans, are 1;
    floats are standard normal. Free dimensions with the same name have the same size: 1 if an input's first
    dimension has that name, else ``length``. Inputs derived from tokens are those of a text of that length
    without a past (:func:`transforms.run.samples.token_feed`). Raises ModelError for inputs that samples
    cannot have.
    """
    inputs, sizes, random = _sized(graph, length), _vocabularies(graph), np.random.default_rng(seed)
    declared = model_inputs(graph)
    for _ in range(count):
        feed = {one.name: _array(one, sizes.get(one.name, 0), random) for one in inputs}
        yield _text(feed, declared) or feed


def _text(feed: Feed, declared: Sequence[ModelInput]) -> Feed | None:
    """Return the feed derived from the tokens in a feed, if there are tokens, or None."""
    try:
        text = token_feed(feed[IDS].reshape(-1), declared) if takes_tokens(declared) else None
    except ValueError:
        return None
    return text


def _array(one: ModelInput, rows: int, random: np.random.Generator) -> AnyArray:
    shape = [size or 0 for size in one.shape]  # all dimensions have sizes here
    if one.dtype.kind in "iu" and rows:
        return random.integers(0, rows, shape).astype(one.dtype)
    return np.ones(shape, one.dtype) if one.dtype.kind in "iub" else random_array(one, random)


def _sized(graph: gs.Graph, length: int) -> list[ModelInput]:
    """Return the inputs of a graph with a size for each free dimension."""
    inputs = model_inputs(graph)
    named = {tensor.name: tensor.shape for tensor in graph.inputs}
    firsts = {named[wanted.name][0] for wanted in inputs if len(wanted.shape) > 1}

    def _size(name: object, declared: int | None, place: int) -> int:
        if declared is not None:
            return declared
        is_first = name in firsts if isinstance(name, str) else place == 0
        return 1 if is_first else length

    return [
        ModelInput(
            wanted.name,
            wanted.dtype,
            tuple(_size(named[wanted.name][i], declared, i) for i, declared in enumerate(wanted.shape)),
        )
        for wanted in inputs
    ]


def _vocabularies(graph: gs.Graph) -> dict[str, int]:
    """Return the row count of the smallest table in which an input is looked up, by the input's name."""
    found: dict[str, int] = {}
    for tensor in graph.inputs:
        uses = walk.uses_beyond(tensor, lambda node, index: index == 0 and onnx_op(node) in _PASSING)
        rows = [count for node, index in uses if index == 1 and (count := rows_looked_up(node))]
        if rows:
            found[str(tensor.name)] = min(rows)
    return found
