"""Make gates of metrics by name and of users' functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ops.legal_names import did_you_mean
from transforms.files.spelling import UsageError, spelled
from transforms.search.box_f1 import box_f1
from transforms.search.gate import Figures, Gate, of_each
from transforms.search.output_metrics import METRICS
from transforms.search.user_metric import LoadedMetric, UserMetric, load_metric, split_place

_SQNR, _KL, _F1 = "sqnr", "kl", "f1"

NAMES = (_SQNR, "top1", _KL, "cosine", _F1)
"""Metrics by name: those of METRICS, and F1 of boxes (:mod:`transforms.search.box_f1`)."""

_FIGURES: Mapping[str, Figures] = MappingProxyType(
    {
        "top1": of_each(lambda expected, made: METRICS["top1"].score([(expected, made)])),
        "cosine": of_each(lambda expected, made: METRICS["cosine"].score([(expected, made)])),
        _KL: of_each(lambda expected, made: -METRICS[_KL].score([(expected, made)])),
        _F1: of_each(box_f1),
    }
)


def gate_of(metric: UserMetric | str, least: float | None, loss: float | None) -> Gate:
    """Return the gate of a metric: a name, ``FILE.py:FUNCTION`` or a function, with one of the two bounds.

    Raises ValueError for an unknown name and for a file or function that cannot be used, UsageError for a
    bound that the metric does not have, and for a loss of 0, which no samples can show.
    """
    if loss == 0:
        why = "is no bound, since samples cannot show that nothing is lost: give the loss that is allowed"
        raise UsageError(spelled("{max_loss:0} ") + why)
    name, figures = named_figures(metric)
    is_own = metric not in NAMES
    if name == _SQNR and loss is not None:
        raise UsageError(spelled("{metric:sqnr} requires {min_metric}: the float model has no SQNR"))
    if name == _KL and least is not None:
        raise UsageError(spelled("{metric:kl} requires {max_loss}: less is better"))
    is_loss = loss is not None
    limit = loss if loss is not None else least
    assert limit is not None, "one of the bounds is given"
    is_whole = is_own or name == _F1
    return Gate(name, limit, loss=is_loss, figures=figures, whole=is_whole, scatters=is_own)


def plain_gate(metric: UserMetric | str) -> Gate:
    """Return the gate of a metric that any model passes; for ``kl``, whose figures are losses, as a loss."""
    return gate_of(metric, None, math.inf) if metric == _KL else gate_of(metric, -math.inf, None)


def named_figures(metric: UserMetric | str) -> tuple[str, Figures | None]:
    """Return the name of a metric for messages, and its figures; None for the SQNR."""
    if callable(metric):
        name = f"{getattr(metric, '__name__', type(metric).__name__)}()"
        return name, LoadedMetric(metric, f"metric '{name}'").figures
    if metric in NAMES:
        return metric, _FIGURES.get(metric)
    if ":" not in metric:
        legal = f"{', '.join(NAMES)} and FILE.py:FUNCTION are legal"
        raise ValueError(f"{spelled('{metric}')} is '{metric}'{did_you_mean(metric, NAMES) or ':'} {legal}")
    file, function = split_place(metric, "metric")
    return f"{Path(file).name}:{function}", load_metric(metric, "metric").figures
