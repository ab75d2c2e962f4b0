"""The summary of a conversion to BF16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnx_narrow.summaries import running
from onnx_narrow.summaries.timing import EMULATED, beside_lines
from onnx_narrow.summaries.words import Sizes, written
from transforms.conversion.inspect_bf16 import EXCLUDED
from transforms.files.spelling import spelled
from transforms.graph.some_names import counted, some_names

if TYPE_CHECKING:
    from transforms.conversion.convert_bf16 import Conversion
    from transforms.pipelines.bf16 import Bf16Work
    from transforms.precision.bf16 import KeptFloat
    from transforms.search.target import Target

_TENSORS = {
    "with_cast": "tensors rounded by Casts",
    "bf16": "tensors rounded and nodes retyped",
    "simulate_bf16": "weights and inputs rounded, stored as float32",
    "customqdq": "tensors rounded by ExtendedQuantizeLinear/ExtendedDequantizeLinear",
}
_NO_KERNELS = (
    "it has no BF16 kernels; a runtime with BF16 kernels, such as ONNX Runtime with CUDA ({target:ort-cuda}) "
    "or with VitisAI, can"
)


def lines(work: Bf16Work, sizes: Sizes, excluded: str = EXCLUDED) -> Iterator[str]:
    """Yield the summary: notes, what changed, what was kept and why, sizes in bytes, where it runs.

    ``excluded``: why nodes were excluded, in words.
    """
    done, first = work.done, work.record.first
    assert done is not None and done.tally is not None and first is not None, "it was converted and tried out"
    yield from done.notes
    fused = ", ".join(f"{count} {op}" for op, count in done.fused.items() if count > 0)
    if fused:
        yield f"Fused: {fused}"
    if done.saturated:
        count, names = len(done.saturated), some_names(done.saturated)
        yield f"Saturated: {count} weights held values beyond +-3.38953139e38: {names}"
    yield f"Converted: {done.tally.converted} nodes; {done.tensors} {_TENSORS[done.format]}"
    yield from _kept(done, excluded)
    yield written(sizes)
    yield from beside_lines(first.time, EMULATED.format("bfloat16"))
    no_kernels = spelled(_NO_KERNELS) if done.format == "bf16" else ""
    yield running.runs_line(first, work.graph, standard="none, standard ONNX", no_kernels=no_kernels)


def excluded_for(in_float: KeptFloat | None, goal: Target | None, *, by_user: bool) -> str:
    """Return why nodes were excluded: by options, or to reach the goal."""
    if not in_float or not in_float.patterns:
        return EXCLUDED
    name = spelled("{metric}" if goal and goal.is_gate else "{min_sqnr}")
    return f"{EXCLUDED} or for {name}" if by_user else f"kept for {name}"


def goal_lines(in_float: KeptFloat, goal: Target, where: str) -> Iterator[str]:
    """Yield the metric before and after layers were kept in float for it, and the names of their nodes."""
    is_gate = goal.is_gate
    bound = f"{goal.words} {goal.bound}" if is_gate else f"{goal.limit:g} dB"
    after = goal.text(in_float.after, in_float.error) if is_gate else f"{_with_error(in_float)} dB{goal.seen}"
    if not in_float.patterns:
        result = after if is_gate else f"the SQNR is {after}"
        yield f"Kept in float32 for {bound}: nothing, {result} on {where}"
        return
    layers = f"{len(in_float.layers)} of {counted(in_float.count, 'layer')} kept in float32"
    before = goal.text(in_float.before) if is_gate else f"SQNR: {in_float.before:.2f}"
    yield f"{before} -> {after} on {where} with {layers}"
    yield f"Kept in float32 for {bound}: {', '.join(in_float.patterns)}"


def _with_error(in_float: KeptFloat) -> str:
    return f"{in_float.after:.2f} +- {in_float.error:.2f}" if in_float.error else f"{in_float.after:.2f}"


def _kept(done: Conversion, excluded: str) -> Iterator[str]:
    assert done.tally is not None
    total = sum(sum(ops.values()) for ops in done.tally.kept.values())
    yield f"Kept in float: {total} nodes"
    for reason, ops in done.tally.kept.items():
        names = ", ".join(f"{op} {count}" for op, count in ops.most_common())
        yield f"  {sum(ops.values())} {excluded if reason == EXCLUDED else reason}: {names}"
