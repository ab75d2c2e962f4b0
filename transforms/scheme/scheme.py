"""A quantization scheme: formats of values, methods for ranges, and how nodes are written.

A scheme is a preset (``A8W8``, ``BFP16`` ...), a TOML file with the names of the fields below as keys, or a
preset with changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ops.formats import FORMATS, Format
from ops.legal_names import refuse_unknown
from ops.registration import DOMAIN
from transforms.scheme.dynamic_layers import check_dynamic
from transforms.scheme.finetune_rule import FinetuneRule
from transforms.scheme.fitted_weights import has_few_bits, rounds_8_bits
from transforms.scheme.layer_rule import LayerRule, make_rule
from transforms.scheme.mixing_rule import MIXING, MixingRule
from transforms.scheme.outlier_move import OutlierMove, parse_move
from transforms.scheme.scheme_values import (
    METHODS,
    SPREAD,
    SchemeTable,
    check_shapes,
    checked_value,
    range_rule,
)
from transforms.scheme.targets import Target, target
from transforms.scheme.toml_writer import to_toml

__all__ = ["AUTO", "FLOAT32", "FOUND", "POWER_OF_TWO", "LayerRule", "Scheme", "check_keys"]

FLOAT32, AUTO, FOUND, POWER_OF_TWO = "float32", "auto", "found", "power_of_two"
_PARTS = ("activation", "weight", "bias")
_LEAST_ACTIVATION_BITS, _WIDEST_FACTOR = 8, 16  # integers: 4 bits are for weights, 32 for sums
_TABLES: Mapping[str, type[SchemeTable]] = {"finetune": FinetuneRule, MIXING: MixingRule}


@dataclass(frozen=True)
class Scheme:
    """A quantization of a model. Formats are names of ``ops.FORMATS`` or of ``formats``, or ``float32``.

    docs/reference/scheme.md describes each key. By purpose they are:

    * formats: ``activation``, ``weight``, ``found``, ``bias``, ``other`` of the model, ``layers`` of nodes by
      name pattern or operator type, ``tensors`` by name, before all others; ``formats``: new block formats;
    * ``dynamic``, ``dynamic_ranges``: whether products round float activations at run time, and rows alone;
    * which nodes: ``op_types``, ``exclude_nodes``, ``exclude_op_types``, ``arithmetic``;
    * scales: ``per_channel``, ``block_size``, ``scale``, ``activation_symmetric``, ``weight_symmetric``, how
      ranges of activations and weights are found; ``align_concat``, ``align_slice``: which tensors share one;
      ``saturation``: whether sums are exact on every processor;
    * accuracy: ``finer_share``, ``correct_biases``, ``fit_weights``, ``equalize_layers``,
      ``balance_channels``, ``rotate_channels``, ``move_outliers``, ``outliers`` as decided; ``keep_float``;
    * what is made: ``target``, ``opset``, ``input_shapes``, the other rewrites, domains of operators;
    * ``auto_mixed_precision``, ``finetune``: tables of :class:`MixingRule`, :class:`FinetuneRule`, or None.

    ``auto`` is decided by outputs on samples, or by a rule. Raises ValueError for other values.
    """

    activation: str
    weight: str
    bias: str = AUTO
    other: str = AUTO
    dynamic: bool = False
    dynamic_ranges: str = "row"
    per_channel: bool | str = False
    scale: str = "float"
    block_size: int = 0
    activation_symmetric: bool | str = AUTO
    calibrate_method: str = "MinMax"
    percentile: float = 99.999
    moving_average: bool = False
    averaging_constant: float = 0.01
    weight_method: str = AUTO
    found: bool = True
    weight_symmetric: bool | str = True
    finer_share: float = 0.0
    correct_biases: bool | str = False
    fit_weights: bool | str = AUTO
    quantize_all_op_types: bool = False
    arithmetic: bool | str = AUTO
    op_types: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    exclude_op_types: tuple[str, ...] = ()
    fold_relu: bool = False
    quantize_before_relu: bool = False
    align_concat: bool | str = False
    align_slice: bool | str = False
    align_eltwise_quant_type: bool = False
    saturation: str = "avoid"
    dual_quant_nodes: bool = False
    keep_weight_nodes: bool = False
    equalize_layers: bool | str = False
    balance_channels: bool = False
    rotate_channels: bool = False
    move_outliers: bool = False
    keep_float: bool = False
    optimize: bool = True
    target: str = ""
    opset: int = 0
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    qdq_domain: str = ""
    domain: str = DOMAIN
    bfloat16_as: str = "qdq"
    formats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layers: Mapping[str, LayerRule] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    outliers: Mapping[str, str] = field(default_factory=dict)
    calibrate_tensors: Mapping[str, str] = field(default_factory=dict)
    auto_mixed_precision: MixingRule | None = None
    finetune: FinetuneRule | None = None

    def __post_init__(self) -> None:
        """Check every value, and convert lists and tables to the annotated types."""
        for key in dataclasses.fields(self):
            if key.name not in _TABLES:
                value = checked_value(key.name, str(key.type), getattr(self, key.name))
                object.__setattr__(self, key.name, value)
        rules = {name: make_rule(name, rule) for name, rule in self.layers.items()}
        object.__setattr__(self, "layers", rules)
        for name in self.formats:
            self.format(name)
        for name in self.outliers:
            self.outlier_move(name)
        check_shapes(self.input_shapes)
        if self.target:
            target(self.target)
        for name, table in _TABLES.items():
            object.__setattr__(self, name, table.parse(name, getattr(self, name)))
        for tensor, method in self.calibrate_tensors.items():
            refuse_unknown(method, METHODS, f"calibrate_tensors entry '{tensor}': method")
        self._check_mixing()
        check_dynamic(self)
        for part, place, chosen in self._choices():
            self._check_format(part, place, chosen)

    def format(self, name: str) -> Format | None:
        """Return the format with a name, None for float32 and ``found``; ValueError for an unknown name."""
        if name in self.formats:
            from transforms.scheme.custom_formats import make_format

            return make_format(name, checked_value(f"format '{name}'", "Mapping", self.formats[name]))
        refuse_unknown(name, [*self._legal_formats(), FOUND], "format")
        return FORMATS.get(name)

    def outlier_move(self, name: str) -> OutlierMove:
        """Return the move of a tensor's outlying channels; ValueError for an invalid text."""
        try:
            return parse_move(checked_value("it", "str", self.outliers[name]))
        except ValueError as error:
            raise ValueError(f"outliers entry '{name}': {error}") from error

    @property
    def kernels(self) -> Target | None:
        """The target whose kernels determine which operators read integers, or None."""
        row = target(self.target) if self.target else None
        return row if row is not None and row.takes_integers else None

    @property
    def other_format(self) -> Format | None:
        """The format of values to which the activation's format does not apply, None for float32."""
        if self.other != AUTO:
            return self.format(self.other)
        return self.format(self.activation if self.activation in ("bfloat16", "float16") else FLOAT32)

    @property
    def named_formats(self) -> list[Format]:
        """The formats that operands and single tensors have or may get, sorted by name."""
        of_rules = {name for rule in self._rules for name in (rule.activation, rule.weight) if name}
        names = sorted({self.activation, self.weight, *self.tensors.values(), *of_rules})
        return [fmt for name in names if (fmt := self.format(name)) is not None]

    def bias_format(
        self, activation: Format | None, weight: Format | None, rule: LayerRule | None = None
    ) -> Format | None:
        """Return the format of the bias of a node with these formats, to which a rule may apply."""
        name = (rule.bias if rule else None) or self.bias
        if name != AUTO:
            return self.format(name)
        is_integer = (fmt and fmt.is_integer and fmt.bits <= _WIDEST_FACTOR for fmt in (activation, weight))
        if all(is_integer):  # with 32 bits the scale of a product is too fine for int32
            return FORMATS["int32"]
        return self.other_format

    def is_symmetric(self, fmt: Format) -> bool:
        """Return whether ranges of activations in an integer format are symmetric around zero."""
        asked = self.activation_symmetric
        return asked if isinstance(asked, bool) else fmt.is_signed

    @property
    def is_open(self) -> bool:
        """Whether outputs of the model are to decide the ranges of integers."""
        integers = any(fmt.is_integer for fmt in self.named_formats)
        return integers and AUTO in (self.calibrate_method, self.per_channel, self.equalize_layers)

    @property
    def is_dynamic(self) -> bool:
        """Whether some or all products round activations at run time."""
        return self.dynamic or any(rule.dynamic for rule in self.layers.values())

    @property
    def _rules(self) -> tuple[LayerRule, ...]:
        mixing = self.auto_mixed_precision
        return (*self.layers.values(), *(mixing.choices(self.activation, self.weight) if mixing else ()))

    @property
    def has_few_bits(self) -> bool:
        """Whether weights may get a format with few bits."""
        names = (self.weight, *(rule.weight for rule in self._rules), *self.tensors.values())
        return any(has_few_bits(self.format(name)) for name in names if name)

    @property
    def fits_weights(self) -> bool:
        """Whether outputs of layers round weights, if there are samples; not for a target."""
        asked = self.fit_weights is True or (self.fit_weights == AUTO and self.weight_method == AUTO)
        mixing = self.auto_mixed_precision
        rounds = self.has_few_bits or (self.fit_weights is True and rounds_8_bits(self))
        return asked and rounds and (mixing is None or mixing.is_of_size)

    @property
    def range_method(self) -> str:
        """The method for activation ranges where outputs do not decide."""
        if self.calibrate_method != AUTO or self.moving_average:
            return "MinMax" if self.calibrate_method == AUTO else self.calibrate_method
        return range_rule(self.format(self.activation), self.weight)

    @property
    def equalizes_by_rule(self) -> bool:
        """Whether layers are equalized: by rule for power-of-two scales, which gain most from it."""
        return self.equalize_layers is True or (self.equalize_layers == AUTO and self.scale == POWER_OF_TWO)

    def by_rule(self) -> Scheme:
        """Return the scheme with rules for everything that outputs would decide."""
        return self.with_(
            calibrate_method=self.range_method,
            per_channel=SPREAD if self.per_channel == AUTO else self.per_channel,
            correct_biases=self.correct_biases is not False,
            equalize_layers=self.equalizes_by_rule,
            fit_weights=self.fit_weights is True,
            move_outliers=self.move_outliers and self.is_dynamic,  # found on random numbers
            keep_float=False,
        )

    def with_(self, **changes: Any) -> Scheme:
        """Return the scheme with other values for some keys."""
        check_keys(changes)
        return dataclasses.replace(self, **changes)

    def to_toml(self) -> str:
        """Return the full scheme as TOML, which :func:`transforms.scheme.read_scheme` can read."""
        values = {key.name: getattr(self, key.name) for key in dataclasses.fields(self)}
        values["layers"] = {pattern: rule.said for pattern, rule in self.layers.items()}
        values |= {name: values[name].said for name in _TABLES if values[name] is not None}
        return to_toml({key: value for key, value in values.items() if value is not None and value != {}})

    def _legal_formats(self) -> list[str]:
        return [FLOAT32, *FORMATS, *self.formats]

    def _choices(self) -> Iterator[tuple[str, str, object]]:
        """Yield every format in a value or a rule: its part, its place in the scheme, its name."""
        for part in _PARTS:
            yield part, part, getattr(self, part)
            for pattern, rule in self.layers.items():
                if part in rule.said:
                    yield part, f"layers entry '{pattern}': {part}", rule.said[part]
        for tensor, name in self.tensors.items():
            yield "tensor", f"tensors entry '{tensor}'", name

    def _check_mixing(self) -> None:
        """Check that the formats to mix exist, and differ from the scheme's own."""
        mixing = self.auto_mixed_precision
        for rule in mixing.choices(self.activation, self.weight) if mixing else ():
            for part, name in rule.said.items():
                self._check_format(part, f"auto_mixed_precision: {part} of '{rule.label}'", name)
            if (rule.activation, rule.weight) == (self.activation, self.weight):
                raise ValueError(f"auto_mixed_precision: '{rule.label}' is the scheme's own format")

    def _check_format(self, part: str, place: str, name: object) -> None:
        if not isinstance(name, str):
            raise ValueError(f"{place} is {name!r}, it must be the name of a format")
        is_found = (place, name, self.activation) == ("weight", FOUND, FLOAT32)
        if is_found or (part == "bias" and name == AUTO):
            return
        refuse_unknown(name, self._legal_formats(), f"{place}: format")
        fmt = self.format(name)
        if fmt is None or not fmt.is_integer:
            return
        if part == "activation" and fmt.bits < _LEAST_ACTIVATION_BITS:
            raise ValueError(f"{place} is '{name}', but {name} is for weights")
        if part == "bias" and name != "int32":
            raise ValueError(f"{place} is '{name}', the only integer format for a bias is int32")


def check_keys(values: Mapping[str, Any], *more: str) -> None:
    """Raise ValueError for a key that is neither a scheme's nor in ``more``."""
    for key in values:
        refuse_unknown(key, [*more, *(known.name for known in dataclasses.fields(Scheme))], "key")
