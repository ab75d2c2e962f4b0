"""Weights in codes and the functions that decode them, in sessions that know nothing of this package.

Oracle: the weights as they were rounded, bit for bit, and bits per element of the table of formats.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import ops
from ops.formats import FORMATS, Format, format_of
from tests.helpers.packed_models import model_of, packed, run
from transforms.features.packed.code_layout import join_planes, plane_bytes
from transforms.features.packed.codes import codes_of
from transforms.features.packed.lanes import COLUMNS, ROWS, Lanes
from transforms.features.packed.pack_constant import split_planes
from transforms.features.packed.unpackers import format_of_op, format_of_own, group_of, make_unpacker, op_of

BLOCKS = [name for name, fmt in FORMATS.items() if fmt.block > 1]
LARGEST_FUNCTION = 8_000  # bytes
LARGEST_OF_LANES = 80_000
MOST_FOLDED = 7  # bytes of all that is folded, for each byte of a weight; 19 without lanes


def own_format(op: str, **attributes: int | str) -> Format:
    fmt = format_of(op, attributes)
    assert fmt is not None
    return fmt


BFP, MX = "BFPQuantizeDequantize", "MXQuantizeDequantize"
OWN = [
    own_format(BFP, bit_width=10, block_size=5),
    own_format(BFP, bit_width=12, block_size=16, rounding_mode=1),
    own_format(BFP, bit_width=15, block_size=3),
    own_format(BFP, use_compiler_version_cpu_kernel=1),
    own_format(BFP, bfp_method="to_bfp_prime", bit_width=14, block_size=12, sub_block_size=3),
    own_format(BFP, bfp_method="to_bfp_prime", block_size=16, sub_block_size=4, sub_block_shift_bits=3),
    own_format(BFP, bfp_method="to_bfp_prime", block_size=8, sub_block_size=8, sub_block_shift_bits=8),
    own_format(MX, element_dtype="fp8_e4m3", scale_rule="rceil"),
    own_format(MX, element_dtype="fp4_e2m1", block_size=2**31 - 1),
    own_format(MX, block_size=1),
]
ALL = [*(FORMATS[name] for name in BLOCKS), *OWN]


@pytest.fixture(params=[False, True], ids=["general", "lanes"])
def in_lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether small weights are stored as large ones are, which few steps decode."""
    if request.param:
        monkeypatch.setattr("transforms.features.packed.pack_constant.LARGE", 1)
    return bool(request.param)


