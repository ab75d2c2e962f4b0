"""One random graph through every conversion, with an oracle for each: see README.md beside this folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.attack.graphs.build import Built, build, with_outputs
from tests.attack.graphs.distances import difference
from tests.attack.graphs.strip import strip
from tests.attack.graphs.tool_runs import Fallen, run, run_widened
from tests.attack.graphs.trial import COARSE, FINE, INTEGER_STEP, PLAIN, Trial
from transforms.files.array_archive import read_arrays, write_arrays

PRESETS = ("A8W8", "XINT8", "U8S8", "A16W8", "BF16", "BFP16", "MX6", "MX9", "MXINT8", "MXFP8E4M3")
"""Quantized for every graph; one of the others on top."""
_OTHERS = ("MX4", "MXFP8E5M2", "MXFP6E3M2", "MXFP6E2M3", "MXFP4E2M1", "U16S8", "W4A8", "FP16", "BF16_BFP16",
           "BF16_MXINT8", "INT32", "UINT32")  # fmt: skip
_STEP = {
    **{"BF16": 2**-8, "FP16": 2**-10, "BF16_BFP16": 2**-6, "BF16_MXINT8": 2**-6},
    **{"BFP16": 2**-6, "MX9": 2**-6, "MXINT8": 2**-5, "INT32": INTEGER_STEP, "UINT32": INTEGER_STEP},
    **dict.fromkeys(("A8W8", "U8S8", "A16W8", "U16S8"), INTEGER_STEP),
    "XINT8": 2 * INTEGER_STEP,
}
"""Formats whose error is small enough to say something: relative to the largest number of a tensor."""


def attack(seed: int, folder: Path) -> str | None:
    """Build and convert the graph of a seed in every way; return None, or what fell in one line."""
    return try_all(build(seed), seed, folder)


def keep(seed: int, path: Path) -> None:
    """Write the model of a seed to ``path`` and its feed beside it, for the seed makes others some day."""
    built = build(seed)
    onnx.save(built.model, path.with_suffix(".onnx"))
    write_arrays(path.with_suffix(".npz"), built.feeds)


def replay(path: Path, folder: Path) -> str | None:
    """Do with a model that was kept what :func:`attack` does with that of a seed."""
    return try_all(kept(path), 0, folder)


def kept(path: Path) -> Built:
    """Return a model that was kept."""
    return with_outputs(onnx.load(path), read_arrays(path.with_suffix(".npz")))


def try_all(built: Built, seed: int, folder: Path) -> str | None:
    """Convert a model in every way; return None, or what fell in one line."""
    return try_with(built, folder, lambda trial, samples: _presets(trial, seed, samples))


def try_with(built: Built, folder: Path, convert: Callable[[Trial, Path | None], None]) -> str | None:
    """Do something with a model and a folder of its feed, None if no file holds that; return what fell."""
    source = folder / "in.onnx"
    data = built.model.SerializeToString(deterministic=True)
    source.write_bytes(data)
    trial = Trial(built, source, folder)
    trial.notes += [f"discarded: {re.sub(chr(39) + '.*?' + chr(39), '...', d)[:60]}" for d in built.discarded]
    samples = folder / "samples"
    if trial.feedable:
        samples.mkdir()
        write_arrays(samples / "one.npz", built.feeds)
    convert(trial, samples if trial.feedable else None)
    if source.read_bytes() != data:
        trial.fallen.append("the input was changed")
    (folder / "notes.txt").write_text("\n".join(trial.notes))
    return " | ".join(" ".join(text.split()) for text in trial.fallen) or None


def _presets(trial: Trial, seed: int, samples: Path | None) -> None:
    _bf16(trial, np.random.default_rng([seed, 7]))
    variants = np.random.default_rng([seed, 8])
    others = [_OTHERS[seed % len(_OTHERS)]]
    for preset in (*PRESETS, *others) if samples else ():
        options = _variant(trial, preset, variants)
        what = " ".join([preset, *options])
        trial.attempt(what, _quantized, trial, preset, samples, options)


def _bf16(trial: Trial, rng: np.random.Generator) -> None:
    tool = "convert_fp32_to_bf16"
    plain = trial.attempt("with_cast --no-optimize", trial.convert, tool, "--no-optimize")
    if plain is None:
        return
    if plain.refusal and "float16 model" in plain.refusal:
        tool = "convert_fp16_to_bf16"
        trial.notes.pop()
        plain = trial.attempt("fp16 with_cast --no-optimize", trial.convert, tool, "--no-optimize")
    if plain and plain.model:
        trial.attempt("with_cast --no-optimize", _exact, trial, plain.model)
    weights = ["--weights", "float32"] if rng.random() < 0.4 else []
    kept = _exclusions(trial, rng)
    cast = trial.attempt("with_cast", trial.convert, tool, *weights, *kept)
    domain = ["--domain", "com.amd.quark"] if rng.random() < 0.2 else []
    options = ["--format", "customqdq", *domain, *weights, *kept]
    qdq = trial.attempt("customqdq", trial.convert, tool, *options)
    if cast and cast.model:
        results = trial.attempt("with_cast", _runs, trial, cast.model, 2**-7)
        if results and qdq and qdq.model:
            trial.attempt("customqdq", _equal, trial, qdq.model, results)
        if weights:
            trial.attempt("with_cast without its roundings", _stripped, trial, cast.model)
        if rng.random() < 0.3:
            full = trial.attempt("bf16", trial.convert, tool, "--format", "bf16")
            if full and full.model:
                trial.attempt("bf16", _near_bf16, trial, full.model)


def _exclusions(trial: Trial, rng: np.random.Generator) -> list[str]:
    """Return, for some graphs, options that keep an operator type in float."""
    ops = sorted({node.op_type for node in trial.interpreter.model.graph.node} - {"Constant"})
    return ["--exclude-op", str(rng.choice(ops))] if rng.random() < 0.2 and ops else []


_ALWAYS: tuple[tuple[str, ...], ...] = (*((), (), (), ("--no-optimize",)),)
_INTEGERS = ("A8W8", "XINT8", "U8S8", "A16W8", "U16S8", "W4A8")
_ALL = "quantize_all_op_types=true"
_OF_INTEGERS: tuple[tuple[str, ...], ...] = (
    *(("--per-channel",), ("--calibrate-method", "Percentile"), ("--calibrate-method", "Entropy")),
    *(("--qdq-domain", "com.microsoft"), ("--set", "quantize_before_relu=true")),
    ("--set", _ALL),
)
_OF_BLOCKS: tuple[tuple[str, ...], ...] = (*(("--domain", "com.amd.quark"), ("--set", _ALL)),)
"""Options that the presets are tried with in turn."""


def _variant(trial: Trial, preset: str, rng: np.random.Generator) -> list[str]:
    choices = _ALWAYS + (_OF_INTEGERS if preset in _INTEGERS else _OF_BLOCKS)
    chosen = choices[int(rng.integers(len(choices)))]
    if trial.meets_huge and _ALL in chosen:
        chosen = ()  # no integer and no block holds an infinity beside numbers that count
    return [*chosen, *_exclusions(trial, rng)]


def _exact(trial: Trial, model: onnx.ModelProto) -> None:
    """The result is the float model with every value rounded between nodes, bit for bit."""
    found = run(model, trial.built.feeds)
    trial.same_interface(found)
    if trial.expected is None:
        return
    wrong = difference(found, trial.rounded())
    if wrong:
        raise Fallen(f"not what rounding between nodes gives: {wrong}")


def _runs(trial: Trial, model: onnx.ModelProto, part: float | None) -> dict[str, Any]:
    found = trial.opened(model, part or COARSE)
    if part is not None:
        trial.near(found, part, jumps=False)
    return found


def _equal(trial: Trial, model: onnx.ModelProto, expected: dict[str, Any]) -> None:
    wrong = difference(run(model, trial.built.feeds), expected)
    if wrong:
        raise Fallen(f"not the numbers of its counterpart: {wrong}")


def _is_exact(preset: str) -> bool:
    """Return whether stored weights are integers: kernels add up others in an order of their own."""
    return preset in _INTEGERS


def _alike(trial: Trial, model: onnx.ModelProto, expected: dict[str, Any], part: float) -> None:
    """Outputs that are not the same are as near to the float model as rounding leaves them."""
    found = run(model, trial.built.feeds)
    if difference(found, expected):
        trial.same_interface(found)
        trial.near(found, part, jumps=False)


def _near_bf16(trial: Trial, model: onnx.ModelProto) -> None:
    """Of valid models only: some operators have no kernel at opset 22, whatever their type is."""
    try:
        found = run_widened(model, trial.built.feeds)
    except Fallen as error:
        if "NOT_IMPLEMENTED" in str(error):
            trial.notes.append("bf16: no kernel at opset 22")
            return
        raise
    trial.same_interface(found)
    trial.near(found, 2**-7, jumps=False)


def _stripped(trial: Trial, model: onnx.ModelProto) -> None:
    """Without its roundings the result is the float model again."""
    bare, _ = strip(model)
    trial.near(run(bare, trial.built.feeds), FINE, jumps=True)


def _quantized(trial: Trial, preset: str, samples: Path, more: list[str]) -> None:
    options = ["--config", preset, "--calibration-data", str(samples), *more]
    done = trial.convert("quantize", *options)
    if done.model is None:
        return
    clipped = "--calibrate-method" in more  # leaves out numbers that it takes for rare: of so few, any
    found = _runs(trial, done.model, None if clipped else _STEP.get(preset))
    if len(trial.built.model.graph.node) % 2 and preset not in ("A8W8", "BFP16"):
        return  # half of them, for time
    nodes = trial.convert("quantize", *options, "--keep-weight-nodes")
    if nodes.model is None:
        raise Fallen(f"converted, but not with --keep-weight-nodes: {nodes.refusal}")
    if _is_exact(preset):
        _equal(trial, nodes.model, found)
    else:
        _alike(trial, nodes.model, found, _STEP.get(preset, COARSE))
    if preset in _INTEGERS:  # what nodes do not round: corrected biases, weights held to neighbours
        nodes = trial.convert("quantize", *options, "--keep-weight-nodes", *PLAIN)
    if nodes.model is not None:
        _stripped(trial, nodes.model)
