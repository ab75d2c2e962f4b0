"""The figures of quality that tools print, held against what ONNX Runtime's outputs of the samples say.

A figure of some of the samples, sums over sums or a mean, lies between the least and the largest of single
samples and outputs, whichever samples a tool took. That bound is exact but for the order of sums.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from tests.attack.graphs.tool_runs import Fallen
from tests.attack.rolled import Feeds

_SLACK_OF_DB, _SLACK_OF_KL = 0.5, 0.1
_DB = re.compile(r"^Outputs: (?:SQNR )?(-?[\d.]+|inf) dB", re.MULTILINE)
_OTHERS = re.compile(r"^Outputs: KL .* other outputs? at (-?[\d.]+|inf) dB", re.MULTILINE)
_KL = re.compile(r"^Outputs: KL divergence of ([\d.e+-]+) nats", re.MULTILINE)
_MOST_KL = 0.5
"""Beyond which a result is refused, or a warning says so."""


def sqnr(right: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Return the dB of signal against error over pairs of arrays."""
    signal = sum(float(np.square(one.astype(np.float64)).sum()) for one in right)
    pairs = zip(right, found, strict=True)
    error = sum(float(np.square(a.astype(np.float64) - b.astype(np.float64)).sum()) for a, b in pairs)
    return 10 * np.log10(max(signal, 1e-30) / error) if error else np.inf


def divergence(right: np.ndarray, found: np.ndarray) -> float:
    """Return the KL divergence of logits in nats, the mean over rows."""
    one, other = (_log_softmax(array.astype(np.float64)) for array in (right, found))
    return float((np.exp(one) * (one - other)).sum(-1).mean())


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    lifted: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return lifted


def judge_said(
    said: str, right: Sequence[Feeds], runs: Sequence[Sequence[Feeds]], names: Sequence[str]
) -> None:
    """Raise Fallen for a figure that no choice of samples gives.

    ``right``: outputs of the float model by samples; ``runs``: those of the result, by session;
    ``names``: outputs that count, of those with logits these first.
    """
    levels = [(text, names) for text in _DB.findall(said)]
    levels += [(text, names[1:]) for text in _OTHERS.findall(said) if names[1:]]
    for text, of in levels:
        figures = list(_figures(right, runs, of))
        least, most = min(figures), max(figures)
        if not least - _SLACK_OF_DB <= float(text) <= most + _SLACK_OF_DB:
            raise Fallen(f"says {text} dB, but samples have {least:.1f} to {most:.1f} dB")
    for text in _KL.findall(said):
        figures = [
            divergence(a[names[0]], b[names[0]]) for run in runs for a, b in zip(right, run, strict=True)
        ]
        least, most = min(figures) * (1 - _SLACK_OF_KL) - 1e-6, max(figures) * (1 + _SLACK_OF_KL) + 1e-6
        if not least <= float(text) <= most:
            raise Fallen(f"says {text} nats, but samples have {min(figures):.3g} to {max(figures):.3g}")
        if min(figures) > _MOST_KL and "arning" not in said:
            raise Fallen(f"{min(figures):.3g} nats at the least, without a warning")


def _figures(
    right: Sequence[Feeds], runs: Sequence[Sequence[Feeds]], names: Sequence[str]
) -> Iterator[float]:
    """Yield dB of every sample and output: as it is, and without the mean of each row."""
    for run in runs:
        for expected, found in zip(right, run, strict=True):
            for name in names:
                pair = expected[name].astype(np.float64), found[name].astype(np.float64)
                yield sqnr(pair[:1], pair[1:])
                if pair[0].ndim > 1:
                    centered = [array - array.mean(-1, keepdims=True) for array in pair]
                    yield sqnr(centered[:1], centered[1:])
