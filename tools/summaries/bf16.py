"""The summary of a conversion to BF16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tools.summaries.operator_library import needed_library
from tools.summaries.words import counted, written
from transforms.graph.some_names import some_names

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

    from transforms.keep_float.keep import KeptFloat
    from transforms.pipelines.convert_bf16 import Conversion

_TENSORS = {
    "with_cast": "tensors rounded by Casts",
    "bf16": "tensors rounded and nodes retyped",
    "simulate_bf16": "weights and inputs rounded, stored as float32",
    "customqdq": "tensors rounded by ExtendedQuantizeLinear/ExtendedDequantizeLinear",
}
_BF16_RUNTIMES = (
    "a runtime with BF16 kernels, such as ONNX Runtime with CUDA (--target ort-cuda) or with VitisAI, can"
)


def lines(
    done: Conversion, graph: gs.Graph, files: list[Path], cpu_error: str | None, *, functions: bool
) -> Iterator[str]:
    """Yield the summary: notes, what changed, what was kept and why, sizes in bytes, where it runs.

    ``functions``: whether operators of ours have functions.
    """
    yield from done.notes
    fused = ", ".join(f"{count} {op}" for op, count in done.fused.items() if count)
    if fused:
        yield f"Fused: {fused}"
    if done.saturated:
        count, names = len(done.saturated), some_names(done.saturated)
        yield f"Saturated: {count} weights held values beyond +-3.38953139e38: {names}"
    assert done.tally is not None
    yield f"Converted: {done.tally.converted} nodes; {done.tensors} {_TENSORS[done.format]}"
    yield from _kept(done)
    yield written(graph.source_files, files)
    yield _runs(done, needed_library(graph, functions=functions) or "none, standard ONNX", cpu_error)


def sqnr_lines(kept: KeptFloat, least: float) -> Iterator[str]:
    """Yield the SQNR before and after nodes were kept in float for it, and all their names."""
    if not kept.patterns:
        yield f"Kept in float32 for {least:g} dB: nothing, the SQNR is {kept.before:.2f} dB"
        return
    count = counted(len(kept.patterns), "node")
    yield f"SQNR: {kept.before:.2f} -> {kept.after:.2f} dB with {count} kept in float32"
    yield f"Kept in float32 for {least:g} dB: {', '.join(kept.patterns)}"


def _kept(done: Conversion) -> Iterator[str]:
    assert done.tally is not None
    total = sum(sum(ops.values()) for ops in done.tally.kept.values())
    yield f"Kept in float: {total} nodes"
    for reason, ops in done.tally.kept.items():
        names = ", ".join(f"{op} {count}" for op, count in ops.most_common())
        yield f"  {sum(ops.values())} {reason}: {names}"


def _runs(done: Conversion, library: str, cpu_error: str | None) -> str:
    if cpu_error is None:
        return f"Runs on ONNX Runtime CPU: yes. Operator library needed: {library}"
    if done.format == "bf16":
        return f"Runs on ONNX Runtime CPU: no, it has no BF16 kernels; {_BF16_RUNTIMES}. Library: {library}"
    return f"Runs on ONNX Runtime CPU: no ({cpu_error}). Operator library needed: {library}"
