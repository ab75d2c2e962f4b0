"""Operators with random types, attributes and tensors, in threads, against ops/reference.py bit for bit.

Part of the cases runs where subnormal numbers count as zero, part has an attribute that must be refused.
"""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from ops import _library, reference
from ops.array_types import AnyArray
from ops.formats import FORMATS
from tests.helpers.number_patterns import PATTERNS, make_pattern
from tests.helpers.operator_sessions import (
    BFLOAT16,
    BFP,
    DEQUANTIZE,
    DOMAINS,
    MX,
    QUANTIZE,
    assert_same,
    make_session,
    onnx_type,
    run_bits,
    run_twin,
)

Rng = np.random.Generator

SINGLE = np.dtype(np.float32)
FLOATS = (SINGLE, np.dtype(np.float16), BFLOAT16)
STORED = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16")
DIMENSIONS = (0, 1, 2, 3, 5, 8, 16, 17, 31, 32, 48, 65)
LARGE = ((70001,), (3, 33333), (1025, 130), (2, 65, 1031), (5, 3, 130, 66))  # are cut into pieces for threads
FLUSH_BITS = {"x86_64": 0x8040, "AMD64": 0x8040, "aarch64": 0x1080000, "arm64": 0x1080000}
"""What a thread treats subnormal numbers as zero by, by processor."""
ILLEGAL: dict[str, tuple[tuple[str, Any], ...]] = {
    BFP: (
        ("bit_width", 9),
        ("bit_width", 25),
        ("block_size", 0),
        ("rounding_mode", 3),
        ("bfp_method", "bfp"),
    ),
    MX: (("element_dtype", "int4"), ("block_size", -1), ("rounding_mode", 5), ("scale_rule", "up")),
    QUANTIZE: (("axis", 65), ("axis", "0")),
    DEQUANTIZE: (("axis", -65),),
}


@dataclass(frozen=True)
class Case:
    """One operator and what it is run on: ``inputs`` at once, on one session with ``constants``."""

    op: str
    domain: str
    attributes: dict[str, Any]
    inputs: list[AnyArray]
    output: np.dtype[Any]
    constants: dict[str, AnyArray]
    threads: int
    flush: bool


def attack(seed: int, folder: Path) -> str | None:
    """Run one case that is a function of ``seed`` alone; return None if all held, else what fell."""
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    words = f"seed {seed}: {case.op} {case.attributes} on {[(x.dtype.name, x.shape) for x in case.inputs]}"
    words += " with subnormals as zero" * case.flush
    try:
        if rng.random() < 0.05:
            return _refused(case, *ILLEGAL[case.op][rng.integers(len(ILLEGAL[case.op]))])
        return _equal(case)
    except Exception as error:  # a case must not end the attack, whatever falls
        return f"{words}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def random_case(rng: Rng) -> Case:
    """Return a case with legal attributes, of which some are left out."""
    op = str(rng.choice([BFP, MX, QUANTIZE, DEQUANTIZE], p=[0.35, 0.25, 0.2, 0.2]))
    rank = int(rng.integers(0, 5))
    make = _block_case if op in (BFP, MX) else _linear_case
    attributes, inputs, output, constants = make(op, rank, rng)
    threads, flush = int(rng.integers(1, 4)), bool(rng.random() < 0.4)
    return Case(op, str(rng.choice(DOMAINS)), attributes, inputs, output, constants, threads, flush)


def _block_case(
    op: str, rank: int, rng: Rng
) -> tuple[dict[str, Any], list[AnyArray], np.dtype[Any], dict[str, AnyArray]]:
    dtype = FLOATS[rng.integers(3)]
    attributes = bfp_attributes(rng) if op == BFP else mx_attributes(rng)
    shapes = [random_shape(rank, rng) for _ in range(3)]
    reach = rank if rank > 1 else 3  # an axis of a vector is not looked at
    attributes["axis"] = int(rng.integers(-reach, reach))
    kept = {key: value for key, value in attributes.items() if rng.random() < 0.8}
    return _legal(kept), [_numbers(shape, dtype, rng) for shape in shapes], dtype, {}


