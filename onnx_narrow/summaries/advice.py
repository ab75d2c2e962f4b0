"""What helps a model that loses accuracy: calls that change one thing of how it was made, with a price."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from glob import escape

from onnx_narrow.summaries.made import BF16_TOOLS, Made
from transforms.origins.loss_causes import KEEP, MORE_BITS, OUTLIERS, PER_CHANNEL, SAMPLES, TUNE
from transforms.origins.loss_origins import LossOrigins, OutputLoss
from transforms.precision.readings import OUTPUT

_ALL = "MinMax"
"""The way to find ranges that reach as far as samples do."""

_OF_RANGES = ("calibrate_method", "percentile", "moving_average", "averaging_constant")
"""Keys that go with one way to find ranges."""


def helps(origins: LossOrigins, made: Made) -> Iterator[tuple[str, str]]:
    """Yield what helps the layers that are named first, with its price, and the call or the words for it."""
    main = origins.main
    if not main.named:
        return
    wanted = dict.fromkeys(h for p in main.named if p in origins.causes for h in origins.causes[p].helps)
    layers = [origins.layers[place] for place in main.named]
    nodes = [node for one in layers for node in one.part.nodes]
    known = [node for node in nodes if node in made.names or node in made.tensors]
    other_ops = {layer.part.op for i, layer in enumerate(origins.layers) if i not in main.named}
    if made.leaves_nothing(other_ops):
        wanted = {help: None for help in wanted if help not in (KEEP, MORE_BITS)}
    if KEEP in wanted and nodes:
        yield (
            f"Keep in float{_price(sum(one.bytes_in_float for one in layers), made)}",
            _keeping(made, known, nodes),
        )
    if not made.base():
        return
    if made.tool == "quantize":
        price = _price(sum(one.bytes_in_16_bits for one in layers), made)
        yield from _of_scheme(wanted, made, known, price)
    if TUNE in wanted and made.takes_tuning:
        yield "Tune weights: same bytes and time", _tuning(made)
    if math.isfinite(main.without) and made.takes_target:
        data = {} if made.tool == "quantize" else made.samples
        goal = {**data, "min_sqnr": _reachable(main)}
        yield "Keep as few layers in float as a target needs", made.again(goal)


def _of_scheme(
    wanted: Collection[str], made: Made, known: Sequence[str], price: str
) -> Iterator[tuple[str, str]]:
    """Yield what keys of the scheme help that have other values; ``price``: of 16 bits."""
    if MORE_BITS in wanted and known and made.takes_int16:
        finer = '{ weight = "int16" }' if made.rounds_weights_alone else '"int16"'
        more = [f'layers."{escape(node)}"={finer}' for node in known]
        yield f"16 bits{price}", made.again({"assignments": more})
    if PER_CHANNEL in wanted and not made.has("per_channel", True):
        yield "A scale per channel", made.again({"per_channel": True}, ("per_channel",))
    if OUTLIERS in wanted and not (made.is_for_target or made.has("move_outliers", True)):
        key = {"assignments": ["move_outliers=true"]}
        yield "Move outliers into weights", made.again(key, ("move_outliers",))
    if SAMPLES in wanted and not made.has("calibrate_method", _ALL):
        what = "Ranges that cover all samples, of more of them: same bytes and time"
        yield what, made.again({"calibrate_method": _ALL}, _OF_RANGES)


def _price(more: int, made: Made) -> str:
    """Return how many bytes a remedy adds, as far as that is known."""
    return f": {more:+,} bytes ({100 * more / made.size:+.0f} %)" if more and made.size else ""


def _reachable(main: OutputLoss) -> float:
    """Return an SQNR halfway to that of the named layers in float, which other samples reach, too."""
    goal = main.without if math.isinf(main.sqnr) else (main.sqnr + main.without) / 2
    return math.floor(goal) if math.floor(goal) > main.sqnr else round(goal, 1)


def _keeping(made: Made, known: Sequence[str], nodes: Sequence[str]) -> str:
    if not made.tool:
        return f"quantize_static(..., nodes_to_exclude={list(known or nodes)})"
    excluded = [escape(node) for node in known if node in made.names]
    if made.tool in BF16_TOOLS:
        return made.again({"exclude_node": excluded})
    ends = [node.removeprefix(OUTPUT) for node in nodes if node.startswith(OUTPUT)]
    fused = [node for node in known if node not in made.names]  # are known by what they make
    keys = [f'layers."{escape(node)}"="float32"' for node in fused]
    keys += [f'tensors."{end}"="float32"' for end in ends]
    return made.again({"exclude_nodes": excluded} | ({"assignments": keys} if keys else {}))


def _tuning(made: Made) -> str:
    output = made.quantized.with_name(f"{made.quantized.stem}_tuned.onnx")
    models = {"float_model": made.float_model, "quantized": made.quantized}
    return made.calls.call("finetune", {**models, **made.samples, "output": output})
