"""The summary of a run of a model on samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx_narrow.api.saved_outputs import SavedOutputs
from onnx_narrow.api.unrolled import steps_line
from transforms.run.sequences import Sequences


def lines(saved: SavedOutputs, output: Path) -> Iterator[str]:
    """Yield how the model ran, how long, and where its results are."""
    if saved.widened:
        yield (
            f"No bfloat16 kernels here: {saved.widened} nodes and ends ran in float32 between Casts added "
            "in memory."
        )
    if isinstance(saved.samples, Sequences):
        yield steps_line(saved.samples, saved.runs)
    else:
        each = 1e3 * saved.computing / saved.runs
        yield f"Ran {saved.runs} samples in {saved.seconds:.2f} s, {each:.2f} ms each."
    count = len(saved.folders)
    yield f"Results saved to '{output}'{f', one folder for each of {count} outputs' if count > 1 else ''}."
