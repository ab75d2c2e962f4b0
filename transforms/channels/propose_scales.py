"""Which channels between convolutions are scaled, so that all use the range of their tensor.

A tensor of 8 bits has one step for all channels: small ones keep few bits beside large ones. The error that
layers get from that, and from the rounding of their weights, follows from the largest number and the mean
square of each channel. Unseen samples hold larger numbers: every channel gets headroom for twice its largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float64Array
from transforms.channels.factors import as_move, raised
from transforms.channels.per_channel import Exponents, inputs_of
from transforms.channels.sites import CONVOLUTIONS, Site, SiteFinder
from transforms.graph.selection import Exclusion, resolve
from transforms.scheme import Scheme
from transforms.scheme.outlier_move import OutlierMove

_LEAST, _LEAST_GATED = 3.0, 8.0  # dB that a layer has to gain, also for the Mul that a gate needs
_SHARES = (0.25, 0.5, 0.75, 1.0)  # of the distance to equal ranges
_FEWEST = 256  # numbers of a channel, of which its largest is known
_SQUARED = 4096  # numbers of a channel and sample whose squares are taken
_GATED = 0.5  # mean square of the slope of a gated function


@dataclass
class ChannelSizes:
    """The largest magnitude and the mean square of each channel [channels] of a tensor over samples."""

    largest: Float64Array | float = 0.0
    squares: Float64Array | float = 0.0
    count: int = 0
    samples: int = 0

    def add(self, array: AnyArray) -> None:
        """Add the tensor of one sample, with channels on axis 1."""
        rows = array.reshape(*array.shape[:2], -1)
        self.largest = np.maximum(self.largest, np.maximum(rows.max(axis=(0, 2)), -rows.min(axis=(0, 2))))
        some = rows[:, :, :: max(1, rows.shape[2] // _SQUARED)]
        self.squares = self.squares + np.square(some, dtype=np.float64).mean(axis=(0, 2))
        self.count += array.size // array.shape[1]
        self.samples += 1


def find_sites(graph: gs.Graph, *, exclude: Exclusion = None) -> list[Site]:
    """Return the tensors between convolutions whose channels can be scaled."""
    return SiteFinder(graph, resolve(exclude, graph)).between_convolutions()


def sizes_of(sites: Sequence[Site]) -> dict[str, ChannelSizes]:
    """Return empty sizes of the tensors that :func:`propose_scales` asks for, by name, to be filled."""
    return {str(tensor.name): ChannelSizes() for site in sites for tensor in (site.tensor, site.gated)}


def levels_of(scheme: Scheme) -> tuple[float, float] | None:
    """Return the steps from zero to the largest activation and weight, None if both are not integers."""
    formats = scheme.format(scheme.activation), scheme.format(scheme.weight)
    if formats[0] is None or not all(one and one.is_integer for one in formats):
        return None
    activation, weight = (float(2 ** (one.bits - 1) - 1) for one in formats if one)
    return activation if scheme.is_symmetric(formats[0]) else 2 * activation + 1, weight


def propose_scales(
    sites: Sequence[Site], sizes: Mapping[str, ChannelSizes], *, levels: tuple[float, float]
) -> dict[str, OutlierMove]:
    """Return moves for :func:`transforms.scale_channels.scale_channels`, by the names of tensors.

    They are entries of a scheme's ``outliers``, written with ``str``. ``sizes``: of a few samples of the
    float model; ``levels``: of the scheme (:func:`levels_of`). A move has to gain 3 dB in the layers that
    read the tensor, 8 dB if a gate needs another Mul.
    """
    moves = {str(site.tensor.name): _move(site, sizes, levels) for site in sites}
    return {name: move for name, move in moves.items() if move is not None}


def _move(site: Site, sizes: Mapping[str, ChannelSizes], levels: tuple[float, float]) -> OutlierMove | None:
    """Return the move with the least error of the layers that read a tensor, None if it gains too little."""
    read, gated = sizes[str(site.tensor.name)], sizes[str(site.gated.name)]
    if read.count < _FEWEST or not np.max(read.largest) > 0:
        return None
    squares = np.asarray(read.squares) / read.samples
    ranges = [np.asarray(one.largest, np.float64) for one in ((read, gated) if site.gate else (read,))]
    errors = [_error_of(weight.node, squares, levels[1]) for weight in site.consuming]

    def _error(exponents: Exponents) -> float:
        factors = np.exp2(-exponents)
        steps = sum(
            share * ((factors * each).max() / levels[0]) ** 2
            for each, share in zip(ranges, (1.0, _GATED), strict=False)
        )
        return float(sum(error(factors, steps) for error in errors))

    least = min((raised(each, share) for each in ranges for share in _SHARES), key=_error)
    gain = 10 ** ((_LEAST_GATED if site.gate else _LEAST) / 10)
    is_worth = _error(least) * gain <= _error(np.zeros(site.channels, np.int64))
    return as_move(least) if is_worth else None


def _error_of(node: gs.Node, squares: Float64Array, levels: float) -> Callable[[Float64Array, float], float]:
    """Return the squared error of a layer's results by that of their size.

    It is a function of the factors of the channels that it reads, and of the squared step of these numbers.
    ``squares``: mean squares of channels; ``levels``: steps of a weight from zero to the largest number.
    """
    view = _weight_view(node)  # of which several inputs may be one channel, after a Flatten
    weights = view.reshape(*view.shape[:2], len(squares) // len(view), -1)
    of_weights = np.square(weights, dtype=np.float64).sum(axis=(1, 3)).reshape(-1)
    largest = np.abs(weights).max(axis=3).astype(np.float64)
    taps, shape = weights.shape[3], (largest.shape[0], 1, largest.shape[2])
    signal = float(of_weights @ squares)

    def _error(factors: Float64Array, steps: float) -> float:
        rounding = np.square((largest / factors.reshape(shape)).max(axis=2) / levels).sum(axis=1)
        inputs = (factors**2 * squares).reshape(shape).sum(axis=(1, 2)) * taps
        error = steps * float((of_weights / factors**2).sum()) + float(rounding @ inputs)
        return error / signal if signal > 0 else 0.0

    return _error


def _weight_view(node: gs.Node) -> NDArray[np.float32]:
    """Return the weight of a layer as a view [groups, outputs of a group, inputs of a group, taps]."""
    values = node.inputs[1].values
    if node.op not in CONVOLUTIONS:
        return inputs_of(node).rows(values).T[None, :, :, None]
    groups = int(node.attrs.get("group", 1))
    view = values.reshape(groups, -1, values.shape[1], math.prod(values.shape[2:]))
    return view if node.op == "Conv" else view.swapaxes(1, 2)
