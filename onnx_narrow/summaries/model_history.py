"""How a quantized model was made, and the calls that make it again with one change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_narrow.options.option import Keywords
from onnx_narrow.summaries.advised_call import Door
from transforms.graph.dot_products import DOT_PRODUCTS
from transforms.model import provenance
from transforms.pipelines.options import FORMS
from transforms.scheme import Scheme, read_scheme
from transforms.scheme.presets import find_preset
from transforms.scheme.targets import target

_WITHOUT_GRID = "simulate_bf16"
"""A format of BF16 whose weights are plain float32: no tool can tell what they were rounded to."""

BF16_TOOLS = ("convert_fp32_to_bf16", "convert_fp16_to_bf16")

_SCHEME = "scheme"
"""The name of a scheme that is an object, in metadata and in calls."""

_WIDE = 16
"""Layers of at least these bits do not gain from 16 bits."""


@dataclass(frozen=True)
class ModelHistory:
    """How a quantized model was made: files, samples, its metadata, and names in the float model.

    ``samples``: the keywords that name them. ``names``: of the float model's nodes; ``tensors``: their
    outputs, which identify nodes without a name. ``scheme``: that in its metadata, None without one.
    ``size``: bytes of its file. ``door``: how its user writes calls.
    """

    float_model: Path
    quantized: Path
    samples: Keywords
    metadata: Mapping[str, str]
    names: Set[str]
    tensors: Set[str]
    scheme: Scheme | None = None
    size: int = 0
    door: Door = field(default_factory=Door)

    @property
    def tool(self) -> str:
        """The tool that wrote it last, empty for models that other packages made."""
        return provenance.tool(self.metadata) or ""

    @property
    def config(self) -> str:
        """The preset, the file of its scheme where it is found, or a variable with it; empty for none."""
        name = self._option("config")
        if self._is_of_scheme:
            return _SCHEME
        if not isinstance(name, str) or not name or find_preset(name):
            return str(name or "")
        places = (Path(name), *(model.with_name(name) for model in (self.quantized, self.float_model)))
        return next((str(place) for place in places if place.is_file()), "")

    def base(self, *unset: str) -> dict[str, Any]:
        """Return the keywords of the call that makes it, with another output; none for models of other tools.

        ``unset``: keys of the scheme whose assigned values are left out.
        """
        output = self.quantized.with_name(f"{self.quantized.stem}_better.onnx")
        call: dict[str, Any] = {"model": self.float_model, "output": output}
        if self.tool in BF16_TOOLS:
            return call | self._given("format")
        target = {"target": self.scheme.target} if self.scheme and self.scheme.target else {}
        config = {"config": self.config} if self.config else {}
        is_known = bool(config) or not self._option("config")
        is_named = bool(config or target) or self._keys >= {"activation", "weight"}
        if self.tool != "quantize" or not is_known or not is_named:
            return {}
        shapes = {"input_shapes": dict(self.scheme.input_shapes)} if self.scheme else {}
        return call | config | target | dict(self.samples) | self._given(*FORMS) | self._set(unset) | shapes

    def again(self, more: Keywords, unset: Sequence[str] = ()) -> str:
        """Return the call that makes it, with more options; or how these are added to it."""
        base = self.base(*unset)
        if not base:
            return self.calls.options(more)
        lists = {
            name: [*base[name], *value] for name, value in more.items() if isinstance(base.get(name), list)
        }
        return self.calls.call(self.tool, {**base, **more, **lists})

    @property
    def calls(self) -> Door:
        """How calls are written: as Python for a scheme that lies in no file."""
        if not self._is_of_scheme:
            return self.door
        return Door(True, {**self.door.variables, _SCHEME: _SCHEME})

    @property
    def _is_of_scheme(self) -> bool:
        return self._option("config") == _SCHEME and not Path(_SCHEME).is_file()

    @property
    def asked(self) -> Scheme | None:
        """The scheme of its preset or file, None without one."""
        if self.tool != "quantize" or not self.config:
            return None
        return self.scheme if self._is_of_scheme else read_scheme(self.config)

    @property
    def takes_target(self) -> bool:
        """Whether the tool looks for the fewest layers that stay float: not where tables choose formats."""
        return self.asked is None or not (self.asked.finetune or self.asked.auto_mixed_precision)

    def leaves_nothing(self, other_ops: Set[str]) -> bool:
        """Return whether nothing would be quantized if only layers of these operators were."""
        rule = self.asked.auto_mixed_precision if self.asked else None
        return not other_ops & set(rule.target_op_types or DOT_PRODUCTS) if rule else not other_ops

    @property
    def is_for_target(self) -> bool:
        """Whether it was made for a target, whose rules chose its formats."""
        return bool(self.scheme and self.scheme.target)

    def has(self, key: str, value: object) -> bool:
        """Return whether a key of the scheme has a value, or had it from the start and no search kept it."""
        asked = self.asked
        was_asked = asked is not None and getattr(asked, key) == value and key not in self._keys
        return was_asked or (self.scheme is not None and getattr(self.scheme, key) == value)

    @property
    def _keys(self) -> set[str]:
        """The keys of the scheme that were set in addition to the preset or the file."""
        return {key for key, _ in self._assigned}

    @property
    def _assigned(self) -> list[tuple[str, str]]:
        """These keys, each with ``KEY=VALUE``."""
        keys, texts = self._option("keys"), self._option("set")
        by_option = keys.items() if isinstance(keys, dict) else ()
        pairs = [f"{name}={json.dumps(value)}" for name, value in by_option]
        pairs += map(str, texts) if isinstance(texts, list) else ()
        return [(pair.partition("=")[0].strip(), pair) for pair in pairs]

    def _option(self, name: str) -> Any:
        """Return an option that it was made with, None if it is not recorded."""
        return provenance.option(self.metadata, name)

    @property
    def rounds_weights_alone(self) -> bool:
        """Whether activations stay float."""
        return self.scheme is not None and self.scheme.format(self.scheme.activation) is None

    @property
    def takes_int16(self) -> bool:
        """Whether 16 bits are more than it has, and its target, if any, takes them."""
        if self.scheme is None:
            return True
        names = [self.scheme.weight, *([] if self.rounds_weights_alone else [self.scheme.activation])]
        formats = [fmt for fmt in map(self.scheme.format, names) if fmt is not None]
        if formats and all(fmt.bits >= _WIDE for fmt in formats):
            return False
        if not self.scheme.target:
            return True
        row = target(self.scheme.target)
        return "int16" in row.weights and (self.rounds_weights_alone or "int16" in row.activations)

    @property
    def takes_tuning(self) -> bool:
        """Whether weights lie on a known grid, not in products of integers, and were not tuned before."""
        is_tuned = self.asked is not None and bool(self.asked.finetune)
        is_in_integers = self.scheme is not None and self.scheme.is_dynamic
        return not is_tuned and not is_in_integers and self._option("format") != _WITHOUT_GRID

    def _given(self, *names: str) -> dict[str, Any]:
        """Return options that it was made with, if they are recorded."""
        return {name: value for name in names if (value := self._option(name))}

    def _set(self, unset: Sequence[str]) -> dict[str, list[str]]:
        """Return the keys of the scheme that were set, except some of them."""
        left = [pair for key, pair in self._assigned if key not in unset]
        return {"assignments": left} if left else {}
