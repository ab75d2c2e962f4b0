"""How fast a model is here beside its float model, and which operators take the time that it loses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ops.array_types import Feed
from transforms.run.profile import Kernel, Opener, profiled
from transforms.run.turns import FEWEST, Seconds, Timing, take_turns
from transforms.runtime.session import RunOptions

SLOWER = 1.03
"""Times of float from which on a model is called slower: less is within the noise of a short measurement."""

_SECONDS = 2.0
"""Seconds after which two models have taken turns for long enough, whatever their quartiles are."""

_MOST = 200
"""Rounds after which two models have taken turns for long enough, too."""

_NARROW = 0.05
"""Share of the median between the quartiles of a ratio from which on more rounds would say little more."""

_SHARE = 0.1
_NAMED = 3
"""Share of the lost time from which on an operator is named, and how many are at most."""

_AS_FLOAT = {
    **dict.fromkeys(("Gemm", "QGemm", "FusedGemm", "FusedMatMul", "QLinearMatMul"), "MatMul"),
    **dict.fromkeys(("MatMulNBits", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"), "MatMul"),
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
    """Seconds of an inference of a model and of its float model, their ratio, and where the time is lost."""

    made: Timing
    before: Timing
    ratio: Timing
    lost: tuple[KernelTime, ...] = ()

    @property
    def is_slower(self) -> bool:
        """Whether the model is slower than the float model, and not by chance."""
        return _is_slower(self.ratio)


def time_beside_float(openers: Pair[Opener], feeds: Pair[Feed], options: RunOptions) -> BesideFloat:
    """Return the times of a model and its float model, each on its feed.

    They take turns until the quartiles of their ratio are narrow, or two seconds have gone. Where the model
    is slower, both are profiled. Raises ValueError as the openers do.
    """
    models = [open_(options) for open_ in openers]
    times = take_turns(models, lambda: [feeds], _MOST, _SECONDS, enough=_is_narrow)
    ratio = _ratio(times)
    lost: tuple[KernelTime, ...] = ()
    if _is_slower(ratio):
        lost = _lost(*map(_by_operator, profiled(openers, feeds, options)))
    return BesideFloat(Timing.of(times[0]), Timing.of(times[1]), ratio, lost)


def _ratio(times: Sequence[Seconds]) -> Timing:
    return Timing.of([one / other for one, other in zip(*times, strict=True)])


def _is_slower(ratio: Timing) -> bool:
    return ratio.median > SLOWER and ratio.low > 1


def _is_narrow(times: Sequence[Seconds]) -> bool:
    ratio = _ratio(times)
    return len(times[0]) >= FEWEST and ratio.high - ratio.low < _NARROW * ratio.median


Profile = Mapping[str, tuple[int, float]]
"""The nodes of each operator, and the seconds that they take in an inference."""


def _by_operator(kernels: Sequence[Kernel]) -> Profile:
    found = dict[str, tuple[int, float]]()
    for one in kernels:
        nodes, seconds = found.get(one.op, (0, 0.0))
        found[one.op] = nodes + 1, seconds + one.seconds
    return found


def _lost(made: Profile, before: Profile) -> tuple[KernelTime, ...]:
    """Return the operators that take most of what is lost, the worst first."""
    floats = defaultdict[str, float](float)
    for op, (_, seconds) in before.items():
        floats[_AS_FLOAT.get(op, op)] += seconds
    shares = defaultdict[str, float](float)
    for op, (_, seconds) in made.items():
        shares[_AS_FLOAT.get(op, op)] += seconds
    found = []
    for op, (nodes, seconds) in made.items():
        kind = _AS_FLOAT.get(op, op)
        part = floats[kind] * seconds / shares[kind] if shares[kind] else 0.0
        if seconds > part:
            found.append(KernelTime(op, nodes, seconds, part))
    total = sum(one.seconds - one.before for one in found)
    found.sort(key=lambda one: one.before - one.seconds)
    return tuple(one for one in found[:_NAMED] if one.seconds - one.before >= _SHARE * total)
