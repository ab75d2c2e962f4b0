"""Remedies for a model that loses accuracy: calls that make it again with one change, and their price."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from glob import escape

from onnx_narrow.summaries.model_history import BF16_TOOLS, ModelHistory
from transforms.origins.loss_causes import KEEP, MORE_BITS, OUTLIERS, PER_CHANNEL, SAMPLES, TUNE
from transforms.origins.loss_origins import LossOrigins, OutputLoss
from transforms.precision.readings import OUTPUT

_ALL = "MinMax"
"""The calibration method whose ranges cover all samples."""

_OF_RANGES = ("calibrate_method", "percentile", "moving_average", "averaging_constant")
"""Keys that belong to a calibration method."""


def helps(origins: LossOrigins, history: ModelHistory) -> Iterator[tuple[str, str]]:
    """Yield the remedies for the layers that are named first, each with its price and its call."""
    main = origins.main
    if not main.named:
        return
    remedies = dict.fromkeys(h for p in main.named if p in origins.causes for h in origins.causes[p].helps)
    layers = [origins.layers[place] for place in main.named]
    nodes = [node for layer in layers for node in layer.part.nodes]
    named_nodes = [node for node in nodes if node in history.names or node in history.tensors]
    other_ops = {layer.part.op for i, layer in enumerate(origins.layers) if i not in main.named}
    if history.leaves_nothing(other_ops):
        remedies = {help: None for help in remedies if help not in (KEEP, MORE_BITS)}
    if KEEP in remedies and nodes:
        yield (
            f"Keep in float{_price(sum(layer.bytes_in_float for layer in layers), history)}",
            _keeping(history, named_nodes, nodes),
        )
    if not history.base():
        return
    if history.tool == "quantize":
        price = _price(sum(layer.bytes_in_16_bits for layer in layers), history)
        yield from _of_scheme(remedies, history, named_nodes, price)
    if TUNE in remedies and history.takes_tuning:
        yield "Tune weights: same bytes and time", _tuning(history)
    if math.isfinite(main.without) and history.takes_target:
        data = {} if history.tool == "quantize" else history.samples
        goal = {**data, "min_sqnr": _reachable(main)}
        yield "Keep as few layers in float as a target needs", history.again(goal)


def _of_scheme(
    remedies: Collection[str], history: ModelHistory, named_nodes: Sequence[str], price: str
) -> Iterator[tuple[str, str]]:
    """Yield the remedies that are keys of the scheme and not set yet; ``price``: of 16 bits."""
    if MORE_BITS in remedies and named_nodes and history.takes_int16:
        finer = '{ weight = "int16" }' if history.rounds_weights_alone else '"int16"'
        more = [f'layers."{escape(node)}"={finer}' for node in named_nodes]
        yield f"16 bits{price}", history.again({"assignments": more})
    if PER_CHANNEL in remedies and not history.has("per_channel", True):
        yield "A scale per channel", history.again({"per_channel": True}, ("per_channel",))
    if OUTLIERS in remedies and not (history.is_for_target or history.has("move_outliers", True)):
        key = {"assignments": ["move_outliers=true"]}
        yield "Move outliers into weights", history.again(key, ("move_outliers",))
    if SAMPLES in remedies and not history.has("calibrate_method", _ALL):
        words = "Ranges that cover all samples, of more of them: same bytes and time"
        yield words, history.again({"calibrate_method": _ALL}, _OF_RANGES)


def _price(more: int, history: ModelHistory) -> str:
    """Return how many bytes a remedy adds, empty if unknown."""
    return f": {more:+,} bytes ({100 * more / history.size:+.0f} %)" if more and history.size else ""


def _reachable(main: OutputLoss) -> float:
    """Return an SQNR halfway to that with the named layers in float: one that other samples reach, too."""
    goal = main.without if math.isinf(main.sqnr) else (main.sqnr + main.without) / 2
    return math.floor(goal) if math.floor(goal) > main.sqnr else round(goal, 1)


def _keeping(history: ModelHistory, named_nodes: Sequence[str], nodes: Sequence[str]) -> str:
    if not history.tool:
        return f"quantize_static(..., nodes_to_exclude={list(named_nodes or nodes)})"
    excluded = [escape(node) for node in named_nodes if node in history.names]
    if history.tool in BF16_TOOLS:
        return history.again({"exclude_node": excluded})
    ends = [node.removeprefix(OUTPUT) for node in nodes if node.startswith(OUTPUT)]
    fused = [node for node in named_nodes if node not in history.names]  # are identified by their outputs
    keys = [f'layers."{escape(node)}"="float32"' for node in fused]
    keys += [f'tensors."{end}"="float32"' for end in ends]
    return history.again({"exclude_nodes": excluded} | ({"assignments": keys} if keys else {}))


def _tuning(history: ModelHistory) -> str:
    output = history.quantized.with_name(f"{history.quantized.stem}_tuned.onnx")
    models = {"float_model": history.float_model, "quantized": history.quantized}
    return history.calls.call("finetune", {**models, **history.samples, "output": output})
