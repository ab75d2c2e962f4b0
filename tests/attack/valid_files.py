"""Small valid inputs of every tool, as the content of files, and the command that takes them."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from PIL import Image

from tests.attack.stored_files import stored_files
from tests.attack.tool_run import run_tool
from tests.helpers import bombs, build, small_networks, tunable

Files = dict[str, bytes]

SCHEME = b"""\
preset = "A8W8"
calibrate_method = "Percentile"
percentile = 99.5
exclude_nodes = ["no*", "relu2"]
[layers]
"first" = { activation = "int16", weight = "int8" }
MatMul = "bfloat16"
[tensors]
"w2" = "bfp16"
[formats]
mine = { base = "bfp16", block_size = 16 }
[finetune]
algorithm = "adaround"
num_iterations = 3
"""


@dataclass(frozen=True)
class Scene:
    """A tool, its options, in which ``IN`` and ``OUT`` are folders, its files, which of them are damaged, and
    what it may write to the output folder."""

    tool: str
    options: str
    files: Files
    damaged: tuple[str, ...]
    written: tuple[str, ...] = ("result.onnx", "result.onnx.data")

    def arguments(self, inside: Path, outside: Path) -> list[str]:
        """Return the command line on two folders."""
        words = self.options.split()
        return [word.replace("IN/", f"{inside}/").replace("OUT/", f"{outside}/") for word in words]


def branching() -> onnx.ModelProto:
    """Return x through an If whose branches capture a weight, and a Loop, to y."""
    node = helper.make_node
    out = build.value("o", None)
    yes = helper.make_graph([node("MatMul", ["x", "w"], ["o"], "product")], "yes", [], [out])
    no = helper.make_graph([node("Neg", ["x"], ["o"], "negative")], "no", [], [out])
    ends = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("c", 9))]
    ends.append(build.value("v", [2, 4]))
    outs = [helper.make_tensor_value_info("c_out", 9, []), build.value("v_out", [2, 4])]
    nodes = [node("Identity", ["c"], ["c_out"]), node("Add", ["v", "b"], ["v_out"], "step")]
    loop = helper.make_graph(nodes, "loop", ends, outs)
    weights = {
        "w": np.eye(4, dtype=np.float32),
        "b": np.ones(4, np.float32),
        "t": np.array(True),
        "n": np.array(3),
    }
    main = [
        node("If", ["t"], ["chosen"], "if", then_branch=yes, else_branch=no),
        node("Loop", ["n", "t", "chosen"], ["y"], "loop", body=loop),
    ]
    return build.model(main, [build.value("x", [2, 4])], [build.value("y", [2, 4])], weights)


@lru_cache
def models() -> Files:
    """Return models with convolutions, products, bodies, functions, sparse tensors, half floats."""
    built = {
        "dense": build.dense(8, layers=2),
        "half": build.dense(8, dtype=np.float16),
        "old": build.dense(8, opset=9),
        "conv": tunable.conv_net(),
        "residual": small_networks.residual(),
        "branches": small_networks.branches(),
        "bodies": branching(),
        "functions": bombs.functions(3, 2, weight=4),
    }
    sparse = build.dense(4)
    del sparse.graph.initializer[:]
    sparse.graph.sparse_initializer.append(bombs.sparse((4, 4), (1, 5), "weight0"))
    return {name: model.SerializeToString() for name, model in (built | {"sparse": sparse}).items()}


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


@lru_cache
def samples() -> Files:
    """Return samples of the model of products, in each form that a file of arrays may have."""
    array = tunable.samples(tunable.matmul_net(), 1)[0]["x"]
    return {
        "data/a.npz": _saved(lambda file: np.savez(file, x=array)),
        "data/b.npz": _saved(lambda file: np.savez_compressed(file, x=array)),
        "data/c.npy": _saved(lambda file: np.save(file, array)),
    }


@lru_cache
def pictures() -> Files:
    """Return pictures of 8 x 8 in each of the formats that samples may have."""
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8))
    return {
        "data/a.png": _saved(lambda file: pixels.save(file, "PNG")),
        "data/b.jpg": _saved(lambda file: pixels.save(file, "JPEG")),
        "data/c.png": _saved(lambda file: pixels.quantize(16).save(file, "PNG")),
    }


@lru_cache
def external() -> Files:
    """Return a model whose weights lie in a file beside it."""
    with tempfile.TemporaryDirectory() as name:
        path = build.save_external(build.dense(8, layers=2), Path(name) / "model.onnx", "weights.data")
        return {"model.onnx": path.read_bytes(), "weights.data": path.with_name("weights.data").read_bytes()}


@lru_cache
def quantized() -> Files:
    """Return a quantized model, and the cache of its calibration."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder, {"model.onnx": tunable.matmul_net().SerializeToString(), **samples()})
        made = {n: folder / n for n in ("quantized.onnx", "ranges.json")}
        words = f"--input {folder}/model.onnx --output {made['quantized.onnx']} --config A8W8 --threads 1 "
        words += f"--calibration-data {folder}/data --calibration-cache {made['ranges.json']}"
        assert run_tool("quantize", words.split(), folder).code == 0
        return {n: path.read_bytes() for n, path in made.items()}


