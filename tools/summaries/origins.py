"""Where the loss of a quantized model begins, in sentences, and what helps, as commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from tools.summaries.words import figure
from transforms.graph.some_names import counted
from transforms.model import provenance
from transforms.origins.loss_causes import KEEP, MORE_BITS, OUTLIERS, PER_CHANNEL, SAMPLES, TUNE
from transforms.origins.loss_origins import LossOrigins, OutputLoss
from transforms.origins.readings import OUTPUT

_MOST_NAMED = 12
"""Layers that are named with their causes; commands name all that carry half of the error."""

_FEW = 3
"""One of so many layers, or fewer, are few."""

_BF16_TOOLS = ("convert_fp32_to_bf16", "convert_fp16_to_bf16")


@dataclass(frozen=True)
class Made:
    """How a quantized model was made: files, samples, its metadata, and names in the float model.

    ``samples``: the options that name them. ``names``: of the float model's nodes; ``tensors``: what they
    make, by which nodes without a name are known.
    """

    float_model: Path
    quantized: Path
    samples: Sequence[str]
    metadata: Mapping[str, str]
    names: Set[str]
    tensors: Set[str]

    @property
    def base(self) -> str:
        """The command that makes it, with another output; empty for models of other tools."""
        tool = provenance.tool(self.metadata)
        output = self.quantized.with_name(f"{self.quantized.stem}_better.onnx")
        words = ["--input", str(self.float_model), "--output", str(output)]
        if tool in _BF16_TOOLS:
            return f"python -m tools.{tool} {shlex.join(words)}"
        config = provenance.option(self.metadata, "config")
        if tool != "quantize" or not config:
            return ""
        given = shlex.join([*words, "--config", str(config), *self.samples])
        return f"python -m tools.{tool} {given}"


def headline(origins: LossOrigins) -> str:
    """Return the first sentence of a report."""
    main, first = origins.main, origins.first()
    if first is None:
        return f"Nothing is lost: output '{main.name}' is as in the float model."
    count, every = len(main.named), len(origins.layers)
    begins = f"Loss begins at '{first.part.name}' ({first.part.op}); "
    if count > max(_MOST_NAMED, every // _FEW):
        begins = f"No few layers make the loss, which is the sum of {count} of {every}; "
    those = "this layer makes" if count == 1 else f"these {count} layers make"
    them = "it" if count == 1 else "them"
    return (
        f"{begins}{those} {100 * main.share:.0f} % of the "
        f"error of output '{main.name}': {decibels(main.sqnr)} as it is, {decibels(main.without)} with "
        f"{them} in float, {decibels(main.others)} with all others in float instead."
    )


def lines(origins: LossOrigins, made: Made) -> Iterator[str]:
    """Yield the report in lines: where the loss begins, the layers with their causes, what helps."""
    yield headline(origins)
    main = origins.main
    for place in main.named[:_MOST_NAMED]:
        one = origins.layers[place]
        cause = origins.causes[place].words if place in origins.causes else ""
        yield f"  {100 * one.shares[main.name]:4.1f} %  {one.part.name} ({one.part.op}): {cause}"
    if len(main.named) > _MOST_NAMED:
        yield f"  and {counted(len(main.named) - _MOST_NAMED, 'other')}"
    yield from (line for line in suspects(origins))
    for what, command in helps(origins, made):
        yield f"  {what}: {command}"


def suspects(origins: LossOrigins) -> Iterator[str]:
    """Yield a line for each input whose samples look preprocessed in another way than in calibration."""
    for one in origins.inputs:
        if one.is_suspect:
            yield (
                f"Input '{one.name}': samples reach from {one.low:.4g} to {one.high:.4g}, but the quantized "
                f"model was made for {one.grid_low:.4g} to {one.grid_high:.4g}: preprocessed in another way?"
            )


def helps(origins: LossOrigins, made: Made) -> Iterator[tuple[str, str]]:
    """Yield what helps the layers that are named first, and the command or the words for it."""
    main = origins.main
    if not main.named:
        return
    wanted = dict.fromkeys(h for p in main.named if p in origins.causes for h in origins.causes[p].helps)
    nodes = [n for place in main.named for n in origins.layers[place].part.nodes]
    known = [node for node in nodes if node in made.names or node in made.tensors]
    if KEEP in wanted and nodes:
        yield "Keep in float", _keeping(made, known, nodes)
    base = made.base
    if not base:
        return
    is_scheme = provenance.tool(made.metadata) == "quantize"
    if MORE_BITS in wanted and known and is_scheme:
        more = [word for node in known for word in ("--set", f'layers."{escape(node)}"="int16"')]
        yield "16 bits", f"{base} {shlex.join(more)}"
    if PER_CHANNEL in wanted and is_scheme:
        yield "A scale per channel", f"{base} --per-channel"
    if OUTLIERS in wanted and is_scheme:
        yield "Move outliers into weights", f"{base} --set move_outliers=true"
    if SAMPLES in wanted and is_scheme:
        yield "Ranges of more samples, all they reach", f"{base} --calibrate-method MinMax"
    if TUNE in wanted:
        yield "Tune weights", _tuning(made)
    if math.isfinite(main.without):
        given = [] if is_scheme else made.samples
        more = [*given, "--min-sqnr", f"{math.floor(main.without)}"]
        yield "As few layers as a target takes", f"{base} {shlex.join(more)}"


def _keeping(made: Made, known: Sequence[str], nodes: Sequence[str]) -> str:
    if not made.base:
        return f"quantize_static(..., nodes_to_exclude={list(known or nodes)})"
    words = [word for node in known if node in made.names for word in ("--exclude-node", escape(node))]
    if provenance.tool(made.metadata) == "quantize":
        ends = [node.removeprefix(OUTPUT) for node in nodes if node.startswith(OUTPUT)]
        fused = [node for node in known if node not in made.names]  # are known by what they make
        words += [word for node in fused for word in ("--set", f'layers."{escape(node)}"="float32"')]
        words += [word for end in ends for word in ("--set", f'tensors."{end}"="float32"')]
    return f"{made.base} {shlex.join(words)}"


def _tuning(made: Made) -> str:
    output = made.quantized.with_name(f"{made.quantized.stem}_tuned.onnx")
    words = ["--float", str(made.float_model), "--quantized", str(made.quantized), *made.samples]
    return f"python -m tools.finetune {shlex.join([*words, '--output', str(output)])}"


def decibels(value: float) -> str:
    """Return an SQNR in words."""
    return "no error" if value == math.inf else f"{figure(value)} dB"


def output_words(one: OutputLoss) -> str:
    """Return what kind of output it is, in a word or two; empty for a result."""
    return "cache" if one.is_cache else ""
