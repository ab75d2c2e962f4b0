"""A move for language models: tensors that lose most of a row on their grid stay in float.

A token, often the first of a text, may have numbers a thousand times as large as those of all others, which
one range for all rounds to zero. Error and power of the whole tensor do not show it: that token has nearly
all of both. The error of each row beside its own power does. Tensors are left in float in that order, twice
as many each time, until outputs are useful; the last that a model makes first, since a range that ends at
the largest logits of the samples cuts off those of another text.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import AnyArray, Feed
from ops.integers import dequantize, quantize
from transforms.graph.some_names import some_names
from transforms.judge.candidate_model import CandidateModel
from transforms.judge.constants import CANDIDATES, FEWEST, MAY_LOSE, USELESS
from transforms.judge.errors import Errors, gain
from transforms.judge.switchable_ranges import RangeSite
from transforms.moves.float_tensors import MOVE, keeping
from transforms.moves.improve import Best
from transforms.scheme import Scheme


def loses_tokens(best: Best, errors: Errors | None = None) -> bool:
    """Return whether the logits of a language model are of no use; other outputs do not make up for them."""
    reference = best.form.judge.reference
    tokens = reference.tokens(reference.outputs)
    return bool(tokens) and (errors or best.errors).of_outputs(tokens).mean < USELESS


def search_lost_rows(best: Best) -> None:
    """Leave as few tensors in float as make the outputs of a language model useful, if the judge accepts it.

    At most half of them.
    """
    model = best.form.model
    ordered = _ordered(best, model)
    tried, most = 0, len(ordered) // 2
    start, scheme, errors, names = best.errors, best.scheme, best.errors, list[str]()
    while loses_tokens(best, errors) and tried < most:
        tried = min(2 * tried or CANDIDATES, most)
        candidate = keeping(best.scheme, ordered[:tried])
        made = model.errors(candidate)
        if gain(made, errors).decibels > MAY_LOSE:
            scheme, errors, names = candidate, made, ordered[:tried]
    if errors is not start:
        best.take(MOVE, f"in float: {some_names(names)}", scheme, errors, MAY_LOSE)


def _ordered(best: Best, model: CandidateModel) -> list[str]:
    """Return the names of computed tensors: the logits first, then by the loss of a row, most first."""
    losses = _Losses(model, best.scheme)
    model.close()  # the float model is open next
    reference = best.form.judge.reference
    reference.watch(list(losses.sites), losses.add, FEWEST)
    made = losses.means
    return sorted(made, key=lambda name: (name not in reference.logits, -made[name]))


class _Losses:
    """The error of rows of tensors on their grids, as a share of the power of each row, at most 1."""

    def __init__(self, model: CandidateModel, scheme: Scheme) -> None:
        switched = {use.tensor for use in model.inputs.uses}
        sites = (site for site in model.inputs.ranges if site.scale and site.tensor in switched)
        self.sites = {site.tensor: site for site in sites}
        self._grids = model.grids(scheme, 0)
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, name: str, array: AnyArray) -> None:
        """Add the rows of a tensor, those along its last axis."""
        if not array.size:
            return
        rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
        error = (rows - _rounded(rows, self.sites[name], self._grids)).astype(np.float64)
        errors, powers = np.square(error).sum(-1), np.square(rows, dtype=np.float64).sum(-1)
        shares = np.minimum(errors, powers) / np.where(powers > 0, powers, 1)
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + float(shares.sum()), count + len(shares)

    @property
    def means(self) -> dict[str, float]:
        """The mean over rows, by name."""
        return {name: total / count for name, (total, count) in self._sums.items()}


def _rounded(rows: AnyArray, site: RangeSite, grids: Feed) -> AnyArray:
    scale, zero_point = grids[site.scale], grids[site.zero_point]
    whole = quantize(rows.astype(np.float32, copy=False), scale, zero_point, site.step.format)
    return dequantize(whole, scale, zero_point)