def lay_out(folder: Path, files: Files) -> None:
    """Write files under a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def scenes() -> dict[str, Callable[[np.random.Generator], Scene]]:
    """Return what makes a scene of each kind."""
    return {
        "model": _of_model, "model again": _of_model, "external": _of_external, "samples": _of_samples,
        "pictures": _of_pictures, "scheme": _of_scheme, "cache": _of_cache, "tuned": _of_tuned,
        "results": _of_results, "looks": _of_looks, "grids": _of_grids, "stored": _of_stored,
    }  # fmt: skip


_ON_MODELS = (
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx"),
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx --format bf16"),
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx --format simulate_bf16"),
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx --format customqdq"),
    ("convert_fp16_to_bf16", "--input IN/model.onnx --output OUT/result.onnx --no-optimize"),
    ("quantize", "--input IN/model.onnx --output OUT/result.onnx --config A8W8 --random-data 1 --threads 1"),
    ("quantize", "--input IN/model.onnx --output OUT/result.onnx --config BFP16 --save_as_external_data"),
    ("infer", "--model IN/model.onnx --data IN/data --output_dir OUT/results --threads 1"),
)
_QUANTIZE = "--input IN/model.onnx --output OUT/result.onnx --threads 1 --calibration-data IN/data --config "


def _choose(choices: Iterable[Any], random: np.random.Generator) -> Any:
    listed = list(choices)
    return listed[int(random.integers(0, len(listed)))]


def _fitting(content: bytes) -> Files:
    """Return a sample that a model takes."""
    one = onnx.ModelProto.FromString(content).graph.input[0]
    shape = [d.dim_value or 2 for d in one.type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
    return {"data/a.npz": _saved(lambda file: np.savez(file, x=np.ones(shape, dtype)))}


def _of_model(random: np.random.Generator) -> Scene:
    tool, options = _choose(_ON_MODELS, random)
    name = "half" if "fp16" in tool else str(_choose(models(), random))
    files = {"model.onnx": models()[name]}
    files |= _fitting(files["model.onnx"])
    return Scene(tool, options, files, ("model.onnx",), ("result.onnx", "result.onnx.data", "results"))


def _of_external(random: np.random.Generator) -> Scene:
    tool, options = _choose([one for one in _ON_MODELS if "_fp" not in one[0] or "32" in one[0]], random)
    files = external() | _fitting(external()["model.onnx"])
    written = ("result.onnx", "result.onnx.data", "results")
    return Scene(tool, options, files, ("model.onnx", "weights.data"), written)


def _of_samples(random: np.random.Generator) -> Scene:
    files = {"model.onnx": tunable.matmul_net().SerializeToString(), **samples()}
    if random.random() < 0.5:
        options = "--model IN/model.onnx --data IN/data --output_dir OUT/results --threads 1"
        return Scene("infer", options, files, tuple(samples()), ("results",))
    return Scene("quantize", _QUANTIZE + "A8W8", files, tuple(samples()))


def _of_pictures(random: np.random.Generator) -> Scene:
    files = {"model.onnx": tunable.conv_net().SerializeToString(), **pictures()}
    options = "--model IN/model.onnx --data IN/data --output_dir OUT/results --threads 1"
    return Scene("infer", options, files, tuple(pictures()), ("results",))


def _of_scheme(random: np.random.Generator) -> Scene:
    files = {"model.onnx": tunable.matmul_net().SerializeToString(), "scheme.toml": SCHEME, **samples()}
    if random.random() < 0.7:
        return Scene("quantize", "--print-config --config IN/scheme.toml", files, ("scheme.toml",))
    return Scene("quantize", _QUANTIZE + "IN/scheme.toml", files, ("scheme.toml",))


def _of_cache(random: np.random.Generator) -> Scene:
    files = {"model.onnx": tunable.matmul_net().SerializeToString(), **samples()}
    files["ranges.json"] = quantized()["ranges.json"]
    return Scene("quantize", _QUANTIZE + "A8W8 --calibration-cache IN/ranges.json", files, ("ranges.json",))


def _of_tuned(random: np.random.Generator) -> Scene:
    files = {"model.onnx": tunable.matmul_net().SerializeToString(), **samples(), **quantized()}
    options = "--float IN/model.onnx --quantized IN/quantized.onnx --output OUT/result.onnx --data IN/data "
    options += "--algorithm adaround --num-iterations 3"
    return Scene("finetune", options, files, ("quantized.onnx",))


def _of_results(random: np.random.Generator) -> Scene:
    files: Files = {}
    for side in ("first", "second"):
        files |= {name.replace("data", side): content for name, content in pictures().items()}
        files[f"{side}/d.npy"] = samples()["data/c.npy"]
    options = "--baseline_results_folder IN/first --quantized_results_folder IN/second --json OUT/result.json"
    return Scene("evaluate", options, files, tuple(n for n in files if "second" in n), ("result.json",))


def _stored() -> Files:
    return stored_files(tunable.matmul_net().SerializeToString(), tuple(samples().items()))


def _of_looks(random: np.random.Generator) -> Scene:
    name = str(_choose(models(), random))
    tool, options = _choose(_LOOKS, random)
    return Scene(tool, options, {"model.onnx": models()[name]}, ("model.onnx",), ())


def _of_grids(random: np.random.Generator) -> Scene:
    name = str(_choose(("grids.json", "grids.encodings"), random))
    files = {"model.onnx": tunable.matmul_net().SerializeToString(), **samples(), name: _stored()[name]}
    return Scene("quantize", _QUANTIZE + f"A8W8 --ranges IN/{name}", files, (name,))


def _of_stored(random: np.random.Generator) -> Scene:
    name = str(_choose(("packed.onnx", "nbits.onnx"), random))
    tool, options = _choose(_ON_STORED, random)
    files = {"model.onnx": _stored()[name], "float.onnx": tunable.matmul_net().SerializeToString()}
    return Scene(tool, options, files | samples(), ("model.onnx",), ("result.onnx", "results"))


_LOOKS = (
    ("inspect", "IN/model.onnx"),
    ("inspect", "IN/model.onnx --against IN/model.onnx --json"),
    ("check", "--input IN/model.onnx --target ort-cuda"),
)
_ON_STORED = (
    ("inspect", "IN/float.onnx --against IN/model.onnx"),
    ("convert_fp32_to_bf16", "--input IN/model.onnx --output OUT/result.onnx"),
    ("check", "--input IN/model.onnx --target ort-cpu"),
)
