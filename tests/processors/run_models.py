"""Run models in sessions as users open them: ``python tests/processors/run_models.py FOLDER``.

Each folder in FOLDER has a ``model.onnx`` and feeds ``feed_N.npz``; outputs are written to ``made_N.npz``.
Prints whether 8-bit sums saturate. Needs no more than ONNX Runtime: it starts in an emulator.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

from transforms.runtime.processor import sums_saturate


def run(folder: Path, level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_ENABLE_ALL) -> None:
    """Run the model of a folder on its feeds, and write the outputs."""
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    for path in sorted(folder.glob("feed_*.npz")):
        with np.load(path) as feed:
            made = session.run(names, dict(feed))
        np.savez(path.with_name(path.name.replace("feed", "made")), **dict(zip(names, made, strict=True)))


def main() -> None:
    """Run all models of the folder that is the argument."""
    for folder in sorted(path.parent for path in Path(sys.argv[1]).glob("*/model.onnx")):
        run(folder)
    print(f"saturates: {sums_saturate()}")  # noqa: T201


if __name__ == "__main__":
    main()
