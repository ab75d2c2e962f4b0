"""Samples of token ids: all else that a language model takes follows from them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ops.array_types import AnyArray
from transforms.runtime.inputs import ModelInput

IDS = "input_ids"
"""The input that takes tokens, where there are several inputs."""

MASK, POSITIONS, TYPES = "attention_mask", "position_ids", "token_type_ids"
"""Inputs that grow with the tokens."""

_CACHE = re.compile(r"past|cache", re.IGNORECASE)


def takes_tokens(inputs: Sequence[ModelInput]) -> bool:
    """Whether a model has several inputs, and one of them is for tokens."""
    return len(inputs) > 1 and any(one.name == IDS for one in inputs)


def token_feed(tokens: AnyArray, inputs: Sequence[ModelInput]) -> dict[str, np.ndarray]:
    """Return what a model is fed with for a text of tokens [n]: a batch of one, with nothing before it.

    Masks are ones, positions count from 0, types are zeros, and caches are empty: their first dimension is
    1, others that are free are 0. Raises ValueError for another input.
    """
    count = len(tokens)
    known = {
        IDS: tokens,
        MASK: np.ones(count),
        POSITIONS: np.arange(count),
        TYPES: np.zeros(count),
    }
    feed = {}
    for one in inputs:
        if one.name in known:
            feed[one.name] = np.asarray(known[one.name]).reshape(1, count).astype(one.dtype)
        elif _CACHE.search(one.name) and len(one.shape) > 1:
            shape = [1 if one.shape[0] is None else one.shape[0], *(size or 0 for size in one.shape[1:])]
            feed[one.name] = np.zeros(shape, one.dtype)
        else:
            raise ValueError(f"input '{one.name}' does not follow from tokens: it takes .npz samples")
    return feed
