"""Sums over rows of a layer, added part after part of the samples, by this process or by others.

Blocks of rows end with the part, and are added in the order of the samples. Rows that are too few for a block
wait for those of later parts. So the order of all additions depends on the samples alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ops.array_types import AnyArray, Float64Array
from transforms.finetune.diagonal_gram import DiagonalStats
from transforms.finetune.gram import GramStats, Joined, RowBlock
from transforms.finetune.layer_targets import Limits, relax
from transforms.finetune.options import LayerwiseOptions
from transforms.finetune.row_stats import LEAST_INPUTS, RowStats
from transforms.finetune.sample_rows import SampledRows
from transforms.finetune.shared_rows import read_rows, rows_of
from transforms.finetune.shared_stats import LayerStats
from transforms.finetune.stored_input import LayerInput, layer_input
from transforms.layers.linear_layer import LinearLayer
from transforms.layers.matched_layer import MatchedLayer
from transforms.runtime.devices import array_module

_SUMS = ("count", "x", "y", "xx", "yx", "yy")


@dataclass(frozen=True)
class RowUser:
    """What the rows of a user of a weight depend on; any process can take it.

    With ``limits``, at which errors are cut off: the float ``weight`` [G, N, K] and ``bias`` [G, N].
    ``is_diagonal``: only the diagonal of the Gram matrix is summed up; the weight is there for that, too.
    """

    layer: LinearLayer
    source: LayerInput
    device: str
    limits: Limits | None = None
    weight: AnyArray | None = None
    bias: Float64Array | None = None
    is_diagonal: bool = False

    @classmethod
    def of(cls, user: MatchedLayer, limits: Limits | None, options: LayerwiseOptions) -> RowUser:
        """Return that of a layer."""
        layer, source, device = user.layer, layer_input(user.source), options.device
        is_diagonal = options.most_inputs is not None and layer.size[2] * layer.size[3] > options.most_inputs
        if limits is None and not is_diagonal:
            return cls(layer, source, device)
        weight = np.ascontiguousarray(user.float_weight.reshape(*user.float_weight.shape[:2], -1))
        return cls(layer, source, device, limits, weight, user.float_bias, is_diagonal)

    def no_sums(self) -> LayerStats:
        """Return the sums over no rows; many inputs have their rows themselves at first."""
        if self.is_diagonal and self.weight is not None:
            return DiagonalStats.of_weight(self.weight)
        groups, outputs, positions, channels = self.layer.size
        inputs, module = positions * channels, array_module(self.device)
        if inputs > LEAST_INPUTS and module is np:
            return RowStats.zeros(groups, outputs, inputs)
        return GramStats.zeros(groups, outputs, inputs, module)

    def rows(self, inputs: AnyArray, chosen: SampledRows) -> AnyArray:
        """Return the chosen rows of a stored input."""
        return self.layer.rows(inputs, chosen.shape, chosen.picked, self.source.zero_point)

    def add(self, sums: LayerStats, stored: AnyArray, made: AnyArray, weights: Float64Array | None) -> None:
        """Add rows of a stored input, and of the targets, to sums."""
        rows = self.source.read(stored)
        if self.limits is not None and self.weight is not None and self.bias is not None:
            near = rows @ self.weight.swapaxes(1, 2)
            made = relax(made, near + self.bias[:, None], self.limits)
        sums.add(rows, made, weights)


class RowSums:
    """The sums of a user over rows that come part after part."""

    def __init__(self, user: RowUser) -> None:
        """Start without rows."""
        self.user, self._total = user, user.no_sums()
        self._block, self._few = RowBlock(self._add), RowBlock(self._add)

    def add(self, inputs: AnyArray, made: AnyArray, chosen: SampledRows) -> None:
        """Add rows of the next sample of a part."""
        self._block.add(self.user.rows(inputs, chosen), made, chosen.weights)

    def end_part(self) -> None:
        """Let the next rows be of another part."""
        self._wait(self._block.end_part())

    def merge(self, part: RowsOfPart) -> None:
        """Add a part that was read elsewhere."""
        for block in part.blocks:
            self._total.merge(block)
        self._wait(part.few)

    def total(self) -> LayerStats:
        """Return the sums over all rows, as NumPy's arrays."""
        self._few.flush()
        return self._total.on_host()

    def _wait(self, few: Joined | None) -> None:
        if few is not None:
            self._few.add(*few)

    def _add(self, stored: AnyArray, made: AnyArray, weights: Float64Array | None) -> None:
        self.user.add(self._total, stored, made, weights)
        self._total = self._total.settled()


