"""The table of named quantization schemes. To add a preset, add a row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _both(format: str) -> dict[str, Any]:
    return {"activation": format, "weight": format}


def _floats(format: str, weight: str = "") -> dict[str, Any]:
    return {"activation": format, "weight": weight or format, "keep_float": True}


def _blocks(format: str, *, few_bits: bool = False) -> dict[str, Any]:
    """Return the keys of a block format: channels are scaled to similar ranges, to keep small numbers.

    ``few_bits``: the error comes from all tensors together, not from one of them.
    """
    found = _both(format) if few_bits else _floats(format)
    return {**found, "equalize_layers": True, "balance_channels": True}


def _integers(activation: str, weight: str = "int8") -> dict[str, Any]:
    """Return the keys of integers whose ranges, channel scales and moves are decided by the outputs."""
    wide = activation.endswith("16")  # enough bits to absorb the outliers of weights
    decided = dict.fromkeys(("per_channel", "calibrate_method", "correct_biases"), "auto")
    moved = {
        "balance_channels": wide,
        "equalize_layers": False if wide else "auto",
        "move_outliers": not wide,
        "keep_float": True,
        "align_slice": "auto",
    }
    return {"activation": activation, "weight": weight, **decided, **moved}


def _aligned(activation: str, weight: str = "int8") -> dict[str, Any]:
    """Return the keys of symmetric integers for NPUs, which keep Relus: the range has both signs."""
    return {**_integers(activation, weight), "align_concat": "auto", "align_eltwise_quant_type": True}


def _shifted(format: str) -> dict[str, Any]:
    """Return the keys of one power-of-two scale per tensor, with channels brought to similar ranges first."""
    aligned = {**_aligned(format), "align_concat": True, "per_channel": False}
    return {**aligned, "scale": "power_of_two", "calibrate_method": "MSE", "keep_float": False}


def _weights(format: str) -> dict[str, Any]:
    """Return the keys that only store weights of dot products, which takes no samples."""
    return {"activation": "float32", "weight": format, "per_channel": True}


def _dynamic(weight: str) -> dict[str, Any]:
    """Return the keys that round activations at run time, to the range of each tensor, without samples."""
    return {**_weights(weight), "dynamic": True, "move_outliers": True}


_W4 = {**_weights("int4"), "block_size": 32, "weight_symmetric": "auto"}


PLAIN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "A8W8": _aligned("int8"),
        "A16W8": _aligned("int16"),
        "XINT8": _shifted("int8"),
        "U8S8": _integers("uint8"),
        "U16S8": _integers("uint16"),
        "W4A8": {**_aligned("int8", "int4"), "per_channel": True, "finer_share": 0.1},
        "A8W8_DYNAMIC": _dynamic("int8"),
        "W8": _weights("int8"),
        "W4": {**_W4, "finer_share": 0.07},
        "W4_MIXED": {**_W4, "finer_share": 0.2},
        "W2": {**_weights("int2"), "block_size": 32},
        "FOUND": {"activation": "float32", "weight": "found"},
        "FP16": _floats("float16"),
        "BF16": _floats("bfloat16"),
        "BFP16": _blocks("bfp16"),
        "MX4": _blocks("mx4", few_bits=True),
        "MX6": _blocks("mx6"),
        "MX9": _blocks("mx9"),
        "MXINT8": _blocks("mxint8"),
        "MXFP8E4M3": _blocks("mxfp8_e4m3"),
        "MXFP8E5M2": _blocks("mxfp8_e5m2"),
        "MXFP6E3M2": _blocks("mxfp6_e3m2"),
        "MXFP6E2M3": _blocks("mxfp6_e2m3"),
        "MXFP4E2M1": _blocks("mxfp4", few_bits=True),
        "BF16_BFP16": _floats("bfloat16", "bfp16"),
        "BF16_MXINT8": _floats("bfloat16", "mxint8"),
        "INT32": {**_both("int32"), "calibrate_method": "Wide"},
        "UINT32": {**_both("uint32"), "calibrate_method": "Wide"},
    }
)

MIXED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "BF16_MIXED_BFP16": {**_floats("bfloat16"), "auto_mixed_precision": {"target": "bfp16"}},
        "BF16_MIXED_MXINT8": {**_floats("bfloat16"), "auto_mixed_precision": {"target": "mxint8"}},
        "S16S8_MIXED_S8S8": {
            **PLAIN["A16W8"],
            "auto_mixed_precision": {
                "activation_target": "int8",
                "weight_target": "int8",
                "sqnr_drop_target": 3.0,
            },
        },
    }
)
"""Presets whose layers each get one of several formats; BF16 without a target changes every layer it can."""

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({**PLAIN, **MIXED})

_INTEGERS = frozenset({"A8W8", "A16W8", "XINT8", "U8S8", "U16S8", "W4A8", "W8", "W4", "W2"})
TUNED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "_ADAQUANT": frozenset(PRESETS) - {"A8W8_DYNAMIC", "FOUND", "INT32", "UINT32"},
        "_ADAROUND": _INTEGERS,  # rounds up or down
    }
)
"""The presets to which each suffix applies: ``A8W8_ADAQUANT`` is ``A8W8`` with a table ``[finetune]``."""


def find_preset(name: str) -> Mapping[str, Any] | None:
    """Return the keys of the preset with a name, which may end in a suffix of TUNED, or None."""
    plain, _, algorithm = name.rpartition("_")
    if plain in TUNED.get(f"_{algorithm}", ()):
        return {**PRESETS[plain], "finetune": {"algorithm": algorithm.lower()}}
    return PRESETS.get(name)


def suffixes(name: str) -> tuple[str, ...]:
    """Return the suffixes of TUNED that a preset may have."""
    return tuple(suffix for suffix, names in TUNED.items() if name in names)


def spellings(name: str) -> list[str]:
    """Return the presets, and the tuned forms of the preset before the last ``_`` of a name."""
    plain = name.rpartition("_")[0]
    return [*PRESETS, *(plain + suffix for suffix in suffixes(plain))]
