"""Random models with free dimensions through all conversions, run at other sizes than those seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from tests.attack.draft import Draft, End, Random
from tests.attack.graphs.distances import largest
from tests.attack.graphs.tool_runs import Fallen
from tests.attack.rolled import Story, held
from tests.attack.tried import Tries, on_model

_PART = {"A8W8": 2**-7, "U8S8": 2**-7, "XINT8": 2**-6, "A16W8": 2**-8, "W8": 2**-8, "W4": 2**-4,
         "BF16": 2**-8, "MX9": 2**-6, "MX6": 2**-3, "BFP16": 2**-6, "MXINT8": 2**-5, "FP16": 2**-10,
         "W4A8": 2**-4}  # fmt: skip
_BEYOND, _WRONG = 1.2, 0.5
"""Of ranges that samples of other sizes have: by how much a number may be outside, and what error then is
none of rounding and clipping."""
_CALIBRATED = ("A8W8", "U8S8", "XINT8", "A16W8", "W4A8")
_WAYS: tuple[tuple[str, ...], ...] = (
    *(("convert_fp32_to_bf16",), ("convert_fp32_to_bf16", "--format", "customqdq")),
    *(("quantize", "--config", name) for name in _PART),
    *(
        ("quantize", "--config", "W4", "--matmul-nbits"),
        ("quantize", "--config", "MX6", "--storage", "packed"),
    ),
    ("quantize", "--config", "A8W8", "--min-sqnr", "30"),
    ("quantize", "--target", "ort-cpu"),
)


def attack(seed: int, folder: Path) -> str | None:
    """Convert the model of a seed in several ways; return None, or what fell in one line."""
    rng = np.random.default_rng([seed, 14])
    family = FAMILIES[int(rng.integers(len(FAMILIES)))]
    model, sizes = family(rng)
    tries = on_model(model, folder)
    seen = [[size[0] for size in sizes], [size[1] for size in sizes]]
    others = [[int(rng.choice(size[2:])) for size in sizes] for _ in range(3)]
    known = Story(model, [{"x": _signal(rng, shape)} for shape in seen * 2])
    fresh = Story(model, [{"x": _signal(rng, shape)} for shape in others])
    tries.save("one_size", known.feeds[::2])
    tries.save("samples", known.feeds)
    for i in rng.choice(len(_WAYS), 4, replace=False):
        way = _WAYS[int(i)]
        data = str(rng.choice(("one_size", "samples")))
        tries.attempt(f"{' '.join(way)}, {data}", _converted, known, fresh, tries, way, data)
    return tries.failure


def _signal(rng: Random, shape: list[int]) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def _range(story: Story, name: str) -> tuple[float, float]:
    """Return the lowest and highest number of a result, and what may lie beyond."""
    low = min(float(one[name].min()) for one in story.outputs)
    high = max(float(one[name].max()) for one in story.outputs)
    beyond = (_BEYOND - 1) * (high - low)
    return low - beyond, high + beyond


def _converted(known: Story, fresh: Story, tries: Tries, way: tuple[str, ...], data: str) -> None:
    tool, *options = way
    config = next((word for word in way if word in _PART), "A8W8" if tool == "quantize" else "BF16")
    is_calibrated = tool == "quantize" and config in _CALIBRATED
    if is_calibrated:
        options += ["--data", data, "--threads", "1", *([] if "--min-sqnr" in options else ["--fast"])]
    done = tries.convert(tool, *options, *(["--no-time"] if tool == "quantize" else []))
    if done.model is None:
        if "Nothing to do" in done.said or (done.refusal and "--min-sqnr" in way):
            return
        raise Fallen(f"not taken: {done.refusal}")
    if is_calibrated and data == "one_size":
        known = Story(known.model, known.steps[::2])
    held(known, done.model, _PART[config])
    found, _ = held(fresh, done.model, None if is_calibrated else _PART[config])
    ranges = {name: _range(known, name) for name in known.results}
    least = known.steps[0]["x"].shape
    for step, outputs in enumerate(found if is_calibrated else ()):
        is_alike = all(
            2 * size >= seen for size, seen in zip(fresh.steps[step]["x"].shape, least, strict=True)
        )
        for name, value in outputs.items() if is_alike else ():  # a mean over few steps is larger
            right = fresh.outputs[step][name]
            gap = np.sqrt(np.mean(np.square(value - right, dtype=np.float64)))
            low, high = ranges[name]
            within = low <= right.min() and right.max() <= high
            if within and gap > _WRONG * largest(right):
                raise Fallen(f"'{name}' is {gap:.3g} off at another size, of {largest(right):.3g}")


Family = Callable[[Random], tuple[onnx.ModelProto, list[list[int]]]]
"""A model of an input x, and for each of its dimensions the sizes in two samples, and others."""


def _images(rng: Random) -> tuple[onnx.ModelProto, list[list[int]]]:
    """Convolutions, pools and sizes that are computed, to an image or a row of classes."""
    draft, width = Draft(rng), int(rng.choice((4, 8)))
    x = draft.op("Conv", ["x", draft.weight(width, 3, 3, 3)], pads=[1, 1, 1, 1])
    for _ in range(int(rng.integers(1, 5))):
        x = _image_layer(draft, x, width)
    if rng.random() < 0.5:
        x = draft.op("Flatten", [draft.op("GlobalAveragePool", [x])])
        shape: End = ["b", 5], np.float32
        draft.op("Gemm", [x, draft.weight(width, 5)], "y")
    else:
        shape = ["b", 2, None, None], np.float32  # type: ignore[list-item]
        draft.op("Conv", [x, draft.weight(2, width, 1, 1)], "y")
    model = draft.model({"x": (["b", 3, "h", "w"], np.float32)}, {"y": shape})
    return model, [[1, 2, 1, 3], [3] * 3, [16, 24, 16, 32, 40], [16, 16, 24, 32]]


def _image_layer(draft: Draft, x: str, width: int) -> str:
    kind = int(draft.rng.integers(6))
    if kind == 0:
        return draft.op("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    if kind == 1:
        return draft.op("Resize", [x, "", draft.floats(1, 1, 2, 2)], mode="nearest")
    if kind == 2:
        mean = draft.op("GlobalAveragePool", [x])
        gate = draft.op("Sigmoid", [draft.op("Conv", [mean, draft.weight(width, width, 1, 1)])])
        return draft.op("Mul", [x, gate])
    if kind == 3:  # a mean over the image in standard operators, spread over it again
        mean = draft.op("GlobalAveragePool", [x])
        return draft.op("Add", [x, draft.op("Expand", [mean, draft.op("Shape", [x])])])
    if kind == 4:
        return draft.op("AveragePool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    made = draft.op("Conv", [x, draft.weight(width, width, 3, 3)], pads=[1, 1, 1, 1])
    return draft.op("Add", [x, draft.op("Relu", [made])])


def _attention(rng: Random) -> tuple[onnx.ModelProto, list[list[int]]]:
    """Attention over time in two ways to write its shapes, with positions cut from a table."""
    draft, heads, size = Draft(rng), 2, 16
    width, x = heads * size, "x"
    for _ in range(int(rng.integers(1, 3))):
        parts = [
            _heads(draft, draft.op("MatMul", [x, draft.weight(width, width)]), heads, size) for _ in "qkv"
        ]
        q, k, v = parts
        keys = draft.op("Transpose", [k], perm=[0, 1, 3, 2])
        scores = draft.op("Mul", [draft.op("MatMul", [q, keys]), draft.floats(size**-0.5)])
        mixed = draft.op("MatMul", [draft.op("Softmax", [scores], axis=-1), v])
        joined = draft.op(
            "Reshape", [draft.op("Transpose", [mixed], perm=[0, 2, 1, 3]), draft.integers(0, 0, width)]
        )
        x = draft.op("Add", [x, draft.op("MatMul", [joined, draft.weight(width, width)])])
        x = draft.op("LayerNormalization", [x, draft.constant(np.ones(width, np.float32))], axis=-1) \
            if draft.opset >= 17 else x  # fmt: skip
    if rng.random() < 0.5:
        draft.op("MatMul", [draft.reduced("ReduceMean", x, 1, keepdims=0), draft.weight(width, 6)], "y")
        end: End = ["b", 6], np.float32
    else:
        draft.op("MatMul", [x, draft.weight(width, 6)], "y")
        end = ["b", "t", 6], np.float32
    model = draft.model({"x": (["b", "t", width], np.float32)}, {"y": end})
    return model, [[1, 2, 1, 3], [8, 12, 5, 17, 1], [width] * 3]


def _heads(draft: Draft, x: str, heads: int, size: int) -> str:
    if draft.rng.random() < 0.5:
        shape = draft.integers(0, 0, heads, size)
    else:  # sizes read from the tensor, as exporters with free dimensions do
        whole = draft.op("Shape", [x])
        parts = [draft.op("Gather", [whole, draft.constant(np.array(i))]) for i in range(2)]
        parts = [draft.op("Unsqueeze", [part, draft.integers(0)]) for part in parts]
        shape = draft.op("Concat", [*parts, draft.integers(heads, size)], axis=0)
    return draft.op("Transpose", [draft.op("Reshape", [x, shape])], perm=[0, 2, 1, 3])


def _signals(rng: Random) -> tuple[onnx.ModelProto, list[list[int]]]:
    """Convolutions over time, a recurrent layer in some, and a sum over what is there."""
    draft, width = Draft(rng), 8
    x = "x"
    for _ in range(int(rng.integers(1, 4))):
        kind = int(rng.integers(3))
        if kind == 0:
            made = draft.op("Conv", [x, draft.weight(width, width, 3)], pads=[1, 1])
            x = draft.op("Add", [x, draft.op("Relu", [made])])
        elif kind == 1:
            x = draft.op(
                "Conv",
                [draft.op("Pad", [x, draft.integers(0, 0, 2, 0, 0, 0)]), draft.weight(width, width, 3)],
            )
        else:
            x = _recurrent(draft, x, width)
    if rng.random() < 0.5:
        draft.op("MatMul", [draft.reduced("ReduceMean", x, 2, keepdims=0), draft.weight(width, 6)], "y")
        end: End = ["b", 6], np.float32
    else:
        draft.op("Conv", [x, draft.weight(3, width, 1)], "y")
        end = ["b", 3, None], np.float32  # type: ignore[list-item]
    model = draft.model({"x": (["b", width, "t"], np.float32)}, {"y": end})
    return model, [[1, 2, 1, 3], [width] * 3, [16, 20, 7, 33, 3]]


def _recurrent(draft: Draft, x: str, width: int) -> str:
    steps = draft.op("Transpose", [x], perm=[2, 0, 1])
    numbers = draft.rng.standard_normal((2, 1, 3 * width, width)) / width**0.5
    weights = [draft.constant(array.astype(np.float32)) for array in numbers]
    made = draft.op("GRU", [steps, *weights], hidden_size=width)
    return draft.op("Transpose", [draft.op("Squeeze", [made, draft.integers(1)])], perm=[1, 2, 0])


FAMILIES: tuple[Family, ...] = (_images, _attention, _signals)
