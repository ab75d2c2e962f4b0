"""Groups of tensors of one range while they grow, node by node, each step in the time of what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.plan.alike_ranges import Extremes, Group, are_alike, group_of
from transforms.plan.quant_spec import QuantSite


@dataclass
class _Known:
    """What is known of a group: its range, None if that of one tensor is not known; whether a grid of it is
    symmetric; and the quantizations that are outputs, or that nodes read whose results are not in the group.
    """

    range: Group | None
    symmetric: bool
    open_sites: list[QuantSite]


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
        self._source, self._group, self._extremes = source, group, extremes
        self._sites: dict[int, list[QuantSite]] = {}
        for site in sites:
            self._sites.setdefault(id(source(site.tensor)), []).append(site)
        self._known: dict[int, _Known] = {}

    def is_alike(self, joining: gs.Node) -> bool:
        """Return whether the tensors that a node joins lose next to nothing."""
        groups = self._groups(joining)
        known = [self._of(group) for group in groups]
        ranges = [
            Group(one.range.low, one.range.high, self._is_read(group, one, joining))
            for group, one in zip(groups, known, strict=True)
            if one.range is not None
        ]
        symmetric = any(one.symmetric for one in known)
        return len(ranges) == len(known) and are_alike(ranges, symmetric=symmetric)

    def merge(self, joined: gs.Node) -> None:
        """Note that the groups of the tensors of a node, which were found to be alike, become the first."""
        first, *others = map(self._of, self._groups(joined))
        for one in others:
            assert first.range is not None and one.range is not None, "they are alike"
            low, high = min(first.range.low, one.range.low), max(first.range.high, one.range.high)
            first.range = Group(low, high, is_read=True)
            first.symmetric |= one.symmetric
            first.open_sites += one.open_sites

    def _groups(self, node: gs.Node) -> list[list[gs.Tensor]]:
        return list({id(group): group for group in map(self._group, (*node.inputs, *node.outputs))}.values())

    def _of(self, group: list[gs.Tensor]) -> _Known:
        if id(group) not in self._known:
            own = [site for tensor in group for site in self._sites.get(id(tensor), ())]
            symmetric = any(step.symmetric for site in own for step in site.steps)
            self._known[id(group)] = _Known(group_of(group, self._extremes, is_read=True), symmetric, own)
        return self._known[id(group)]

    def _is_read(self, group: list[gs.Tensor], known: _Known, joining: gs.Node) -> bool:
        """Return whether a joining node makes a tensor, or more than it and what moves it there read it."""
        made = (tensor for tensor in joining.outputs if self._group(tensor) is group)
        sites = (site for tensor in made for site in self._sites.get(id(self._source(tensor)), ()))
        if any(walk.producer(site.tensor) is joining for site in sites):
            return True
        known.open_sites = [site for site in known.open_sites if self._is_open(site, group, None)]
        return any(self._is_open(site, group, joining) for site in known.open_sites)

    def _is_open(self, site: QuantSite, group: list[gs.Tensor], joining: gs.Node | None) -> bool:
        """Return whether a quantization is an output, or another node than one reads it out of its group."""
        others = (node for node, _ in site.uses if node is not joining)
        return site.is_output or any(
            self._group(tensor) is not group for node in others for tensor in node.outputs
        )
