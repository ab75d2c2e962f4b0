"""What two models cost, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from transforms.files.spelling import as_option, spelled

if TYPE_CHECKING:
    from transforms.compare.measure_run import Measurement
    from transforms.run.beside_float import BesideFloat, KernelTime
    from transforms.run.turns import Timing
    from transforms.scheme import Scheme

EMULATED = "this CPU emulates {}, hardware that has it does not"


def duration(timing: Timing) -> str:
    """Return the time of an inference: ``1.20 ms (1.10 to 1.31)``, the median and the quartiles."""
    return f"{1e3 * timing.median:.2f} ms ({1e3 * timing.low:.2f} to {1e3 * timing.high:.2f})"


def cost_lines(baseline: Measurement, model: Measurement) -> Iterator[str]:
    """Yield the time and memory of a model against those of its float model."""
    ratio = model.run.median / baseline.run.median
    yield (
        f"Time per sample: {duration(model.run)}, float {duration(baseline.run)}: {ratio:.2f} times, "
        f"{model.run.runs} runs each"
    )
    if model.peak_bytes and baseline.peak_bytes:
        sizes = f"{model.peak_bytes / 1e6:.1f} MB, float {baseline.peak_bytes / 1e6:.1f} MB"
        yield f"Peak memory to open and run: {sizes}: {model.peak_bytes / baseline.peak_bytes:.2f} times"


def beside_lines(found: BesideFloat | None, advice: str = "") -> Iterator[str]:
    """Yield how fast a model is beside its float model; if it is slower, by what, and an ``advice``."""
    if found is None:
        return
    made, before = found.made.median, found.before.median
    yield f"Time here: {1e3 * made:.2f} ms, float {1e3 * before:.2f} ms: {times(found.ratio)}"
    if found.is_slower:
        most = ", ".join(map(_kernel, found.lost))
        yield "; ".join(filter(None, (f"Slower: {most}" if most else "Slower", advice)))


def _kernel(one: KernelTime) -> str:
    from transforms.graph.some_names import counted

    before = f" (float {1e3 * one.before:.2f} ms)" if one.before else ""
    return f"{one.op} {1e3 * one.seconds:.2f} ms{before} in {counted(one.nodes, 'node')}"


def times(ratio: Timing) -> str:
    """Return how many times something took: ``1.20 times (1.10 to 1.31)``, the median and the quartiles."""
    return f"{ratio.median:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"


def what_helps(
    scheme: Scheme, found: BesideFloat | None, *, placed: bool = False, needs_blocks: bool = False
) -> str:
    """Return what makes a model of a scheme faster on this machine, empty if nothing is known to.

    ``found``: its time; ``placed``: layers were looked for already that are faster in float;
    ``needs_blocks``: its operators have weights in blocks alone.
    """
    if placed:
        return "no faster choice of layers in float was found"
    if scheme.target:
        return spelled("{target:ort-cpu} {data:DIR} leaves layers in float that are faster so")
    fmt = scheme.format(scheme.activation)
    if fmt is None:
        rounds_caches = bool(found and found.lost and found.lost[0].op == "QuantizeLinear")
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
