"""Collect the sums over rows on which layers are tuned from both models, layer by layer.

The targets of a layer come from the float model, which never changes; its inputs come from the quantized
model, whose earlier layers are already tuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate

import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from transforms.finetune.layer_stats import SharedGramStats
from transforms.finetune.layer_targets import limits_after
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.row_sums import RowSums, RowUser
from transforms.finetune.sample_rows import AHEAD, RowSampler, SampledRowReader, SampledRows
from transforms.judge.sample_roles import is_held_out
from transforms.layers.matched_layer import MatchedLayer
from transforms.run.kept_arrays import ActivationStore
from transforms.run.segmented_model import SegmentedRun
from transforms.run.workers import Workers


@contextmanager
def open_sums(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    layers: Sequence[MatchedLayer],
    options: FinetuneOptions,
    workers: Workers | None = None,
) -> Iterator[GramReader]:
    """Hold both models before the first of the layers; their tensors are freed at the end."""
    with ExitStack() as opened:
        stores = [opened.enter_context(ActivationStore(options.memory_limit)) for _ in range(3)]
        yield GramReader(float_graph, quantized_graph, feeds, layers, options, stores, workers)


class GramReader:
    """Runs both models through the layers, and through all users of each layer's weight.

    ``held_out``: for each sample, whether it is held out.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        feeds: Sequence[Feed],
        layers: Sequence[MatchedLayer],
        options: FinetuneOptions,
        stores: Sequence[ActivationStore],
        workers: Workers | None = None,
    ) -> None:
        """Start before the first node of both models.

        Three ``stores`` keep tensors of each model and sampled rows. ``workers`` run the models, if given.
        """
        self._layers = layers
        self.held_out = [is_held_out(i, len(feeds), options.held_out) for i in range(len(feeds))]
        users = [user for layer in layers for user in layer.users]
        ends = accumulate(len(layer.users) for layer in layers)
        self._numbers = [range(end - len(layer.users), end) for layer, end in zip(layers, ends, strict=True)]
        self._held = set(range(len(layers)))
        limits = [
            limits_after(float_graph, user.target) if options.following_relu else None for user in users
        ]
        pairs = zip(users, limits, strict=True)
        self._users = [RowUser.of(user, limit, options.device) for user, limit in pairs]
        choice = RowSampler(len(feeds), options.most_rows, options.least_rows, options.seed)
        ahead = AHEAD if options.memory_limit is None else min(AHEAD, options.memory_limit)
        sources = [user.source.name for user in self._users]
        self._reference = SegmentedRun(
            float_graph, feeds, [user.target for user in users], stores[0], options.run, workers
        )
        self._wanted = SampledRowReader(self._reference, users, choice, stores[2], ahead)
        self._given = SegmentedRun(quantized_graph, feeds, sources, stores[1], options.run, workers)

    @property
    def largest_step(self) -> int:
        """The most bytes of one sample's tensors in a step, which no memory limit can reduce."""
        return max(self._reference.largest_step, self._given.largest_step)

    def read(self, number: int) -> tuple[SharedGramStats, SharedGramStats]:
        """Return a layer's sums over the rows of the fitting samples, and of the held-out ones.

        If several layers read its weight, they can be read again until they are forgotten. Rows of other
        layers are dropped at once.
        """
        layer_users = [self._users[place] for place in self._numbers[number]]
        kinds = [[RowSums(user, is_held=is_held) for user in layer_users] for is_held in (False, True)]
        for is_held, (rows, inputs) in zip(self.held_out, self._rows(number), strict=True):
            for sums, (chosen, targets) in zip(kinds[is_held], rows, strict=True):
                sums.add(inputs[sums.user.source.name], targets, chosen)
        users = self._layers[number].users
        has_bias = tuple(user.bias is not None and not user.bias.is_extra for user in users)
        fit, held = (SharedGramStats(tuple(sums.total() for sums in kind), has_bias) for kind in kinds)
        return fit, held

    def skip(self, number: int) -> None:
        """Run both models to a finished layer, in the same steps as when it was tuned.

        Kernels of other steps would sum in another order, and later layers would differ.
        """
        for _ in self._rows(number):
            pass

    def forget(self, number: int) -> None:
        """Drop the cached inputs and targets of a layer."""
        if number not in self._held:
            return
        self._held.discard(number)
        for place in self._numbers[number]:
            self._wanted.forget(place)
            self._given.forget(self._users[place].source.name)

    def restart(self) -> None:
        """Run the quantized model again on later reads, since weights of layers that ran have changed."""
        self._given.restart()

    def _is_last(self, number: int) -> bool:
        """Return whether a layer is read for the last time, and record it."""
        last = not self._layers[number].sharing_layers
        if last:
            self._held.discard(number)
        return last

    def _names(self, number: int) -> list[str]:
        return [self._users[place].source.name for place in self._numbers[number]]

    def _rows(self, number: int) -> Iterator[tuple[list[tuple[SampledRows, AnyArray]], Feed]]:
        """Yield sampled rows and targets of each user, and inputs, sample by sample."""
        last = self._is_last(number)
        wanted = zip(*(self._wanted.read(place, last=last) for place in self._numbers[number]), strict=True)
        given = self._given.advance(self._names(number), last=last)
        for rows, inputs in zip(wanted, given, strict=True):
            yield list(rows), inputs
