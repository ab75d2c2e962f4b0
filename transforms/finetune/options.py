"""How the layers of a model are walked through, and which samples its weights are judged by."""

from __future__ import annotations

from dataclasses import dataclass, field

from ops.rounding import Options
from transforms.runtime.devices import CPU
from transforms.runtime.session import RunOptions


@dataclass(frozen=True)
class TuneOptions:
    """How layers are tuned.

    ``algorithm``: ``auto`` or one of ops.rounding.ALGORITHMS. ``rescale``: whether scales and shared
    exponents are chosen anew. ``weights``: False tunes biases alone. ``solver``: what the algorithm takes.
    """

    algorithm: str = "auto"
    rescale: bool = True
    weights: bool = True
    solver: Options = field(default_factory=Options)


@dataclass(frozen=True)
class LayerwiseOptions:
    """How the layers are walked through.

    * ``op_types``: layers of these operators alone;
    * ``held_out``: one of so many samples is kept to judge by;
    * ``most_rows``, ``least_rows``: sums are over so many rows for each input of a layer, but not less than
      so many, evenly picked; ``seed``: of the picking;
    * ``memory_limit``: bytes of tensors of each model that stay in memory, the rest goes to files;
    * ``following_relu``: what a Relu or Clip behind a layer cuts off does not count;
    * ``device``: where the sums are made; ``run``: how the models run.
    """

    tune: TuneOptions = field(default_factory=TuneOptions)
    op_types: tuple[str, ...] = ()
    held_out: int = 5
    most_rows: int = 32
    least_rows: int = 4096
    memory_limit: int | None = None
    following_relu: bool = False
    device: str = CPU
    seed: int = 0
    run: RunOptions = field(default_factory=RunOptions)


def is_held_out(sample: int, count: int, options: LayerwiseOptions) -> bool:
    """Return whether a sample of so many is one to judge by: one in five, at least one."""
    every = min(options.held_out, count)
    return sample % every == every - 1
