"""Conversions by the options beside presets: storage, ranges, targets, opsets, settings by samples.

Each takes a trial, writes what it needs, and raises Fallen if a claim does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnx_narrow.options.shared import TARGETS
from tests.attack.graphs.distances import difference, distance, largest
from tests.attack.graphs.hooks import Noise
from tests.attack.graphs.interpret import Interpreter, graphs
from tests.attack.graphs.rules_of_targets import breaks
from tests.attack.graphs.strip import strip
from tests.attack.graphs.tool_runs import Fallen, run, say
from tests.attack.graphs.trial import COARSE, INTEGER_STEP, PLAIN, Trial
from transforms.files.array_archive import write_arrays

_BLOCKS = ("BFP16", "MX4", "MX6", "MX9", "MXINT8", "MXFP8E4M3", "MXFP8E5M2", "MXFP6E3M2", "MXFP6E2M3",
           "MXFP4E2M1", "BF16_BFP16")  # fmt: skip
_INTEGERS = ("A8W8", "XINT8", "U8S8", "A16W8", "U16S8")
_SUMS = 1e-6
"""The disturbance that stands for products added up in another order."""

Random = np.random.Generator


def packed(trial: Trial, samples: Path, rng: Random) -> None:
    """Weights in their bits give the outputs of plain ones, bit for bit, where sessions fold constants."""
    options = ["--config", str(rng.choice(_BLOCKS))]
    plain, small = (trial.convert("quantize", *options, "--storage", how) for how in ("plain", "packed"))
    if plain.model is None or small.model is None:
        _both_or_none(plain, small)
        return
    feeds = trial.built.feeds
    for library in (True, False):
        numbers = run(plain.model, feeds, optimized=True, library=library)
        wrong = difference(run(small.model, feeds, optimized=True, library=library), numbers)
        if wrong:
            raise Fallen(f"packed is not plain, library {library}: {wrong}")
    _inspected(trial.folder / "out.onnx")


def twins(trial: Trial, samples: Path, rng: Random) -> None:
    """Functions give the numbers of kernels, with and without the optimization of sessions."""
    preset = str(rng.choice((*_BLOCKS, "BF16", "FP16", "A16W8", "INT32")))
    done = trial.convert("quantize", "--config", preset, "--data", str(samples))
    if done.model is None:
        return
    for optimized in (False, True):
        kernels = run(done.model, trial.built.feeds, optimized=optimized)
        functions = run(done.model, trial.built.feeds, optimized=optimized, library=False)
        wrong = difference(functions, kernels)
        if wrong and not (optimized and preset == "INT32"):  # scales go through a MatMul then
            raise Fallen(f"{preset} without the library, optimized {optimized}: {wrong}")


def nbits(trial: Trial, samples: Path, rng: Random) -> None:
    """MatMulNBits computes what DequantizeLinear with blocks and a product do, up to the order of sums."""
    kind = [] if rng.random() < 0.5 else ["--set", f'weight="u{rng.choice(("int4", "int8"))}"']
    size = ["--set", f"block_size={rng.choice((32, 64, 128))}"]
    options = ["--config", str(rng.choice(("W4", "W8"))), *size, *kind]
    blocks = trial.convert("quantize", *options)
    made = trial.convert("quantize", *options, "--matmul-nbits")
    if blocks.model is None or made.model is None:
        _both_or_none(blocks, made)
        return
    _as_near_as_sums(trial, blocks.model, made.model)
    _inspected(trial.folder / "out.onnx")


def lowered(trial: Trial, samples: Path, rng: Random) -> None:
    """Another opset gives the same numbers, up to the order of sums."""
    options = ["--config", str(rng.choice(("MXINT8", "W8", "BFP16"))), "--no-optimize"]
    opset = int(rng.integers(13, 26))
    first = trial.convert("quantize", *options)
    made = trial.convert("quantize", *options, "--opset", str(opset))
    if first.model is None or made.model is None:
        return
    found = next(one.version for one in made.model.opset_import if one.domain in ("", "ai.onnx"))
    if found != opset:
        raise Fallen(f"--opset {opset} made a model of opset {found}")
    try:
        if len(first.model.graph.initializer) == len(made.model.graph.initializer):  # no Constant was lifted
            _as_near_as_sums(trial, first.model, made.model)
        trial.near(trial.opened(made.model, 2**-5), 2**-5, jumps=False)
    except Fallen as error:
        if "NOT_IMPLEMENTED" not in str(error):  # some operators have no kernel at some opsets
            raise
        trial.notes.append(f"--opset {opset}: no kernel")


def ranges(trial: Trial, samples: Path, rng: Random) -> None:
    """A model made of ranges that were exported is the model that they are of."""
    file = trial.folder / f"grids.{rng.choice(('json', 'encodings'))}"
    options = ["--config", str(rng.choice(_INTEGERS)), "--data", str(samples), "--fast"]
    options += ["--per-channel"] if rng.random() < 0.3 and "XINT8" not in options else []
    first = trial.convert("quantize", *options, "--export-ranges", str(file), "--force")
    if first.model is None:
        return
    again = trial.convert("quantize", *options, "--ranges", str(file))
    if again.model is None:
        raise Fallen(f"refuses its own ranges: {again.refusal}")
    wrong = difference(run(again.model, trial.built.feeds), run(first.model, trial.built.feeds))
    if wrong:
        raise Fallen(f"{file.name} of {options[1]}: {wrong}")
    if file.suffix == ".json" and first.model.graph != again.model.graph:
        raise Fallen(f"{file.name} of {options[1]} makes another graph")
    file.unlink()


def target(trial: Trial, samples: Path, rng: Random) -> None:
    """A model for a target fits it, by its own protos; so does the check say, of others no as well."""
    name = str(rng.choice(TARGETS))
    shapes = [f"{n}:{','.join(map(str, a.shape))}" for n, a in trial.built.feeds.items() if a.size and a.ndim]
    options = [f"--input-shape={shape}" for shape in shapes]
    done = trial.convert("quantize", "--target", name, "--data", str(samples), *options)
    if done.model is not None:
        found = breaks(done.model, name)
        if found:
            raise Fallen(f"for {name}: {found}")
        if name == "ort-cpu" or not done.is_wrong_here:  # models for others are written with a warning
            trial.opened(done.model, INTEGER_STEP)
    models = {"its own": trial.folder / "out.onnx", "the float model": trial.source}
    for what, path in models.items():
        if path.exists():
            _checked(path, what, str(rng.choice(TARGETS)) if what != "its own" else name)


def _checked(path: Path, what: str, name: str) -> None:
    code, out = say("check", "--input", str(path), "--target", name)
    found = breaks(onnx.load(path), name)
    if code == 0 and found:
        raise Fallen(f"check says that {what} fits {name}: {found}")
    if code == 1 and what == "its own":
        raise Fallen(f"check says that a model made for {name} does not fit: {out[-200:]}")


def by_samples(trial: Trial, samples: Path, rng: Random) -> None:
    """Settings that samples choose leave a model that runs, and is the float model without its roundings."""
    folder = _many(trial)
    preset = str(rng.choice(("A8W8", "U8S8", "W4A8", "XINT8", "A16W8")))
    options = ["--config", preset, "--data", str(folder), "--threads", "1"]
    done = trial.convert("quantize", *options)
    if done.model is None:
        return
    trial.opened(done.model, INTEGER_STEP)
    if preset == "W4A8":
        return  # the mean error of its layers goes into biases
    nodes = trial.convert("quantize", *options, "--keep-weight-nodes", *PLAIN)
    if nodes.model is None:
        raise Fallen(f"converted, but not with --keep-weight-nodes: {nodes.refusal}")
    bare, _ = strip(nodes.model)
    trial.near(run(bare, trial.built.feeds), 1e-4, jumps=True)


def tuned(trial: Trial, samples: Path, rng: Random) -> None:
    """Scales and weights that samples choose leave a model that runs, or a line says why not."""
    preset = str(rng.choice(("W4A8", "MX4", "W4_ADAQUANT", "MX6_ADAQUANT", "A8W8_ADAROUND", "XINT8_ADAQUANT",
                             "BF16_ADAQUANT")))  # fmt: skip
    done = trial.convert("quantize", "--config", preset, "--data", str(_many(trial)), "--threads", "1")
    if done.model is not None:
        trial.opened(done.model, INTEGER_STEP if preset in ("W4A8", "A8W8_ADAROUND") else COARSE)


def weights_alone(trial: Trial, samples: Path, rng: Random) -> None:
    """Weights in blocks of integers, stored or rounded in every run, are the float model's, rounded."""
    options = ["--config", str(rng.choice(("W8", "W4"))), "--set", f"block_size={rng.choice((0, 32, 64))}"]
    done = trial.convert("quantize", *options)
    if done.model is None:
        return
    trial.opened(done.model, INTEGER_STEP)
    nodes = trial.convert("quantize", *options, "--keep-weight-nodes")
    if nodes.model is None:
        raise Fallen(f"converted, but not with --keep-weight-nodes: {nodes.refusal}")
    _as_near_as_sums(trial, done.model, nodes.model)
    bare, _ = strip(nodes.model)
    trial.near(run(bare, trial.built.feeds), 1e-4, jumps=True)