def _legal(attributes: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the other attributes, or the defaults of those left out, do not allow."""
    prime = attributes.get("bfp_method", "to_bfp") != "to_bfp"
    if prime and attributes.get("block_size", 8) % attributes.get("sub_block_size", 2):
        attributes.update(block_size=16, sub_block_size=4)
    if prime or attributes.get("bit_width", 16) != 16:
        attributes.pop("use_compiler_version_cpu_kernel", None)
    return attributes


def bfp_attributes(rng: Rng) -> dict[str, Any]:
    """Return all attributes of BFPQuantizeDequantize but the axis."""
    group = int(rng.choice([1, 2, 2, 3, 4, 8, 16]))
    return {
        "bfp_method": str(rng.choice(["to_bfp", "to_bfp_prime", "to_bfp_prime_shared"])),
        "bit_width": int(rng.choice([16, rng.integers(10, 25)])),
        "block_size": group * int(rng.choice([1, 2, 3, 4, 8, 16])),
        "rounding_mode": int(rng.integers(3)),
        "sub_block_size": group,
        "sub_block_shift_bits": int(rng.integers(9)),
        "convert_to_bfloat_before_bfp": int(rng.integers(2)),
        "use_compiler_version_cpu_kernel": int(rng.integers(2)),
    }


def mx_attributes(rng: Rng) -> dict[str, Any]:
    """Return all attributes of MXQuantizeDequantize but the axis."""
    return {
        "element_dtype": str(rng.choice(list(reference.ELEMENTS))),
        "block_size": int(rng.choice([1, 2, 3, 7, 8, 16, 32, 64, 1000])),
        "rounding_mode": int(rng.choice([0, 1, 2, 7])),
        "scale_rule": str(rng.choice(["floor", "ceil", "even", "rceil"])),
    }


def random_shape(rank: int, rng: Rng) -> tuple[int, ...]:
    """Return a shape of a rank with zero and odd sizes; a large one at times, of a rank of its own."""
    fitting = [shape for shape in LARGE if len(shape) == rank]
    if fitting and rng.random() < 0.02:
        return fitting[rng.integers(len(fitting))]
    sizes = rng.choice(DIMENSIONS[:8] if rank > 3 else DIMENSIONS, rank)
    return tuple(int(max(size, rng.random() > 0.3)) for size in sizes)


def _numbers(shape: tuple[int, ...], dtype: np.dtype[Any], rng: Rng) -> AnyArray:
    """Return numbers of a pattern, or random bits of the type."""
    if dtype.itemsize == 2 and rng.random() < 0.3:
        return rng.integers(0, 2**16, int(np.prod(shape)), dtype=np.uint16).view(dtype).reshape(shape)
    with np.errstate(all="ignore"):
        x = make_pattern(str(rng.choice(list(PATTERNS))), shape, rng)
        return np.asarray(x * 2.0 ** rng.integers(-20, 1) if dtype != SINGLE else x).astype(dtype)


def _linear_case(
    op: str, rank: int, rng: Rng
) -> tuple[dict[str, Any], list[AnyArray], np.dtype[Any], dict[str, AnyArray]]:
    stored = FORMATS[str(rng.choice(STORED))].dtype
    axis = int(rng.integers(-rank, rank)) if rank else 0
    first = random_shape(rank, rng)
    channels = first[axis] if rank and rng.random() < 0.6 else 1
    count = () if channels == 1 and rng.random() < 0.5 else (channels,)
    scale = np.abs(_numbers(count, SINGLE, rng)) if rng.random() < 0.8 else _numbers(count, SINGLE, rng)
    if rng.random() < 0.2:
        scale = np.ones(count, np.float32)
    zero_point = _codes(count if rng.random() < 0.6 else (), stored, rng)
    if rng.random() < 0.4:
        zero_point = np.zeros_like(zero_point)
    shapes = [first, *(_with_channels(random_shape(rank, rng), axis, channels) for _ in range(2))]
    inputs = [
        _numbers(shape, SINGLE, rng) if op == QUANTIZE else _codes(shape, stored, rng) for shape in shapes
    ]
    attributes = {} if axis == 0 and rng.random() < 0.5 else {"axis": axis}
    constants = {"scale": scale, "zero_point": zero_point}
    return attributes, inputs, stored if op == QUANTIZE else SINGLE, constants


def _with_channels(shape: tuple[int, ...], axis: int, channels: int) -> tuple[int, ...]:
    """Return the shape with so many channels, and with less of the rest where that would be much."""
    if not shape or channels == 1:
        return shape
    sizes = [1] * len(shape) if np.prod(shape) > 2**15 else list(shape)
    sizes[axis] = channels
    return tuple(sizes)


def _codes(shape: tuple[int, ...], dtype: np.dtype[Any], rng: Rng) -> AnyArray:
    """Return random bits of a type."""
    size = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(0, 256, size, dtype=np.uint8).view(dtype).reshape(shape)


def _session(case: Case, **changes: Any) -> Any:
    names = ["x", *case.constants]
    attributes = {**case.attributes, **changes}
    node = helper.make_node(case.op, names, ["y"], name="node1", domain=case.domain, **attributes)
    types = onnx_type(case.inputs[0].dtype), onnx_type(case.output)
    more = {"constants": case.constants, "domain": case.domain, "threads": case.threads}
    return make_session([node], *types, flush=case.flush, **more)


def _refused(case: Case, name: str, value: Any) -> str | None:
    """Return None if a session with this attribute is refused with its name and the node's."""
    with ThreadPoolExecutor(1) as executor:  # a session may change how its thread treats subnormal numbers
        try:
            executor.submit(_session, case, **{name: value}).result()
        except Exception as error:  # ONNX Runtime has no type of its own for what it refuses
            named = name in str(error) and "node1" in str(error)
            return None if named else f"{case.op} {name}={value!r} is refused with '{error}'"
    per_tensor = all(part.size == 1 for part in case.constants.values()) and case.constants
    return None if per_tensor and name == "axis" and abs(int(value)) < 65 else f"{name}={value!r} is accepted"


def _equal(case: Case) -> str | None:
    """Return None if threads that share a session get what the twin gives, and inputs stay as they are."""
    copies = [x.copy() for x in case.inputs]
    expected = [_twin(case, x) for x in case.inputs]
    with ThreadPoolExecutor(1) as executor:
        session = executor.submit(_session, case).result()
    bits = FLUSH_BITS.get(platform.machine(), 0) if case.flush else 0
    with ThreadPoolExecutor(len(copies), initializer=_library.flush_again, initargs=(bits,)) as executor:
        results = list(executor.map(lambda x: run_bits(session, x), case.inputs))
    for x, copy, y, wanted in zip(case.inputs, copies, results, expected, strict=True):
        assert_same(y, np.asarray(wanted).reshape(np.shape(y)))
        assert x.tobytes() == copy.tobytes(), "the input changed"
    return None


def _twin(case: Case, x: AnyArray) -> AnyArray:
    if case.op in (BFP, MX):
        return run_twin(case.op, case.attributes, x)
    convert = reference.quantize_linear if case.op == QUANTIZE else reference.dequantize_linear
    with np.errstate(all="ignore"):
        return convert(x, *case.constants.values(), case.attributes.get("axis", 0))
