"""A hostile case: files in a folder, and the tool that is run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.helpers import build

Random = np.random.Generator

ON_MODELS = (
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx"),
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx --format bf16"),
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx --format customqdq"),
    ("quantize", "--input IN/model.onnx --output OUT/result.onnx --config A8W8 --random-data 1 --threads 1"),
    ("quantize", "--input IN/model.onnx --output OUT/result.onnx --config MX9 --random-data 1 --threads 1"),
    ("infer", "--model IN/model.onnx --data IN/data --output_dir OUT/results --threads 1"),
)
ON_DATA = (
    ("infer", "--model IN/model.onnx --data IN/data --output_dir OUT/results --threads 1"),
    ("quantize", "--input IN/model.onnx --output OUT/result.onnx --config A8W8 --calibration-data IN/data"),
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx --data IN/data --min-sqnr 10"),
)
_WRITTEN = ("result.onnx", "result.onnx.data", "results")


@dataclass(frozen=True)
class Case:
    """A tool, its options, in which ``IN`` and ``OUT`` are folders, of which names an error has to hold one,
    and whether the files may be taken at all; ``follows``: whether a link of the user's, that lies beside the
    model under the name it gives, leads out of the folder."""

    tool: str
    options: str
    names: Sequence[str] = ("model.onnx", "sample '")
    must_fail: bool = False
    written: Sequence[str] = _WRITTEN
    follows: bool = False


def pick(choices: Sequence[Any], random: Random) -> Any:
    """Return one of some things."""
    return choices[int(random.integers(0, len(choices)))]


def huge(random: Random, least: int = 28, most: int = 62) -> int:
    """Return a size beyond reason, a power of two or nearly."""
    return (1 << int(random.integers(least, most + 1))) + int(random.integers(-1, 2))


def on_model(
    folder: Path, model: onnx.ModelProto | bytes, random: Random, *, must_fail: bool = False, tool: int = -1
) -> Case:
    """Write a model and a sample for it; return a case of any tool that takes models."""
    content = model if isinstance(model, bytes) else model.SerializeToString()
    (folder / "model.onnx").write_bytes(content)
    (folder / "data").mkdir()
    np.savez(folder / "data" / "a.npz", x=np.ones((2, 16), np.float32))
    name, options = ON_MODELS[tool] if tool >= 0 else ON_MODELS[int(random.integers(0, len(ON_MODELS)))]
    return Case(name, options, must_fail=must_fail)


def on_data(folder: Path, random: Random, names: Sequence[str], *, must_fail: bool = True) -> Case:
    """Write a model of one input of free length; return a case of any tool that takes samples."""
    (folder / "model.onnx").write_bytes(build.dense().SerializeToString())
    name, options = ON_DATA[int(random.integers(0, len(ON_DATA)))]
    return Case(name, options, names, must_fail)
