"""Time and memory of two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from transforms.files.spelling import as_option, spelled
from transforms.run.speed import Speed, speed

if TYPE_CHECKING:
    from transforms.compare.measure_run import Costs
    from transforms.run.beside_float import BesideFloat, KernelTime
    from transforms.run.turns import Timing
    from transforms.scheme import Scheme

_SMALL = 0.1
"""Milliseconds below which two digits are given, wherever they are."""

EMULATED = "this CPU emulates {}, hardware that has it does not"


def duration(timing: Timing) -> str:
    """Return the time of an inference: ``1.20 ms (1.10 to 1.31)``, the median and the quartiles."""
    return f"{_ms(timing.median)} ms ({_ms(timing.low)} to {_ms(timing.high)})"


def _ms(seconds: float) -> str:
    """Return milliseconds: ``12.34``, ``0.015``."""
    number = 1e3 * seconds
    return f"{number:.2f}" if number >= _SMALL else f"{number:.2g}"


def at_speed(ratio: Timing) -> str:
    """Return the ratio of a model's times to another's in words: ``1.5 times faster``, ``as fast``.

    ``1.2 times slower`` and ``unknown`` are the others.
    """
    kind = speed(ratio)
    if kind is Speed.FASTER:
        return f"{1 / ratio.median:.3g} times faster"
    return f"{ratio.median:.3g} times slower" if kind is Speed.SLOWER else kind.value


def against(ratio: Timing, reference: str = "float") -> str:
    """Return how fast a model is compared with another: ``1.5 times faster than float (1.45 to 1.53)``.

    With the quartiles; ``as fast as float (0.98 to 1.01 times its time)`` where both are about 1.
    """
    low, high, kind = f"{ratio.low:.2f}", f"{ratio.high:.2f}", speed(ratio)
    if kind is Speed.UNKNOWN:
        return "unknown, times scatter: the machine is too busy"
    if kind is Speed.SAME:
        return f"as fast as {reference} ({low} to {high} times its time)"
    if kind is Speed.FASTER:
        low, high = f"{1 / ratio.high:.2f}", f"{1 / ratio.low:.2f}"
    return f"{at_speed(ratio)} than {reference} ({low} to {high})"


def beside(after: Timing, before: Timing, ratio: Timing) -> str:
    """Return the times of an inference of a model and its float model, and how they compare.

    ``0.42 ms, float 0.63 ms: 1.5 times faster than float (1.45 to 1.53)``; no time where nothing is known.
    """
    if speed(ratio) is Speed.UNKNOWN:
        return against(ratio)
    return f"{_ms(after.median)} ms, float {_ms(before.median)} ms: {against(ratio)}"


def cost_lines(costs: Costs) -> Iterator[str]:
    """Yield the time and memory of a model and of its float model."""
    before, after = costs.before, costs.made
    yield f"Time per sample: {beside(after.run, before.run, costs.ratio)}, {after.run.runs} runs each"
    if costs.lost:
        yield _slower(costs.lost)
    if after.peak_bytes and before.peak_bytes:
        sizes = f"{after.peak_bytes / 1e6:.1f} MB, float {before.peak_bytes / 1e6:.1f} MB"
        yield f"Peak memory to open and run: {sizes}: {after.peak_bytes / before.peak_bytes:.2f} times"


def beside_lines(times: BesideFloat | None, advice: str = "") -> Iterator[str]:
    """Yield how a model's time compares with its float model; where slower, the operators and ``advice``."""
    if times is None:
        return
    yield f"Time here: {beside(times.made, times.before, times.ratio)}"
    if times.is_slower:
        yield "; ".join(filter(None, (_slower(times.lost), advice)))


def _slower(lost: Sequence[KernelTime]) -> str:
    """Return the operators in which time is lost."""
    return f"Slower: {', '.join(map(_kernel, lost))}" if lost else "Slower"


def _kernel(kernel: KernelTime) -> str:
    from transforms.graph.some_names import counted

    before = f" (float {_ms(kernel.before)} ms)" if kernel.before else ""
    return f"{kernel.op} {_ms(kernel.seconds)} ms{before} in {counted(kernel.nodes, 'node')}"


def what_helps(
    scheme: Scheme, times: BesideFloat | None, *, placed: bool = False, needs_blocks: bool = False
) -> str:
    """Return an option that makes a model of a scheme faster on this machine, empty without a known one.

    ``times``: its time and that of the float model; ``placed``: layers that are faster in float were already
    searched for; ``needs_blocks``: its operators take only weights in blocks.
    """
    if placed:
        return "no other choice of layers in float was faster"
    if scheme.target:
        way = spelled("{target:ort-cpu} {data:DIR} leaves layers in float that are faster so")
        return way if scheme.keep_float else ""
    fmt = scheme.format(scheme.activation)
    if fmt is None:
        rounds_caches = bool(times and times.lost and times.lost[0].op == "QuantizeLinear")
        is_in_blocks = scheme.block_size and not (rounds_caches or needs_blocks)
        return spelled(_PER_CHANNEL) if is_in_blocks else ""
    return f"{for_cpu(scheme)} makes a faster model" if fmt.is_integer else EMULATED.format(scheme.activation)


_PER_CHANNEL = "{assignments:block_size=0}, a scale per channel, is faster"


def for_cpu(scheme: Scheme) -> str:
    """Return the option for ONNX Runtime's CPU provider, and whether that takes the formats of a scheme."""
    from transforms.scheme.apply_target import adapted
    from transforms.scheme.targets import ON_CPU, target

    option = as_option("target", ON_CPU)
    try:
        adapted(scheme, target(ON_CPU))
    except ValueError:
        return f"{option} (in place of {as_option('config')})"
    return option
