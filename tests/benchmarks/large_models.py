"""Transformer encoders of any size whose weights lie beside the model, sparse on disk.

Run it from the project's root: ``python -m tests.benchmarks.large_models 4 model.onnx`` writes 4 GB. Each
weight begins with random numbers and goes on with zeros that take no space on disk.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto

from tests.benchmarks.transformer import Builder, Size, transformer

_ALIGNMENT = 4096
_WRITTEN = 1 << 12
"""Numbers at the beginning of each weight that are no zeros."""

_GIGABYTE = 10**9
_WIDTH, _VOCABULARY = 2048, 24000


@dataclass
class SparseBuilder(Builder):
    """Writes random weights to a file as it makes them, and refers to them there."""

    file: BinaryIO | None = None
    location: str = ""
    end: int = field(default=0)

    def normal(self, name: str, *shape: int, deviation: float = 0.02) -> str:
        """Append an initializer whose first values are normally distributed, and whose others are 0."""
        assert self.file is not None, "opened by the caller"
        length = 4 * int(np.prod(shape))
        offset = self.end + -self.end % _ALIGNMENT
        self.end = offset + length
        self.file.seek(offset)
        self.file.write(deviation * self.random.standard_normal(min(_WRITTEN, length // 4), np.float32))
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.location), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self.weights.append(tensor)
        return name


def size_of(gigabytes: float) -> Size:
    """Return an encoder whose weights take about so many GB (10^9 bytes); no tensor takes more than 0.2."""
    table = 4 * _VOCABULARY * _WIDTH
    layers = (gigabytes * _GIGABYTE - table) / (4 * 12 * _WIDTH**2)
    if layers >= 1:
        return Size(round(layers), _WIDTH, heads=16, vocabulary=_VOCABULARY)
    layers = max(1, round((gigabytes * _GIGABYTE) / (4 * 12 * 512**2)))
    return Size(layers, 512, heads=8, vocabulary=1000)


def write_sparse(path: Path, size: Size) -> None:
    """Write an encoder to a file, its weights to ``FILE.data`` beside it."""
    data = path.with_name(path.name + ".data")
    with data.open("wb") as file:
        builder = SparseBuilder(np.random.default_rng(0), file=file, location=data.name)
        model = transformer(size, builder=builder)
        file.truncate(builder.end)
    onnx.save(model, path)


def main() -> None:
    """Write the encoder of the size given to the file named."""
    parser = argparse.ArgumentParser(description="Write a transformer encoder with sparse external data.")
    parser.add_argument("gigabytes", type=float)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    write_sparse(options.file, size_of(options.gigabytes))


if __name__ == "__main__":
    main()
