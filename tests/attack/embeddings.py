"""Random models of tables, alone or shared with an output layer, through all that makes them smaller."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import DTypeLike

from tests.attack.draft import Draft, End, Random
from tests.attack.graphs.tool_runs import Fallen, Outcome
from tests.attack.rolled import Feeds, Story, held
from tests.attack.tried import Tries, on_model

_FIXED = 12000
"""Bytes of a result beside its numbers: names, functions of operators, the recorded scheme."""
_BLOCK = 16
"""Rows of tables that few bits are asked for are made of whole blocks of so many."""
_PART = {"BF16": 2**-8, "W8": 2**-8, "W4": 2**-4, "A8W8": 2**-7, "int8": 2**-8, "int4": 2**-3}
_WAYS: tuple[tuple[str, ...], ...] = (
    *(("convert_fp32_to_bf16",), ("convert_fp32_to_bf16", "--format", "customqdq")),
    *(("quantize", "--config", "BF16"), ("quantize", "--config", "W8"), ("quantize", "--config", "W4")),
    *(("quantize", "--config", "A8W8", "--data", "samples"),) * 2,
    ("quantize", "--config", "A8W8", "--data", "samples", "--embeddings", "int8"),
    ("quantize", "--config", "W8", "--embeddings", "int8"),
    ("quantize", "--config", "W4", "--embeddings", "int8", "--matmul-nbits"),
    ("quantize", "--config", "W4", "--embeddings", "int4"),
    ("quantize", "--config", "W8", "--embeddings", "int4", "--matmul-nbits", "--set", "block_size=32"),
    ("quantize", "--config", "W4", "--embeddings", "int4", "--matmul-nbits", "--accuracy-level", "4"),
)


@dataclass
class Tables:
    """A model of tables in the making, with the numbers that its outputs are, where they are plain rows."""

    draft: Draft
    ids: DTypeLike
    inputs: dict[str, End] = field(default_factory=dict)
    outputs: dict[str, End] = field(default_factory=dict)
    rows: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    arrays: list[np.ndarray] = field(default_factory=list)
    dense: int = 0
    model: onnx.ModelProto = field(default_factory=onnx.ModelProto)

    def table(self, rows: int, width: int) -> tuple[str, np.ndarray]:
        """Add a table."""
        scale = np.exp(self.draft.rng.standard_normal((rows, 1)) / 2)
        array = (self.draft.rng.standard_normal((rows, width)) * scale).astype(np.float32)
        self.arrays.append(array)
        return self.draft.constant(array), array

    def lookup(self, table: str, rows: int, name: str) -> str:
        """Add an input of numbers of rows, and what reads them: Gather, or GatherND in some."""
        self.inputs[name] = ["b", "s"], self.ids
        if self.draft.rng.random() < 0.1:
            wide = self.draft.op("Unsqueeze", [name, self.draft.integers(-1)])
            wide = wide if self.ids == np.int64 else self.draft.op("Cast", [wide], to=onnx.TensorProto.INT64)
            return self.draft.op("GatherND", [table, wide])
        return self.draft.op(
            "Gather", [table, name], **({"axis": 0} if self.draft.rng.random() < 0.5 else {})
        )


def attack(seed: int, folder: Path) -> str | None:
    """Convert the model of a seed in several ways; return None, or what fell in one line."""
    rng = np.random.default_rng([seed, 13])
    built = tables(rng)
    tries = on_model(built.model, folder)
    story = Story(built.model, [_feed(built, rng, *shape) for shape in ((1, 24), (1, 24), (2, 5), (1, 1))])
    tries.save("samples", story.feeds)
    for i in rng.choice(len(_WAYS), 4, replace=False):
        way = _WAYS[int(i)]
        tries.attempt(" ".join(way), _converted, built, story, tries, way)
    return tries.failure


def tables(rng: Random) -> Tables:
    """Return a model of one or two tables: rows, their mean, or a small network with a head, tied or not."""
    built = Tables(Draft(rng), np.int32 if rng.random() < 0.3 else np.int64)
    draft, rows, width = built.draft, int(rng.choice((1000, 1501, 2048))), int(rng.choice((32, 64, 48)))
    name, array = built.table(rows, width)
    x = built.lookup(name, rows, "ids")
    if rng.random() < 0.25:
        x = draft.op("Add", [x, built.lookup(name, rows, "others")])
    elif rng.random() < 0.25:
        x = draft.op("Add", [x, built.lookup(built.table(rows // 2, width)[0], rows // 2, "types")])
    alone = len(built.inputs) == 1
    kind = str(rng.choice(("rows", "mean", "transposed", "gemm", "dense")))
    if kind == "rows":
        draft.op("Identity", [x], "y")
        built.outputs["y"] = ["b", "s", width], np.float32
        if alone:
            built.rows["y"] = "ids", array
    elif kind == "mean":
        draft.op("Identity", [draft.reduced("ReduceMean", x, 1, keepdims=0)], "y")
        built.outputs["y"] = ["b", width], np.float32
    else:
        _headed(built, x, name, rows, width, kind)
    built.model = draft.model(built.inputs, built.outputs)
    return built


def _headed(built: Tables, x: str, table: str, rows: int, width: int, kind: str) -> None:
    """Add a product or none, and a head that reads the table transposed, or has weights of its own."""
    draft = built.draft
    if draft.rng.random() < 0.7:
        built.dense += width * width
        x = draft.op("Add", [x, draft.op("Relu", [draft.op("MatMul", [x, draft.weight(width, width)])])])
    wide = rows
    if kind == "transposed":
        made = draft.op("MatMul", [x, draft.op("Transpose", [table], perm=[1, 0])])
    elif kind == "gemm":
        flat = draft.op("Reshape", [x, draft.integers(-1, width)])
        built.outputs["y"] = [None, rows], np.float32  # type: ignore[list-item]
        draft.op("Gemm", [flat, table], "y", transB=1)
        return
    else:
        wide = 10
        built.dense += width * wide
        made = draft.op("MatMul", [x, draft.weight(width, wide)])
    draft.op("Identity", [made], "y")
    built.outputs["y"] = ["b", "s", wide], np.float32


def _feed(built: Tables, rng: Random, *shape: int) -> Feeds:
    least = min(len(array) for array in built.arrays)
    return {name: rng.integers(0, least, shape).astype(built.ids) for name in built.inputs}


def _converted(built: Tables, story: Story, tries: Tries, way: tuple[str, ...]) -> None:
    tool, *options = way
    more = ["--no-time"] if tool == "quantize" else []
    more += ["--threads", "1", "--fast"] if "--data" in options else []
    done = tries.convert(tool, *options, *more)
    if done.model is None:
        _is_true(built, way, done)
        return
    held(story, done.model, max((_PART[word] for word in way if word in _PART), default=2**-8))
    _small(built, way, (tries.folder / "out.onnx").stat().st_size)
    for output, (ids, array) in built.rows.items():
        _exact(output, array[story.feeds[0][ids]], done.model, story, way)


def _reads_all(built: Tables) -> bool:
    """Return whether all that reads tables is a Gather or a product, and rows are whole blocks."""
    return not any(node.op_type == "GatherND" for node in built.model.graph.node)


def _is_true(built: Tables, way: tuple[str, ...], done: Outcome) -> None:
    if "Nothing to do" in done.said and "--embeddings" not in way and not built.dense:
        return
    if not _reads_all(built):
        return
    raise Fallen(f"not taken: {done.refusal or done.said}")


def _small(built: Tables, way: tuple[str, ...], size: int) -> None:
    """Raise Fallen for a file above the bits of its numbers, with scales, each table stored once.

    In bfloat16 all are; in integers the largest of the tables, at the least.
    """
    if not _reads_all(built):
        return  # what GatherND reads stays, and a head has a copy in few bits
    counts = sorted((array.size for array in built.arrays), reverse=True)
    bits = [32.0] * len(counts)
    if way[0] != "quantize" or "BF16" in way:
        bits = [16.0] * len(counts)
    elif "--embeddings" in way:
        bits[0] = {"int8": 8, "int4": 4}[way[way.index("--embeddings") + 1]] + 32 / _BLOCK
    elif "A8W8" in way:
        bits[0] = 8 + 1
    most = np.dot(counts, bits) / 8 + built.dense * 4 + _FIXED
    if size > most:
        raise Fallen(f"takes {size:,} bytes, at most {most:,.0f}: {counts} numbers of tables")


def _exact(output: str, right: np.ndarray, made: onnx.ModelProto, story: Story, way: tuple[str, ...]) -> None:
    """Rows are those of the table, rounded to bfloat16, or to integers with a scale for a block at most."""
    found, _ = held(story, made, None)
    rows = found[0][output]
    if "BF16" in way or way[0] != "quantize":
        rounded = right.astype(ml_dtypes.bfloat16).astype(np.float32)
        if not np.array_equal(rows, rounded):
            raise Fallen(f"'{output}' is not the table in bfloat16: {np.abs(rows - rounded).max():.3g} off")
    elif "--embeddings" in way:
        levels = {"int8": 127, "int4": 7}[way[way.index("--embeddings") + 1]]
        step = np.abs(right).max(-1, keepdims=True) / levels
        if (np.abs(rows - right) > step).any():
            raise Fallen(f"'{output}' is more than a step off: {(np.abs(rows - right) / step).max():.3g}")
