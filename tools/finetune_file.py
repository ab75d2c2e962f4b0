"""What ``tools.finetune`` does once its options are known to be right."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_graphsurgeon as gs

from ops.rounding import Options as SolverOptions
from tools import quantize_summary
from tools.data_options import image_options
from transforms import devices, model_io, provenance
from transforms.batch_feeds import batch_feeds
from transforms.feeds import Feeds, model_inputs, open_feeds
from transforms.finetune_checkpoint import Checkpoint
from transforms.finetune_model import Finetuned, FinetuneOptions, finetune_model
from transforms.finetune_weights import LayerReport, WalkOptions
from transforms.float_twin import float_twin
from transforms.run_model import RunOptions
from transforms.tune_layer import TuneOptions

_RECORDED = (
    *("algorithm", "num_iterations", "learning_rate", "early_stop", "fixed_seed", "batch_size", "limit"),
    *("target_op_type", "selective_update", "output_index"),
)


def finetune_file(options: argparse.Namespace) -> None:
    """Tune ``options.quantized``, write ``options.output`` and print what became of each layer.

    Raises ValueError or OSError; nothing is written then, but for the checkpoint.
    """
    walk = walk_options(options)
    external = options.save_as_external_data
    output = model_io.check_output(
        options.output, options.quantized, force=options.force, external_data=external
    )
    model_io.check_output(options.output, options.float, force=options.force)
    quantized = model_io.load(options.quantized)
    twin = float_twin(lambda: model_io.load(options.float), quantized)
    feeds = _feeds(twin, options)
    data = batch_feeds([feed for _, feed in feeds], model_inputs(twin), options.batch_size)
    checkpoint = _checkpoint(options, twin, quantized, feeds)
    with LayerProgress() as progress:
        done = finetune_model(
            twin,
            quantized,
            data,
            FinetuneOptions(walk, options.output_index, options.selective_update),
            checkpoint=checkpoint,
            progress=progress,
        )
    entries = provenance.entries("finetune", _recorded(options), quantized.source_sha256)
    files = model_io.save(done.graph, output, metadata=entries, external_data=external, force=options.force)
    for line in lines(done, len(data), quantized.source_files, files):
        print(line)
    if options.checkpoint:
        Path(options.checkpoint).unlink(missing_ok=True)


def walk_options(options: argparse.Namespace) -> WalkOptions:
    """Return how the layers are walked; ValueError for devices that are not there."""
    devices.array_module(options.optim_device)
    provider = (
        options.provider if options.infer_device == devices.CPU else devices.provider(options.infer_device)
    )
    chosen: dict[str, Any] = {"learning_rate": options.learning_rate}
    if options.num_iterations:
        chosen["iterations"] = options.num_iterations
    if options.early_stop:
        chosen["early_stop"] = True
    return WalkOptions(
        tune=TuneOptions(options.algorithm, solver=SolverOptions(**chosen)),
        op_types=tuple(options.target_op_type),
        memory_limit=options.memory_limit,
        device=options.optim_device,
        seed=options.fixed_seed,
        run=RunOptions(provider, options.threads),
    )


def _feeds(graph: gs.Graph, options: argparse.Namespace) -> Feeds:
    return open_feeds(options.data, model_inputs(graph), images=image_options(options), limit=options.limit)


def _checkpoint(
    options: argparse.Namespace, twin: gs.Graph, quantized: gs.Graph, feeds: Feeds
) -> Checkpoint | None:
    if options.checkpoint is None:
        return None
    parts = [twin.source_sha256, quantized.source_sha256, feeds.hash(), _recorded(options)]
    return Checkpoint.open(options.checkpoint, json.dumps(parts))


def _recorded(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _RECORDED}


def lines(done: Finetuned, samples: int, before: list[Path], after: list[Path]) -> Iterator[str]:
    """Yield the summary: what was tuned, and the file."""
    yield from tuning_lines(done, samples)
    sizes = quantize_summary.total(before), quantize_summary.total(after)
    yield f"Size: {sizes[0]:,} -> {sizes[1]:,} bytes, written to '{after[0]}'"


def tuning_lines(done: Finetuned, samples: int) -> Iterator[str]:
    """Yield what became of each layer, those left alone, and the outputs."""
    width = max(len(layer.name) for layer in done.walk.layers)
    for layer in done.walk.layers:
        kept = layer.what if layer.is_kept and done.recipe else "kept as it was"
        change = f"{decibels(layer.before, layer.power)} -> {decibels(layer.after, layer.power)} dB"
        yield f"{layer.name:<{width}}  {layer.op}  {change}  {kept}  {layer.seconds:.2f} s"
    reasons = Counter((layer.op, layer.reason) for layer in done.walk.left_alone)
    for (op, reason), count in reasons.items():
        yield f"Left alone: {count} {op}: {reason}"
    kept_count = sum(layer.is_kept for layer in done.walk.layers) if done.recipe else 0
    yield f"Tuned: {kept_count} of {len(done.walk.layers)} layers on {samples} samples"
    outputs = f"{decibels(done.before, 1)} -> {decibels(done.after, 1)} dB"
    yield f"Outputs on held-out samples: {outputs}" + (
        "" if done.recipe else "; nothing was better: model kept"
    )


def decibels(error: float, power: float) -> str:
    """Return a ratio of signal and error in dB."""
    if error <= 0:
        return "inf"
    return f"{10 * math.log10(power / error):.2f}" if power > 0 and math.isfinite(error) else "-inf"


class LayerProgress:
    """A progress bar on the terminal with the current layer and its error."""

    def __init__(self) -> None:
        """Show nothing before the first layer is done."""
        self._bar: Any = None

    def __enter__(self) -> Callable[[LayerReport, int, int], None]:
        return self._show

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _show(self, layer: LayerReport, done: int, total: int) -> None:
        from tqdm import tqdm

        if self._bar is None or done < self._bar.n:
            quiet = not sys.stderr.isatty()
            self._bar = tqdm(desc="tuning", total=total, unit="layer", disable=quiet, leave=False)
        self._bar.set_postfix_str(f"{layer.name} {decibels(layer.after, layer.power)} dB")
        self._bar.update(done - self._bar.n)
