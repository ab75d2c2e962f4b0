"""Run models on feeds as users do: ``python tests/processors/run_models.py FOLDER``.

Each folder in FOLDER has a ``model.onnx`` and feeds ``feed_N.npz``; outputs are written to ``made_N.npz``.
Prints whether 8-bit sums saturate.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from transforms.runtime.processor import sums_saturate

Arrays = dict[str, NDArray]


def write(folder: Path, model: onnx.ModelProto, feeds: list[Arrays]) -> None:
    """Write a model and its feeds into a folder of their own."""
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    for i, feed in enumerate(feeds):
        np.savez(folder / f"feed_{i:03}.npz", **feed)  # type: ignore[arg-type]


def run(folder: Path, *, is_optimized: bool = True) -> list[Arrays]:
    """Return the outputs of the model of a folder for each of its feeds, in one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if not is_optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    feeds = [dict(np.load(path)) for path in sorted(folder.glob("feed_*.npz"))]
    return [dict(zip(names, session.run(names, feed), strict=True)) for feed in feeds]


def made(folder: Path) -> list[Arrays]:
    """Return the outputs that another process wrote for the feeds of a folder."""
    return [dict(np.load(path)) for path in sorted(folder.glob("made_*.npz"))]


def main() -> None:
    """Run all models of the folder that is the argument."""
    for path in sorted(Path(sys.argv[1]).glob("*/model.onnx")):
        for i, outputs in enumerate(run(path.parent)):
            np.savez(path.parent / f"made_{i:03}.npz", **outputs)  # type: ignore[arg-type]
    print(f"saturates: {sums_saturate()}")


if __name__ == "__main__":
    main()