def rounded(shape: tuple[int, ...], fmt: Format, axis: int, seed: int = 0) -> np.ndarray:
    """Return normal numbers of many magnitudes on the grid of a format."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
    return np.asarray(ops.quantize_dequantize(x.astype(np.float32), fmt, axis))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(64, 48), (33, 7, 5), (3, 130), (40, 1, 3, 3), (2, 64, 32)], ids=str)
@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
@pytest.mark.usefixtures("in_lanes")
def test_sessions_decode_the_same_bits(fmt: Format, shape: tuple[int, ...], axis: int) -> None:
    w = rounded(shape, fmt, axis)
    found = packed(w, fmt, axis)
    assert found is not None
    assert run(model_of(found)).tobytes() == w.tobytes()


@pytest.mark.parametrize("opset", [13, 14, 18, 21])
@pytest.mark.parametrize("name", BLOCKS)
def test_every_kind_of_session(name: str, opset: int, in_lanes: bool) -> None:
    """With and without optimization and library, and the evaluator of onnx; the full checker passes."""
    w = rounded((24, 64 if in_lanes else 70), FORMATS[name], 1)
    found = packed(w, FORMATS[name], 1)
    assert found is not None
    model = model_of(found, opset)
    onnx.checker.check_model(model, full_check=True)
    assert found.op.endswith("_rows") == in_lanes
    assert len(model.functions[0].SerializeToString()) < (LARGEST_OF_LANES if in_lanes else LARGEST_FUNCTION)
    for optimize in (True, False):
        for library in (True, False):
            assert run(model, optimize=optimize, library=library).tobytes() == w.tobytes()
    (evaluated,) = ReferenceEvaluator(model).run(None, {})
    assert evaluated.tobytes() == w.tobytes()


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("axis", [0, 1])
def test_few_bytes_are_folded_for_a_large_weight(name: str, axis: int) -> None:
    """A session holds all that it folds until the last is done. Oracle: sizes that shape inference tells."""
    w = rounded((512, 512), FORMATS[name], axis)
    found = packed(w, FORMATS[name], axis)
    assert found is not None and found.op.endswith(("_rows", "_columns"))
    assert run(model_of(found)).tobytes() == w.tobytes()
    plain = onnx.inliner.inline_local_functions(model_of(found))
    made = onnx.shape_inference.infer_shapes(plain, data_prop=True).graph.value_info
    types = [value.type.tensor_type for value in made]
    sizes = [4 * np.prod([size.dim_value for size in one.shape.dim]) for one in types]
    assert len(sizes) >= 8 and sum(sizes) < MOST_FOLDED * w.nbytes


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.usefixtures("in_lanes")
def test_sessions_fold_what_decodes(name: str, tmp_path: Path) -> None:
    """Nothing is left of it to run: as ONNX Runtime stores what it has optimized."""
    w = rounded((32, 80), FORMATS[name], 0)
    found = packed(w, FORMATS[name], 0)
    assert found is not None
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(model_of(found).SerializeToString(), options)
    assert not onnx.load(tmp_path / "optimized.onnx").graph.node


@pytest.mark.parametrize("name", BLOCKS)
def test_bytes_are_as_the_bits_of_the_format_promise(name: str) -> None:
    w = rounded((128, 256), FORMATS[name], 1)
    found = packed(w, FORMATS[name], 1)
    assert found is not None
    assert FORMATS[name].bits <= 8 * found.nbytes / w.size < FORMATS[name].bits * 1.01


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.usefixtures("in_lanes")
def test_every_exponent(name: str) -> None:
    """Blocks at every power of two that float32 has, where results are subnormal, too."""
    fmt = FORMATS[name]
    x = np.random.default_rng(0).standard_normal((277, fmt.block)).astype(np.float64)
    x = (x / np.abs(x).max(1, keepdims=True)) * 2.0 ** np.arange(-149, 128)[:, None]
    w = np.asarray(ops.quantize_dequantize(x.astype(np.float32), fmt, 1))
    found = packed(w, fmt, 1)
    assert found is not None
    assert "places" not in found.inputs or fmt.name == "mxint8"
    assert run(model_of(found)).tobytes() == w.tobytes()


@pytest.mark.parametrize("special", [np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-45, 0.3])
@pytest.mark.parametrize("name", ["bfp16", "mx6", "mxint8", "mxfp4"])
@pytest.mark.usefixtures("in_lanes")
def test_single_numbers_without_a_code_are_stored_beside(name: str, special: float) -> None:
    w = rounded((64, 64), FORMATS[name], 1)
    w[3, 5] = w[60, 63] = special
    found = packed(w, FORMATS[name], 1)
    assert found is not None and (special == 0 or "places" in found.inputs)
    assert run(model_of(found)).tobytes() == w.tobytes()


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.usefixtures("in_lanes")
def test_negative_zeros_stay(name: str) -> None:
    w = rounded((32, 64), FORMATS[name], 1)
    w[:, ::3] = -0.0
    found = packed(w, FORMATS[name], 1)
    assert found is not None
    assert run(model_of(found)).tobytes() == w.tobytes()


def test_the_lowest_number_of_twos_complement() -> None:
    """-2 * 2^E has no code beside -0: it is stored with its place, and the block keeps its exponent."""
    w = rounded((64, 64), FORMATS["mxint8"], 1)
    w[0, :32] = np.float32([-128, *range(-31, 31, 2)]) / 64
    found = packed(w, FORMATS["mxint8"], 1)
    assert found is not None and 0 in np.asarray(found.inputs["places"])
    assert run(model_of(found)).tobytes() == w.tobytes()


@pytest.mark.parametrize("name", BLOCKS)
def test_numbers_on_no_grid_have_no_codes(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    assert packed(x, FORMATS[name], 1) is None


def test_wide_elements_have_no_codes() -> None:
    fmt = own_format(BFP, bit_width=18)
    assert codes_of(fmt) is None
    assert packed(rounded((8, 8), fmt, 1), fmt, 1) is None


@settings(max_examples=150, deadline=None)
@given(
    shape=st.lists(st.sampled_from([*range(1, 10), 16, 32]), min_size=1, max_size=3),
    large=st.sampled_from([1, 2**18]),
    axis=st.integers(-3, 2),
    fmt=st.sampled_from(ALL),
    words=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
)
def test_any_shape_and_numbers(
    shape: list[int], large: int, axis: int, fmt: Format, words: list[int]
) -> None:
    """Random bits, with NaN and infinities: what has codes decodes to the same bits."""
    axis = axis % len(shape)
    bits = np.resize(np.uint32(words), shape)
    with np.errstate(invalid="ignore"):
        w = np.asarray(ops.quantize_dequantize(bits.view(np.float32), fmt, axis))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transforms.features.packed.pack_constant.LARGE", large)
        found = packed(w, fmt, axis)
    if found is not None:
        assert run(model_of(found)).tobytes() == w.tobytes()


@given(bits=st.integers(2, 8), codes=st.lists(st.integers(0, 255), min_size=1, max_size=50))
def test_planes_of_bits(bits: int, codes: list[int]) -> None:
    flat = np.uint8(codes) & np.uint8(2**bits - 1)
    planes = split_planes(flat, bits)
    assert [plane.size for plane in planes] == plane_bytes(flat.size, bits)
    assert np.array_equal(join_planes(planes, bits, flat.size), flat)


@pytest.mark.parametrize("patched", [True, False])
@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("form", ["", ROWS, COLUMNS])
def test_names_tell_the_format(fmt: Format, patched: bool, form: str) -> None:
    op = op_of(fmt, patched=patched, form=form)
    assert op.isidentifier()
    codes = codes_of(fmt)
    assert codes is not None
    if form and Lanes.of(codes, group_of(fmt), form) is None:
        with pytest.raises(ValueError, match="has no lanes"):
            make_unpacker(fmt, 17, patched=patched, form=form)
        return
    function = make_unpacker(fmt, 17, patched=patched, form=form)
    found = format_of_own(function)
    assert found is not None and found == format_of_op(op) and found[1] == patched
    assert found[0].op == fmt.op and found[0].block == fmt.block and found[0].bits == fmt.bits
    function.node[0].name = "changed"
    assert format_of_own(function) is None


@pytest.mark.parametrize(
    "op", ["Unpack_", "Unpack_int8", "Unpack_mx7", "mx6", "Unpack_mx6__a_is_1", "Unpack_X__"]
)
def test_other_names_tell_nothing(op: str) -> None:
    assert format_of_op(op) is None
