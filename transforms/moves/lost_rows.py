"""A move for language models: leave tensors in float whose rows lose most on their grid.

A token, often the first of a text, may have values a thousand times as large as those of all others, which a
common range rounds to zero. The relative error of the whole tensor does not show it, since that token has
nearly all of its error and power. The error of each row relative to its own power does. Tensors are left in
float in this order, twice as many each time, until the outputs are useful; logits come first, since a range
that ends at the largest logits of the samples clips those of other texts.
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
    """Return whether the logits of a language model are of no use, whatever its other outputs."""
    reference = best.form.judge.reference
    tokens = reference.tokens(reference.outputs)
    return bool(tokens) and (errors or best.errors).of_outputs(tokens).mean < USELESS


def search_lost_rows(best: Best) -> None:
    """Leave the fewest tensors in float with which a language model is useful, if the judge accepts it.

    At most half of the tensors are left in float.
    """
    model = best.form.model
    ordered = _ordered(best, model)
    tried, most = 0, len(ordered) // 2
    start, scheme, errors, names = best.errors, best.scheme, best.errors, list[str]()
    while loses_tokens(best, errors) and tried < most:
        tried = min(2 * tried or CANDIDATES, most)
        candidate = keeping(best.scheme, ordered[:tried])
        candidate_errors = model.errors(candidate)
        if gain(candidate_errors, errors).decibels > MAY_LOSE:
            scheme, errors, names = candidate, candidate_errors, ordered[:tried]
    if errors is not start:
        best.take(MOVE, f"in float: {some_names(names)}", scheme, errors, MAY_LOSE)


def _ordered(best: Best, model: CandidateModel) -> list[str]:
    """Return the names of computed tensors: the logits first, then by decreasing loss of a row."""
    losses = _Losses(model, best.scheme)
    model.close()  # the float model is open next
    reference = best.form.judge.reference
    reference.watch(list(losses.sites), losses.add, FEWEST)
    losses_by_name = losses.means
    return sorted(losses_by_name, key=lambda name: (name not in reference.logits, -losses_by_name[name]))


class _Losses:
    """Measures the error of rows of tensors on their grids, relative to the power of each row, at most 1."""

    def __init__(self, model: CandidateModel, scheme: Scheme) -> None:
        switched = {use.tensor for use in model.inputs.uses}
        sites = (site for site in model.inputs.ranges if site.scale and site.tensor in switched)
        self.sites = {site.tensor: site for site in sites}
        self._grids = model.grids(scheme, 0)
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, name: str, array: AnyArray) -> None:
        """Add the rows of a tensor, which are along its last axis."""
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
        """The mean loss over rows, by name."""
        return {name: total / count for name, (total, count) in self._sums.items()}


def _rounded(rows: AnyArray, site: RangeSite, grids: Feed) -> AnyArray:
    scale, zero_point = grids[site.scale], grids[site.zero_point]
    integers = quantize(rows.astype(np.float32, copy=False), scale, zero_point, site.step.format)
    return dequantize(integers, scale, zero_point)
