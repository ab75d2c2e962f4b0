"""The sums over rows that layers are tuned on, collected from both models, layer by layer.

The targets of a layer come from the float model, which never changes; its inputs come from the quantized one,
whose earlier layers are tuned by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from transforms.finetune.layer_targets import limits_after, stream_of
from transforms.finetune.options import LayerwiseOptions, is_held_out
from transforms.finetune.row_sums import PartReader, RowsOfPart, RowSums, RowUser, part_name
from transforms.finetune.sample_rows import AHEAD, RowSampler, SampledRowReader, SampledRows
from transforms.finetune.shared_rows import SharedRowReader
from transforms.finetune.shared_stats import SharedGramStats
from transforms.layers.matched_layer import MatchedLayer
from transforms.run.activation_store import ActivationStore
from transforms.run.folder_store import FolderStore, parts_of
from transforms.run.segmented_model import SegmentedRun
from transforms.run.shared_steps import (
    SharedSteps,
    StepSharing,
    Visit,
    open_steps,
    pass_on,
)


@contextmanager
def open_sums(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    layers: Sequence[MatchedLayer],
    options: LayerwiseOptions,
    sharing: StepSharing | None = None,
) -> Iterator[GramReader]:
    """Hold both models before the first of the layers; their tensors are freed at the end."""
    with ExitStack() as opened:
        models = float_graph, quantized_graph
        if sharing is None:
            stores = [opened.enter_context(ActivationStore(options.memory_limit)) for _ in range(3)]
            yield GramReader(*models, feeds, layers, options, stores)
        else:
            steps = opened.enter_context(open_steps(sharing, len(feeds)))
            yield GramReader(*models, feeds, layers, options, steps)


class GramReader:
    """Runs both models through the layers, and through all users of the weight of each.

    ``held_out``: whether each of the samples is.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        feeds: Sequence[Feed],
        layers: Sequence[MatchedLayer],
        options: LayerwiseOptions,
        where: Sequence[ActivationStore] | SharedSteps,
    ) -> None:
        """Start before the first node of both.

        ``where``: three stores keep tensors of each and sampled rows; or workers do all that.
        """
        self._layers, self._count = layers, len(feeds)
        self.held_out = [is_held_out(i, len(feeds), options) for i in range(len(feeds))]
        users = [user for layer in layers for user in layer.users]
        ends = accumulate(len(layer.users) for layer in layers)
        self._numbers = [range(end - len(layer.users), end) for layer, end in zip(layers, ends, strict=True)]
        self._held = set(range(len(layers)))
        limits = [
            limits_after(float_graph, user.target) if options.following_relu else None for user in users
        ]
        pairs = zip(users, limits, strict=True)
        self._users = [RowUser.of(user, limit, options) for user, limit in pairs]
        streams = [stream for layer in layers for stream in _streams_of(float_graph, layer)]
        targets = [user.target for user in users] + [name for name in streams if name is not None]
        choice = RowSampler(len(feeds), options.most_rows, options.least_rows, options.seed)
        ahead = AHEAD if options.memory_limit is None else min(AHEAD, options.memory_limit)
        sources = [user.source.name for user in self._users]
        self._shared: tuple[SharedSteps, FolderStore, Path] | None = None
        self._wanted: SampledRowReader
        if isinstance(where, SharedSteps):
            floats, given, rows = (where.store(name) for name in ("float", "quantized", "rows"))
            self._shared = where, given, rows.folder
            self._reference = SegmentedRun(float_graph, feeds, targets, floats, options.run)
            stores = floats, rows
            self._wanted = SharedRowReader(where, self._reference, users, streams, choice, stores, ahead)
            self._given = SegmentedRun(quantized_graph, feeds, sources, given, options.run)
        else:
            self._reference = SegmentedRun(float_graph, feeds, targets, where[0], options.run)
            self._wanted = SampledRowReader(self._reference, users, streams, choice, where[2], ahead)
            self._given = SegmentedRun(quantized_graph, feeds, sources, where[1], options.run)

    @property
    def largest_step(self) -> int:
        """The most bytes that tensors of one sample had in a step: no limit keeps those from memory."""
        return max(self._reference.largest_step, self._given.largest_step)

    def read(self, number: int) -> tuple[SharedGramStats, SharedGramStats]:
        """Return a layer's sums over the rows of the fitting samples, and of the held-out ones.

        If several layers read its weight they can be read again, until they are forgotten. Rows of other
        layers are dropped at once.
        """
        kinds = [{one: RowSums(self._users[one]) for one in self._numbers[number]} for _ in range(2)]
        places = [int(is_held) for is_held in self.held_out]
        if self._shared is None:
            self._add_rows(number, kinds, places)
        else:
            self._merge_parts(number, kinds, places)
        users = self._layers[number].users
        has_bias = tuple(user.bias is not None and not user.bias.is_extra for user in users)
        fit, held = (
            SharedGramStats(tuple(sums.total() for sums in kind.values()), has_bias) for kind in kinds
        )
        return fit, held

    def skip(self, number: int) -> None:
        """Run both models as :meth:`read` does, without the sums."""
        if self._shared is None:
            for _ in self._rows(number):
                pass
        else:
            for _ in self._parts(number, pass_on):
                pass

    def forget(self, number: int) -> None:
        """Drop the cached inputs and targets of a layer."""
        if number not in self._held:
            return
        self._held.discard(number)
        for one in self._numbers[number]:
            self._wanted.forget(one)
            self._given.forget(self._users[one].source.name)

    def restart(self) -> None:
        """Run the quantized model again for later reads, since weights of layers that ran have changed."""
        self._given.restart()

    def _is_last(self, number: int) -> bool:
        """Return whether a layer is read for the last time, and note it."""
        last = not self._layers[number].sharing_layers
        if last:
            self._held.discard(number)
        return last

    def _names(self, number: int) -> list[str]:
        return [self._users[one].source.name for one in self._numbers[number]]

    def _rows(self, number: int) -> Iterator[tuple[list[tuple[SampledRows, AnyArray]], Feed]]:
        """Yield chosen rows and targets of each user, and inputs, sample by sample."""
        last = self._is_last(number)
        wanted = zip(*(self._wanted.read(one, last=last) for one in self._numbers[number]), strict=True)
        given = self._given.advance(self._names(number), last=last)
        for rows, inputs in zip(wanted, given, strict=True):
            yield list(rows), inputs

    def _add_rows(self, number: int, kinds: Sequence[Mapping[int, RowSums]], places: Sequence[int]) -> None:
        ends = {part.stop for part in parts_of(self._count)}
        for i, (rows, inputs) in enumerate(self._rows(number)):
            for sums, (chosen, made) in zip(kinds[places[i]].values(), rows, strict=True):
                sums.add(inputs[sums.user.source.name], made, chosen)
            if i + 1 in ends:
                for sums in (sums for kind in kinds for sums in kind.values()):
                    sums.end_part()

    def _parts(self, number: int, visit: Visit) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield what workers make of the inputs of a layer, part by part."""
        assert self._shared is not None, "there are workers"
        steps, store, _ = self._shared
        last, numbers = self._is_last(number), self._numbers[number]
        for one in numbers:
            self._wanted.prepare(one)
        yield from steps.run(self._given, store, self._names(number), visit, last=last)
        for one in numbers if last else ():
            self._wanted.forget(one)

    def _merge_parts(
        self, number: int, kinds: Sequence[Mapping[int, RowSums]], places: Sequence[int]
    ) -> None:
        assert self._shared is not None, "there are workers"
        users = {one: self._users[one] for one in self._numbers[number]}
        for arrays in self._parts(number, PartReader(users, self._shared[2], places)):
            for place, kind in enumerate(kinds):
                for one, sums in kind.items():
                    sums.merge(RowsOfPart.of(arrays, part_name(one, place)))


def _streams_of(graph: gs.Graph, layer: MatchedLayer) -> list[str | None]:
    """Return the residual stream of each user of a weight, or None for each unless all have one.

    Rows weighted by a stream cannot be summed with unweighted ones.
    """
    streams = [stream_of(graph, user.target) for user in layer.users]
    return [None] * len(streams) if None in streams else streams
