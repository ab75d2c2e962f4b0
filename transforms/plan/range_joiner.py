"""Whether tensors that a node joins can have one scale and lose next to nothing by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from ops.integers import finite_range
from transforms.graph import walk
from transforms.plan.quant_spec import QuantSite

Extremes = Mapping[str, tuple[float, float]]
"""The lowest and the highest number of tensors, by name."""

_WIDER = math.sqrt(2)
"""How many times as wide a range may get: errors of rounding grow as much, by 3 dB or half a bit."""


class RangeJoiner:
    """Tells of one node after another whether all that it reads and makes may share a range."""

    def __init__(
        self,
        sites: Iterable[QuantSite],
        source: Callable[[gs.Tensor], gs.Tensor],
        group: Callable[[gs.Tensor], list[gs.Tensor]],
        extremes: Extremes,
    ) -> None:
        """Take the quantizations, the source of a tensor's scale, and the group of a tensor as it is now."""
        self._group, self._extremes = group, extremes
        self._stored: dict[int, tuple[float, float]] = {}
        self._sites: dict[int, list[QuantSite]] = {}
        for site in sites:
            self._sites.setdefault(id(source(site.tensor)), []).append(site)

    def is_alike(self, joining: gs.Node) -> bool:
        """Return whether one scale is at most half a bit coarser than that of each group that is read.

        What only the joining node reads loses nothing: that node's result is as coarse. The result itself
        gets coarser where a scale comes from a tensor of which only a part is joined.
        """
        groups = list(
            {id(one): one for one in map(self._group, (*joining.inputs, *joining.outputs))}.values()
        )
        sites = [[site for tensor in one for site in self._sites.get(id(tensor), ())] for one in groups]
        symmetric = any(step.symmetric for some in sites for site in some for step in site.steps)
        ranges = [found for one in groups if (found := self._range(one)) is not None]
        if len(ranges) < len(groups):
            return False

        def _width(low: float, high: float) -> float:
            return 2 * max(-low, high) if symmetric else high - low

        width = _width(min(low for low, _ in ranges), max(high for _, high in ranges))
        wider = [width > _WIDER * _width(*one) for one in ranges]
        return not any(
            is_wider and self._is_read(group, some, joining)
            for is_wider, group, some in zip(wider, groups, sites, strict=True)
        )

    def _range(self, group: list[gs.Tensor]) -> tuple[float, float] | None:
        """Return the lowest and highest number of a group, with 0; None if that of a tensor is not known."""
        found = [(0.0, 0.0)]
        for tensor in group:
            if isinstance(tensor, gs.Constant) and id(tensor) not in self._stored:
                low, high = finite_range(np.asarray(tensor.values, np.float32))
                self._stored[id(tensor)] = float(low), float(high)
            one = self._stored.get(id(tensor)) or self._extremes.get(tensor.name)
            if one is None:
                return None
            found.append(one)
        return min(low for low, _ in found), max(high for _, high in found)

    def _is_read(self, group: list[gs.Tensor], sites: list[QuantSite], joining: gs.Node) -> bool:
        """Return whether a joining node makes a tensor, or more than it and what moves it there read it."""
        return any(
            walk.producer(site.tensor) is joining
            or site.is_output
            or any(
                self._group(tensor) is not group
                for node, _ in site.uses
                if node is not joining
                for tensor in node.outputs
            )
            for site in sites
        )
