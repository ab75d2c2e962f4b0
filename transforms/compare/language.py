"""Losses of a language model in the field's figures, from its logits and those of its float model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ops.array_types import AnyArray, Float64Array
from ops.divergence import log_softmax
from transforms.compare.compare_results import ResultPair
from transforms.files.array_archive import read_arrays
from transforms.files.named_file import named
from transforms.run.array_files import read_array
from transforms.run.samples import IDS

_ROWS = 64  # logits per block: a vocabulary has 150,000 numbers


@dataclass(frozen=True)
class Language:
    """Figures over a number of ``tokens``.

    ``kl``: Kullback-Leibler divergence from the float model, in nats per token. ``same``: share of tokens (0
    to 1) with the same most likely successor. ``perplexity``: of both models, None without the texts.
    """

    tokens: int
    kl: float
    same: float
    perplexity: tuple[float, float] | None = None


@dataclass(frozen=True)
class Greedy:
    """Texts written by two models, ``texts`` of ``tokens`` each, by their own most likely tokens.

    ``same``: share of positions (0 to 1) with the same token. ``first``: number of tokens before the first
    difference, averaged over texts.
    """

    texts: int
    tokens: int
    same: float
    first: float


def compare_tokens(pairs: Sequence[ResultPair]) -> Greedy:
    """Return how far texts written by two models agree: results of integers [texts, tokens].

    Raises ValueError for other results, or texts with different lengths.
    """
    arrays = [(read_array(pair.baseline), read_array(pair.quantized)) for pair in pairs]
    shape = arrays[0][0].shape
    for pair, both in zip(pairs, arrays, strict=True):
        for ids in both:
            if ids.ndim != len(shape) or ids.shape[-1] != shape[-1] or ids.dtype.kind not in "iu":
                raise ValueError(f"'{pair.quantized}': {ids.dtype} {list(ids.shape)} beside {list(shape)}")
    same = np.concatenate([np.atleast_2d(left == right) for left, right in arrays])
    texts, tokens = same.shape
    return Greedy(texts, tokens, float(same.mean()), float(same.cumprod(1).sum(1).mean()))


def compare_logits(pairs: Sequence[ResultPair], output: str, texts: Path | None = None) -> Language:
    """Return figures from results of an output with logits [..., tokens, vocabulary].

    ``output``: its name; results of a single output have none. ``texts``: a folder with the tokens of each
    result, by the same name: .npy, in which each row may be a text, or .npz with ``input_ids``; or one .npy
    file, with one text for each result in order. The next token of each, except for the last of a text,
    gives the perplexity. Raises ValueError for results without such an output, or that do not fit.
    """
    chosen = [pair for pair in pairs if pair.is_of(output)]
    if not chosen:
        named = ", ".join(dict.fromkeys(repr(pair.output) for pair in pairs))
        raise ValueError(f"there are no results of an output '{output}', there are: {named}")
    sums, losses = np.zeros(3), list[Float64Array]()
    for pair in chosen:
        float_rows, quantized_rows = (_rows(path) for path in (pair.baseline, pair.quantized))
        if float_rows.shape != quantized_rows.shape:
            raise ValueError(
                f"'{pair.quantized}' has logits {list(quantized_rows.shape)}, not {list(float_rows.shape)}"
            )
        following = _following(texts, pair, float_rows.shape) if texts else None
        for part in _parts(float_rows, quantized_rows, following):
            sums += part[0]
            losses.append(part[1])
    count, kl, same = sums
    loss = np.concatenate(losses).reshape(-1, 2)
    perplexity = (math.exp(loss[:, 0].mean()), math.exp(loss[:, 1].mean())) if len(loss) else None
    return Language(int(count), kl / count, same / count, perplexity)


def _rows(path: Path) -> AnyArray:
    array = read_array(path)
    if not array.shape[:-1] or array.dtype.kind != "f":
        raise ValueError(f"'{path}' of {array.dtype} {list(array.shape)} holds no logits")
    return array.reshape(-1, array.shape[-1])


def _parts(
    float_logits: AnyArray, quantized_logits: AnyArray, following: AnyArray | None
) -> Iterator[tuple[Float64Array, Float64Array]]:
    """Yield counts, divergences and agreements of blocks of rows, and both losses at the following token."""
    for first in range(0, len(float_logits), _ROWS):
        rows = slice(first, first + _ROWS)
        p, q = log_softmax(float_logits[rows]), log_softmax(quantized_logits[rows])
        kl = (np.exp(p) * (p - q)).sum()
        same = (p.argmax(-1) == q.argmax(-1)).sum()
        losses = np.zeros((0, 2))
        if following is not None:
            ids = following[rows]
            following_rows = np.flatnonzero(ids >= 0)
            losses = -np.stack(
                [p[following_rows, ids[following_rows]], q[following_rows, ids[following_rows]]], -1
            )
        yield np.array([len(p), kl, same]), losses


def _following(texts: Path, pair: ResultPair, shape: Sequence[int]) -> AnyArray:
    """Return the token after that of each row of logits, -1 after the last of a text."""
    stem = Path(pair.name).stem
    text, _, row = stem.rpartition("-")
    paths = [texts / f"{stem}.npz", texts / f"{stem}.npy", texts / f"{text}.npy"]
    path = texts if texts.is_file() else next(filter(Path.is_file, paths), None)
    if path is None:
        raise FileNotFoundError(f"'{texts}' has no tokens '{stem}.npz' or '{stem}.npy'")
    ids = read_array(path) if path.suffix == ".npy" else _ids(path)
    number = int(stem) if path is texts and stem.isdecimal() else None
    if path.parent == texts and path.stem != stem and row.isdecimal():
        number = int(row) - 1
    if number is not None and ids.ndim == 2 and number < len(ids):
        ids = ids[number]
    if ids.dtype.kind not in "iu" or ids.size != shape[0] or (ids.size and ids.max() >= shape[1]):
        raise ValueError(f"'{path}' has tokens {ids.dtype} {list(ids.shape)}, for logits {list(shape)}")
    ends = np.full((*ids.shape[:-1], 1), -1)
    return np.concatenate([ids[..., 1:].astype(np.int64), ends], -1).reshape(-1)


def _ids(path: Path) -> AnyArray:
    with named(path):
        arrays = read_arrays(path)
        if IDS not in arrays:
            raise ValueError(f"there is no array '{IDS}', there are {', '.join(arrays)}")
        return arrays[IDS]
