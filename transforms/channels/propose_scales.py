"""Which channels between convolutions are scaled, so that all use the range of their tensor.

A tensor of 8 bits has one step for all channels: small ones keep few bits beside large ones. The error that
layers get from that, and from the rounding of their weights, follows from the largest number and the mean
square of each channel. Unseen samples hold larger numbers: every channel gets headroom for twice its largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Float64Array
from transforms.channels.scale_channels import Span, SpanFinder
from transforms.channels.scaled_layer import weight_view
from transforms.graph.selection import Exclusion, resolve
from transforms.scheme import Scheme
from transforms.scheme.outlier_move import OutlierMove

_LEAST, _LEAST_GATED = 3.0, 8.0  # dB that a layer has to gain, also for the Mul that a gate needs
_HEADROOM = 1.0  # power of two that no other channel gets nearer to the largest
_LARGEST = 7  # exponent: a constant of 8 bits holds its powers of two
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


def find_spans(graph: gs.Graph, *, exclude: Exclusion = None) -> list[Span]:
    """Return the tensors between convolutions whose channels can be scaled."""
    return SpanFinder(graph, resolve(exclude, graph)).spans(graph)


def sizes_of(spans: Sequence[Span]) -> dict[str, ChannelSizes]:
    """Return empty sizes of the tensors that :func:`propose_scales` asks for, by name, to be filled."""
    return {str(tensor.name): ChannelSizes() for span in spans for tensor in (span.read, span.before)}


def levels_of(scheme: Scheme) -> tuple[float, float] | None:
    """Return the steps from zero to the largest activation and weight, None if both are not integers."""
    formats = scheme.format(scheme.activation), scheme.format(scheme.weight)
    if formats[0] is None or not all(one and one.is_integer for one in formats):
        return None
    activation, weight = (float(2 ** (one.bits - 1) - 1) for one in formats if one)
    return activation if scheme.is_symmetric(formats[0]) else 2 * activation + 1, weight


def propose_scales(
    spans: Sequence[Span], sizes: Mapping[str, ChannelSizes], *, levels: tuple[float, float]
) -> dict[str, OutlierMove]:
    """Return moves for :func:`transforms.scale_channels.scale_channels`, by the names of tensors.

    They are entries of a scheme's ``outliers``, written with ``str``. ``sizes``: of a few samples of the
    float model; ``levels``: of the scheme (:func:`levels_of`). A move has to gain 3 dB in the layers that
    read the tensor, 8 dB if a gate needs another Mul.
    """
    moves = {str(span.read.name): _move(span, sizes, levels) for span in spans}
    return {name: move for name, move in moves.items() if move is not None}


def _move(span: Span, sizes: Mapping[str, ChannelSizes], levels: tuple[float, float]) -> OutlierMove | None:
    """Return the move with the least error of the layers that read a tensor, None if it gains too little."""
    read, before = sizes[str(span.read.name)], sizes[str(span.before.name)]
    if read.count < _FEWEST or not np.max(read.largest) > 0:
        return None
    squares = np.asarray(read.squares) / read.samples
    ranges = [
        np.asarray(sizes_of.largest, np.float64) for sizes_of in ((read, before) if span.gate else (read,))
    ]
    consumers = [_Consumer.of(node, span.channels, levels[1]) for node in span.consumers]

    def _error(exponents: Float64Array) -> float:
        factors = np.exp2(exponents)
        steps = sum(
            share * ((factors * each).max() / levels[0]) ** 2
            for each, share in zip(ranges, (1.0, _GATED), strict=False)
        )
        return float(sum(consumer.error(factors, steps, squares) for consumer in consumers))

    tried = [_toward(each, share) for each in ranges for share in _SHARES]
    errors = [_error(exponents) for exponents in tried]
    best = int(np.argmin(errors))
    least = _LEAST_GATED if span.gate else _LEAST
    if not errors[best] * 10 ** (least / 10) <= _error(np.zeros(span.channels)):
        return None
    chosen = tried[best].astype(int).tolist()
    return OutlierMove({channel: -power for channel, power in enumerate(chosen) if power})


def _toward(ranges: Float64Array, share: float) -> Float64Array:
    """Return the powers of two that bring channels a share of the way to the largest, less some headroom."""
    ratios = np.log2(ranges.max() / np.maximum(ranges, ranges.max() * 2.0**-10))
    return np.clip(np.floor(share * ratios - _HEADROOM), 0, _LARGEST)


@dataclass(frozen=True)
class _Consumer:
    """The weight of a layer: ``squares`` [channels] summed over all outputs, and ``largest`` [groups,
    outputs, inputs] of ``taps`` numbers each; ``levels``: its steps from zero to the largest number.
    """

    squares: Float64Array
    largest: Float64Array
    taps: int
    levels: float

    @classmethod
    def of(cls, node: gs.Node, channels: int, levels: float) -> _Consumer:
        """Measure the weight of a node; several of its inputs may be one channel, after a Flatten."""
        view = weight_view(node.op, node.attrs, node.inputs[1].values)
        values = view.reshape(*view.shape[:2], channels // len(view), -1)
        squares = np.square(values, dtype=np.float64).sum(axis=(1, 3)).reshape(-1)
        return cls(squares, np.abs(values).max(axis=3).astype(np.float64), values.shape[3], levels)

    def error(self, factors: Float64Array, steps: float, squares: Float64Array) -> float:
        """Return the squared error of the results by that of their size.

        ``factors``: of channels. ``steps``: squares of steps of what is read. ``squares``: mean squares of
        the channels.
        """
        shape = self.largest.shape[0], 1, self.largest.shape[2]
        weights = np.square((self.largest / factors.reshape(shape)).max(axis=2) / self.levels).sum(axis=1)
        inputs = (factors**2 * squares).reshape(shape).sum(axis=(1, 2)) * self.taps
        signal = float(self.squares @ squares)
        error = steps * float((self.squares / factors**2).sum()) + float(weights @ inputs)
        return error / signal if signal > 0 else 0.0