def inspected(trial: Trial, samples: Path, rng: Random) -> None:
    """Any model can be inspected."""
    _inspected(trial.source)


CONVERSIONS: dict[str, Callable[[Trial, Path, Random], None]] = {
    one.__name__: one
    for one in (
        packed,
        twins,
        nbits,
        lowered,
        ranges,
        target,
        by_samples,
        tuned,
        weights_alone,
        inspected,
    )
}
"""All of them, by name."""


def _inspected(path: Path) -> None:
    code, out = say("inspect", str(path), "--json")
    if code:
        raise Fallen(f"inspect fails on '{path.name}': {out[-200:]}")
    size, model = json.loads(out)["bytes"], onnx.load(path)
    if size != path.stat().st_size:
        raise Fallen(f"inspect says {size} bytes, '{path.name}' has {path.stat().st_size}")
    nodes = sum(len(graph.node) for graph in graphs(model.graph))
    told = sum(sum(one.values()) for one in json.loads(out)["operators"].values())
    if told != nodes:
        raise Fallen(f"inspect says {told} nodes, '{path.name}' has {nodes}")


def _both_or_none(one: Any, other: Any) -> None:
    if (one.model is None) != (other.model is None):
        raise Fallen(f"converted in one form, not in the other: {one.refusal or other.refusal}")


