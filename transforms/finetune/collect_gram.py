"""The sums over rows that layers are tuned on, collected from both models, layer by layer.

The targets of a layer come from the float model, which never changes; its inputs come from the quantized one,
whose earlier layers are tuned by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate

import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed, Float64Array
from transforms.finetune.diagonal_gram import DiagonalStats
from transforms.finetune.gram import GramStats, RowBlock, SharedGramStats
from transforms.finetune.layer_targets import limits_after, relax, stream_of
from transforms.finetune.options import LayerwiseOptions, is_held_out
from transforms.finetune.sample_rows import AHEAD, RowSampler, SampledRowReader
from transforms.finetune.stored_input import layer_input
from transforms.layers.matched_layer import MatchedLayer
from transforms.run.segmented_model import ActivationStore, SegmentedRun
from transforms.runtime.devices import array_module


@contextmanager
def open_sums(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    layers: Sequence[MatchedLayer],
    options: LayerwiseOptions,
) -> Iterator[GramReader]:
    """Hold both models before the first of the layers; their tensors are freed at the end."""
    with ExitStack() as opened:
        stores = [opened.enter_context(ActivationStore(options.memory_limit)) for _ in range(3)]
        yield GramReader(float_graph, quantized_graph, feeds, layers, options, stores)


class GramReader:
    """Runs both models through the layers, and through all users of the weight of each."""

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        feeds: Sequence[Feed],
        layers: Sequence[MatchedLayer],
        options: LayerwiseOptions,
        stores: Sequence[ActivationStore],
    ) -> None:
        """Start before the first node of both; three stores keep tensors of each and sampled rows."""
        floats, quantized, sampled = stores
        self._layers, self._options, self._count = layers, options, len(feeds)
        self._users = users = [user for layer in layers for user in layer.users]
        ends = accumulate(len(layer.users) for layer in layers)
        self._numbers = [range(end - len(layer.users), end) for layer, end in zip(layers, ends, strict=True)]
        self._held = set(range(len(layers)))
        self._limits = [
            limits_after(float_graph, user.target) if options.following_relu else None for user in users
        ]
        streams = [stream for layer in layers for stream in _streams_of(float_graph, layer)]
        targets = [user.target for user in users] + [name for name in streams if name is not None]
        self._reference = SegmentedRun(float_graph, feeds, targets, floats, options.run)
        choice = RowSampler(len(feeds), options.most_rows, options.least_rows, options.seed)
        ahead = AHEAD if options.memory_limit is None else min(AHEAD, options.memory_limit)
        self._wanted = SampledRowReader(self._reference, users, streams, choice, sampled, ahead)
        self._inputs = [layer_input(user.source) for user in users]
        sources = [one.name for one in self._inputs]
        self._given = SegmentedRun(quantized_graph, feeds, sources, quantized, options.run)

    @property
    def largest_step(self) -> int:
        """The most bytes that tensors of one sample had in a step: no limit keeps those from memory."""
        return max(self._reference.largest_step, self._given.largest_step)

    def read(self, number: int) -> tuple[SharedGramStats, SharedGramStats]:
        """Return a layer's sums over the rows of the fitting samples, and of the held-out ones.

        If several layers read its weight they can be read again, until they are forgotten. Rows of other
        layers are dropped at once.
        """
        numbers, last = self._numbers[number], not self._layers[number].sharing_layers
        if last:
            self._held.discard(number)
        fit, held = (self._no_sums(self._layers[number]) for _ in range(2))
        wanted = zip(*(self._wanted.read(one, last=last) for one in numbers), strict=True)
        given = self._given.advance([self._inputs[one].name for one in numbers], last=last)
        blocks = [[self._block(*pair) for pair in zip(numbers, s.parts, strict=True)] for s in (fit, held)]
        for i, (rows, inputs) in enumerate(zip(wanted, given, strict=True)):
            block = blocks[is_held_out(i, self._count, self._options)]
            for one, part, (chosen, made) in zip(numbers, block, rows, strict=True):
                layer, source = self._users[one].layer, self._inputs[one]
                stored = layer.rows(inputs[source.name], chosen.shape, chosen.picked, source.zero_point)
                part.add(stored, made, chosen.weights)
        for part in (part for block in blocks for part in block):
            part.flush()
        return fit.on_host(), held.on_host()

    def forget(self, number: int) -> None:
        """Drop the cached inputs and targets of a layer."""
        if number not in self._held:
            return
        self._held.discard(number)
        for one in self._numbers[number]:
            self._wanted.forget(one)
            self._given.forget(self._inputs[one].name)

    def restart(self) -> None:
        """Run the quantized model again for later reads, since weights of layers that ran have changed."""
        self._given.restart()

    def _no_sums(self, layer: MatchedLayer) -> SharedGramStats:
        groups, outputs, positions, channels = layer.layer.size
        inputs, most = positions * channels, self._options.most_inputs
        module = array_module(self._options.device)
        is_large = most is not None and inputs > most
        return SharedGramStats(
            tuple(
                DiagonalStats.of_weight(layer.float_weight.reshape(groups, outputs, -1))
                if is_large
                else GramStats.zeros(groups, outputs, inputs, module)
                for _ in layer.users
            ),
            tuple(user.bias is not None and not user.bias.is_extra for user in layer.users),
        )

    def _block(self, number: int, sums: GramStats) -> RowBlock:
        """Return the buffer that takes rows of a user's stored input and of its targets."""
        user, source, limits = self._users[number], self._inputs[number], self._limits[number]

        def _add(stored: AnyArray, made: AnyArray, weights: Float64Array | None) -> None:
            rows = source.read(stored)
            if limits is not None:
                near = rows @ user.float_weight.reshape(*made.shape[::2], -1).swapaxes(1, 2)
                made = relax(made, near + user.float_bias[:, None], limits)
            sums.add(rows, made, weights)

        return RowBlock(_add)


def _streams_of(graph: gs.Graph, layer: MatchedLayer) -> list[str | None]:
    """Return the residual stream of each user of a weight, or None for each unless all have one.

    Rows weighted by a stream cannot be summed with unweighted ones.
    """
    streams = [stream_of(graph, user.target) for user in layer.users]
    return [None] * len(streams) if None in streams else streams
