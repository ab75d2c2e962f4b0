"""Where the loss of a quantized model begins, in sentences, and what helps, as commands."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from onnx_narrow.summaries.words import figure
from transforms.graph.dot_products import DOT_PRODUCTS
from transforms.graph.some_names import counted
from transforms.model import provenance
from transforms.origins.loss_causes import KEEP, MORE_BITS, OUTLIERS, PER_CHANNEL, SAMPLES, TUNE
from transforms.origins.loss_origins import LossOrigins, OutputLoss
from transforms.pipelines.options import FORMS
from transforms.precision.readings import OUTPUT
from transforms.scheme import Scheme, read_scheme
from transforms.scheme.dynamic_layers import is_dynamic
from transforms.scheme.presets import PRESETS
from transforms.scheme.targets import target

_MOST_NAMED = 12
"""Layers that are named with their causes; commands name all that carry half of the error."""

_FEW = 3
"""One of so many layers, or fewer, are few."""

_WITHOUT_GRID = "simulate_bf16"
"""A format of BF16 whose weights are plain float32: no tool knows what they were rounded to."""

_OF_RANGES = ("calibrate_method", "percentile", "moving_average", "averaging_constant")
"""Keys that go with one way to find ranges."""

_BF16_TOOLS = ("convert_fp32_to_bf16", "convert_fp16_to_bf16")


@dataclass(frozen=True)
class Made:
    """How a quantized model was made: files, samples, its metadata, and names in the float model.

    ``samples``: the options that name them. ``names``: of the float model's nodes; ``tensors``: what they
    make, by which nodes without a name are known. ``scheme``: that in its metadata, None without one.
    """

    float_model: Path
    quantized: Path
    samples: Sequence[str]
    metadata: Mapping[str, str]
    names: Set[str]
    tensors: Set[str]
    scheme: Scheme | None = None

    @property
    def tool(self) -> str:
        """The tool that made it last, empty for those of others."""
        return provenance.tool(self.metadata) or ""

    @property
    def config(self) -> str:
        """The preset, or the file of its scheme where it is found; empty for none."""
        name = provenance.option(self.metadata, "config")
        if not isinstance(name, str) or not name or name in PRESETS:
            return str(name or "")
        places = (Path(name), *(model.with_name(name) for model in (self.quantized, self.float_model)))
        return next((str(place) for place in places if place.is_file()), "")

    @property
    def base(self) -> str:
        """The command that makes it, with another output; empty for models of other tools."""
        return self.base_without()

    def base_without(self, *unset: str) -> str:
        """Return the same without the values that some keys of the scheme were given."""
        output = self.quantized.with_name(f"{self.quantized.stem}_better.onnx")
        words = ["--input", str(self.float_model), "--output", str(output)]
        if self.tool in _BF16_TOOLS:
            return f"python -m tools.{self.tool} {shlex.join([*words, *self._given('format')])}"
        target = ["--target", self.scheme.target] if self.scheme and self.scheme.target else []
        config = ["--config", self.config] if self.config else []
        is_known = bool(config) or not provenance.option(self.metadata, "config")
        if self.tool != "quantize" or not is_known or not config + target:
            return ""
        given = [*config, *target, *self.samples, *self._given(*FORMS), *self._set(unset)]
        return f"python -m tools.{self.tool} {shlex.join([*words, *given])}"

    @property
    def asked(self) -> Scheme | None:
        """The scheme of its preset or file, None without one."""
        return read_scheme(self.config) if self.tool == "quantize" and self.config else None

    @property
    def takes_target(self) -> bool:
        """Whether the tool looks for the fewest layers that stay float: not where tables choose formats."""
        return self.asked is None or not (self.asked.finetune or self.asked.auto_mixed_precision)

    def leaves_nothing(self, others: Set[str]) -> bool:
        """Return whether nothing is left to do if only layers of these operators are as before."""
        rule = self.asked.auto_mixed_precision if self.asked else None
        return not others & set(rule.target_op_types or DOT_PRODUCTS) if rule else not others

    def _given(self, *names: str) -> Iterator[str]:
        """Yield options that it was made with, if they are recorded."""
        for name in names:
            if value := provenance.option(self.metadata, name):
                yield f"--{name.replace('_', '-')}"
                yield from () if value is True else (str(value),)

    def _set(self, unset: Sequence[str]) -> Iterator[str]:
        """Yield the keys of the scheme that were set, except some of them, and the shapes of inputs."""
        keys, texts = (provenance.option(self.metadata, name) for name in ("keys", "set"))
        by_option = keys.items() if isinstance(keys, dict) else ()
        pairs = [f"{name}={json.dumps(value)}" for name, value in by_option]
        pairs += map(str, texts) if isinstance(texts, list) else ()
        for pair in pairs:
            if pair.partition("=")[0].strip() not in unset:
                yield from ("--set", pair)
        for name, shape in (self.scheme.input_shapes if self.scheme else {}).items():
            yield from ("--input-shape", f"{name}:{','.join(map(str, shape))}")


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


def helps(origins: LossOrigins, creation: Made) -> Iterator[tuple[str, str]]:
    """Yield what helps the layers that are named first, and the command or the words for it."""
    main = origins.main
    if not main.named:
        return
    wanted = dict.fromkeys(h for p in main.named if p in origins.causes for h in origins.causes[p].helps)
    nodes = [n for place in main.named for n in origins.layers[place].part.nodes]
    named_nodes = [node for node in nodes if node in creation.names or node in creation.tensors]
    other_ops = {layer.part.op for i, layer in enumerate(origins.layers) if i not in main.named}
    if creation.leaves_nothing(other_ops):
        wanted = {help: None for help in wanted if help not in (KEEP, MORE_BITS)}
    # remedies for any model
    if KEEP in wanted and nodes:
        yield "Keep in float", _keeping(creation, named_nodes, nodes)
    base = creation.base
    if not base:
        return
    # remedies that change the command that made it
    is_scheme = creation.tool == "quantize"
    if MORE_BITS in wanted and named_nodes and is_scheme and _takes_int16(creation):
        finer = '{ weight = "int16" }' if _rounds_weights_alone(creation) else '"int16"'
        more = [word for node in named_nodes for word in ("--set", f'layers."{escape(node)}"={finer}')]
        yield "16 bits", f"{base} {shlex.join(more)}"
    if PER_CHANNEL in wanted and is_scheme:
        yield "A scale per channel", f"{creation.base_without('per_channel')} --per-channel"
    if OUTLIERS in wanted and is_scheme:
        yield (
            "Move outliers into weights",
            f"{creation.base_without('move_outliers')} --set move_outliers=true",
        )
    if SAMPLES in wanted and is_scheme:
        yield (
            "Ranges of more samples, all they reach",
            f"{creation.base_without(*_OF_RANGES)} --calibrate-method MinMax",
        )
    if TUNE in wanted and _is_tunable(creation):
        yield "Tune weights", _tuning(creation)
    if math.isfinite(main.without) and creation.takes_target:
        data_options = [] if is_scheme else creation.samples
        more = [*data_options, "--min-sqnr", f"{_reachable(main)}"]
        yield "As few layers as a target takes", f"{base} {shlex.join(more)}"


def _is_tunable(made: Made) -> bool:
    """Return whether weights are on grids, and not in products of integers, as those rounded at run time."""
    is_dynamic_there = made.scheme is not None and is_dynamic(made.scheme)
    return not is_dynamic_there and provenance.option(made.metadata, "format") != _WITHOUT_GRID


def _rounds_weights_alone(made: Made) -> bool:
    return made.scheme is not None and made.scheme.format(made.scheme.activation) is None


def _takes_int16(made: Made) -> bool:
    """Return whether nothing, or no target that the model was made for, keeps layers from 16 bits."""
    if made.scheme is None or not made.scheme.target:
        return True
    row = target(made.scheme.target)
    return "int16" in row.weights and (_rounds_weights_alone(made) or "int16" in row.activations)


def _reachable(main: OutputLoss) -> float:
    """Return an SQNR halfway to that of the named layers in float, which other samples reach, too."""
    goal = main.without if math.isinf(main.sqnr) else (main.sqnr + main.without) / 2
    return math.floor(goal) if math.floor(goal) > main.sqnr else round(goal, 1)


def _keeping(made: Made, known: Sequence[str], nodes: Sequence[str]) -> str:
    if not made.tool:
        return f"quantize_static(..., nodes_to_exclude={list(known or nodes)})"
    words = [word for node in known if node in made.names for word in ("--exclude-node", escape(node))]
    if made.tool not in _BF16_TOOLS:
        ends = [node.removeprefix(OUTPUT) for node in nodes if node.startswith(OUTPUT)]
        fused = [node for node in known if node not in made.names]  # are known by what they make
        words += [word for node in fused for word in ("--set", f'layers."{escape(node)}"="float32"')]
        words += [word for end in ends for word in ("--set", f'tensors."{end}"="float32"')]
    return f"{made.base or 'add to the command that made it:'} {shlex.join(words)}"


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