@dataclass
class RowsOfPart:
    """The sums of each block of a part in order, and rows at its end that are too ``few`` for a block."""

    blocks: list[GramStats] = field(default_factory=list)
    few: Joined | None = None

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return arrays of which :meth:`of` makes the same, with a common beginning of their names."""
        found = {
            f"{name}.{i}.{what}": np.asarray(getattr(block, what))
            for i, block in enumerate(self.blocks)
            for what in _SUMS
        }
        if self.few is not None:
            inputs, outputs, weights = self.few
            order = np.argsort([-stride for stride in inputs.strides], kind="stable")
            found[f"{name}.order"] = order  # products of float64 numbers go by the order in memory
            found[f"{name}.inputs"] = inputs.transpose(order)
            found[f"{name}.outputs"] = outputs
            found |= {} if weights is None else {f"{name}.weights": weights}
        return found

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], name: str) -> RowsOfPart:
        """Return a part from its arrays."""
        part = cls()
        while (count := arrays.get(f"{name}.{len(part.blocks)}.count")) is not None:
            sums = [arrays[f"{name}.{len(part.blocks)}.{what}"] for what in _SUMS[1:]]
            part.blocks.append(GramStats(float(count), *sums))
        if (order := arrays.get(f"{name}.order")) is not None:
            inputs = arrays[f"{name}.inputs"].transpose(np.argsort(order))
            part.few = inputs, arrays[f"{name}.outputs"], arrays.get(f"{name}.weights")
        return part


@dataclass(frozen=True)
class PartReader:
    """Reads rows of a part for the users of a weight by their numbers, and the chosen rows from a folder.

    ``kinds``: the number of the sums that each of all samples belongs to.
    """

    users: Mapping[int, RowUser]
    folder: Path
    kinds: Sequence[int]

    def __call__(self, samples: Iterable[tuple[int, Mapping[str, np.ndarray]]]) -> dict[str, np.ndarray]:
        """Return the arrays of the part of each user, for each kind of samples."""
        kinds = sorted(set(self.kinds))
        parts = {(number, kind): RowsOfPart() for number in self.users for kind in kinds}
        blocks = {key: RowBlock(_adder(self.users[key[0]], part)) for key, part in parts.items()}
        rows: dict[int, Mapping[str, np.ndarray]] = {}
        for sample, inputs in samples:
            for number, user in self.users.items():
                if number not in rows:  # this is the first sample of the part
                    rows[number] = read_rows(self.folder, sample, number)
                chosen, made = rows_of(rows[number], sample)
                stored = user.rows(inputs[user.source.name], chosen)
                blocks[number, self.kinds[sample]].add(stored, made, chosen.weights)
        found: dict[str, np.ndarray] = {}
        for key, part in parts.items():
            part.few = blocks[key].end_part()
            found |= part.arrays(part_name(*key))
        return found


def part_name(number: int, kind: int) -> str:
    """Return the name of the arrays of a user for one kind of samples."""
    return f"{number}.{kind}"


def _adder(user: RowUser, part: RowsOfPart) -> Callable[[AnyArray, AnyArray, Float64Array | None], None]:
    def _add(stored: AnyArray, made: AnyArray, weights: Float64Array | None) -> None:
        sums = user.no_sums()
        user.add(sums, stored, made, weights)
        part.blocks.append(sums.on_host())

    return _add
