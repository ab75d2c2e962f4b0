"""How fast a model is here beside its float model, and which operators take the time that it loses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ops.array_types import Feed
from transforms.run.profile import Kernel, Opener, profiled
from transforms.run.speed import Speed, speed
from transforms.run.turns import Clock, Timing, clock_for, ratio, take_turns, timed_options
from transforms.runtime.session import RunOptions

_SECONDS = 0.3
"""Seconds of the processor after which two models have taken turns for long enough."""

_FEWEST, _MOST = 3, 100
"""Rounds of models that take longer, and after which two models have taken turns for long enough, too."""

_PROFILED = 0.1
"""The same of profiles, which only name operators: writing and reading one takes as long as the runs."""

_SHARE = 0.1
_NAMED = 3
"""Share of the lost time from which on an operator is named, and how many are at most."""

_AS_FLOAT = {
    **dict.fromkeys(("Gemm", "QGemm", "FusedGemm", "FusedMatMul", "QLinearMatMul"), "MatMul"),
    **dict.fromkeys(("MatMulNBits", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"), "MatMul"),
    "QMoE": "MoE",
    **dict.fromkeys(("FusedConv", "NhwcFusedConv", "QLinearConv"), "Conv"),
    **{f"QLinear{name}": name for name in ("Add", "Mul", "Concat", "Sigmoid", "LeakyRelu", "Softmax")},
    **{f"QLinear{name}": name for name in ("AveragePool", "GlobalAveragePool", "ReduceMean", "Where")},
}
"""What the kernels of ONNX Runtime's optimizer compute, by operators of the float model."""

T = TypeVar("T")
Pair = tuple[T, T]
"""What is of a model, and of its float model."""


@dataclass(frozen=True)
class KernelTime:
    """Seconds of an inference that nodes of an operator take, and those in the float model."""

    op: str
    nodes: int
    seconds: float
    before: float


@dataclass(frozen=True)
class BesideFloat:
    """Seconds of an inference of a model and of its float model, their ratio, and where the time is lost.

    They are of the processor. :func:`transforms.run.speed.speed` tells what the ratio says.
    """

    made: Timing
    before: Timing
    ratio: Timing
    lost: tuple[KernelTime, ...] = ()

    @property
    def is_slower(self) -> bool:
        """Whether the model is slower than the float model, and not by chance."""
        return speed(self.ratio) is Speed.SLOWER


def time_beside_float(
    openers: Pair[Opener], feeds: Pair[Feed], options: RunOptions, clock: Clock | None = None
) -> BesideFloat:
    """Return the times of a model and its float model, each on its feed, which take turns.

    Seconds are of the processor (:func:`transforms.run.turns.clock_for`, unless a ``clock`` is given): 0.3 in
    all, or three rounds. Where the model is slower, both are profiled. Raises ValueError as the openers do.
    """
    options = timed_options(options)
    models = [open_(options) for open_ in reversed(openers)]
    fed, clock = [*reversed(feeds)], clock or clock_for(options)
    before, quantized = take_turns(models, lambda: [fed], _MOST, _SECONDS, clock=clock, fewest=_FEWEST)
    times = BesideFloat(Timing.of(quantized), Timing.of(before), ratio(quantized, before))
    if not times.is_slower:
        return times
    kernels = profiled(openers, feeds, options, _PROFILED)
    return replace(times, lost=_lost(*map(_by_operator, kernels)))


Profile = Mapping[str, tuple[int, float]]
"""The nodes of each operator, and the seconds that they take in an inference."""


def _by_operator(kernels: Sequence[Kernel]) -> Profile:
    found = dict[str, tuple[int, float]]()
    for one in kernels:
        nodes, seconds = found.get(one.op, (0, 0.0))
        found[one.op] = nodes + 1, seconds + one.seconds
    return found


def _lost(quantized: Profile, before: Profile) -> tuple[KernelTime, ...]:
    """Return the operators that take most of what is lost, the worst first."""
    floats = defaultdict[str, float](float)
    for op, (_, seconds) in before.items():
        floats[_AS_FLOAT.get(op, op)] += seconds
    shares = defaultdict[str, float](float)
    for op, (_, seconds) in quantized.items():
        shares[_AS_FLOAT.get(op, op)] += seconds
    kernels = []
    for op, (nodes, seconds) in quantized.items():
        kind = _AS_FLOAT.get(op, op)
        part = floats[kind] * seconds / shares[kind] if shares[kind] else 0.0
        if seconds > part:
            kernels.append(KernelTime(op, nodes, seconds, part))
    total = sum(kernel.seconds - kernel.before for kernel in kernels)
    kernels.sort(key=lambda kernel: kernel.before - kernel.seconds)
    return tuple(kernel for kernel in kernels[:_NAMED] if kernel.seconds - kernel.before >= _SHARE * total)