def _many(trial: Trial) -> Path:
    """Return a folder of eight samples, of which the first is the feed."""
    folder = trial.folder / "many"
    folder.mkdir(exist_ok=True)
    for i in range(8):
        noise = np.random.default_rng([i, 5])
        feeds = {n: _varied(a, noise) if i else a for n, a in trial.built.feeds.items()}
        write_arrays(folder / f"{i}.npz", feeds)
    return folder


def _varied(array: np.ndarray, rng: Random) -> np.ndarray:
    """Return other numbers of the same size; masks of huge numbers stay."""
    if array.dtype.kind != "f" or largest(array) < np.abs(array).max(initial=0):
        return array
    return (array + 0.3 * largest(array) * rng.standard_normal(array.shape)).astype(array.dtype)


def _as_near_as_sums(trial: Trial, first: onnx.ModelProto, second: onnx.ModelProto) -> None:
    """Raise Fallen unless two models compute the same numbers, up to the order of sums."""
    feeds = trial.built.feeds
    expected, found = run(first, feeds), run(second, feeds)
    if difference(found, expected) is None:
        return
    interpreter = Interpreter(first)
    for name, value in expected.items():
        if name in trial.rough:
            continue
        moved = [interpreter.run(feeds, Noise(_SUMS, draw))[name] for draw in range(6)]
        bound = 12 * max(distance(one, value) for one in moved) + 1e-6 * np.abs(value).max(initial=0)
        if distance(found[name], value) > bound:
            raise Fallen(f"'{name}' is {distance(found[name], value):.3g} off, at most {bound:.3g}")
