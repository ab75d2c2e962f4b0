"""Oracles: the values written in each test; for formats of a scheme, the rows of the table of formats."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

import ops
from transforms.scheme.layer_rule import make_rule
from transforms.scheme.presets import PRESETS
from transforms.scheme.scheme import LayerRule, Scheme
from transforms.scheme.sources import preset, read_scheme
from transforms.scheme.toml_writer import to_toml

PLAIN = [name for name in PRESETS if PRESETS[name]["weight"] in ops.FORMATS]


def write(folder: Path, text: str) -> Path:
    path = folder / "scheme.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PLAIN)
def test_a_preset_is_read_by_name_and_survives_toml(name: str, tmp_path: Path) -> None:
    found = read_scheme(name)
    assert found == preset(name)
    assert read_scheme(write(tmp_path, found.to_toml())) == found
    assert found.format(found.activation) is ops.FORMATS.get(found.activation)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("name", "activation", "weight"),
    (
        ("A8W8", "int8", "int8"),
        ("XINT8", "int8", "int8"),
        ("A16W8", "int16", "int8"),
        ("U8S8", "uint8", "int8"),
        ("U16S8", "uint16", "int8"),
        ("FP16", "float16", "float16"),
        ("MXFP4E2M1", "mxfp4", "mxfp4"),
        ("MXFP8E4M3", "mxfp8_e4m3", "mxfp8_e4m3"),
        ("BF16_BFP16", "bfloat16", "bfp16"),
        ("UINT32", "uint32", "uint32"),
    ),
)
def test_formats_of_presets(name: str, activation: str, weight: str) -> None:
    found = preset(name)
    assert (found.activation, found.weight) == (activation, weight)
    assert found.align_eltwise_quant_type is name.startswith(("A", "X"))
    assert found.align_concat == {"A": "auto", "X": True}.get(name[0], False)
    assert not found.fold_relu


def test_four_bit_weights_are_per_channel() -> None:
    assert PRESETS["W4A8"]["weight"] == "int4"
    assert PRESETS["W4A8"]["per_channel"] is True


@pytest.mark.parametrize("name", PLAIN)
def test_what_presets_do_to_channels(name: str) -> None:
    """As documented: blocks need like channels, wide activations take over what weights of 8 bits cannot."""
    found = preset(name)
    activation = found.format(found.activation)
    blocks = activation is not None and activation.block > 1
    wide = name in ("A16W8", "U16S8", "S16S8_MIXED_S8S8")
    integers = activation is not None and activation.is_integer and activation.bits <= 16
    assert found.equalize_layers == ("auto" if integers and not wide else blocks)
    shifted = name == "XINT8"  # one power of two for a tensor needs like channels most
    assert found.equalizes_by_rule == (blocks or shifted)
    assert found.balance_channels is (blocks or wide)
    assert found.move_outliers is (name in ("A8W8", "U8S8", "W4A8", "XINT8", "A8W8_DYNAMIC"))
    floats = activation is not None and not activation.is_integer
    few_bits = name in ("MX4", "MXFP4E2M1")
    kept = wide or name in ("A8W8", "U8S8", "W4A8") or (floats and not few_bits)
    assert found.keep_float is kept
    blocked = ("W4", "W4_MIXED", "W2")
    per_channel = name in ("W4A8", "W8", "A8W8_DYNAMIC", *blocked) or (
        "auto" if found.weight == "int8" else False
    )
    assert found.block_size == (32 if name in blocked else 0)
    assert found.per_channel == (False if shifted else per_channel)


def test_every_key_survives_toml(tmp_path: Path) -> None:
    full = Scheme(
        activation="bfloat16",
        weight="small",
        bias="float16",
        other="float32",
        per_channel=True,
        scale="power_of_two",
        block_size=64,
        activation_symmetric=True,
        calibrate_method="Percentile",
        percentile=99.5,
        moving_average=True,
        averaging_constant=1e-5,
        weight_method="MSE",
        weight_symmetric="auto",
        finer_share=0.25,
        rotate_channels=True,
        correct_biases="auto",
        calibrate_tensors={"x": "Percentile"},
        quantize_all_op_types=True,
        arithmetic=True,
        op_types=("Conv", "MatMul"),
        exclude_nodes=("/head/*", 'odd "name"\\', "tab\tdel\x7fé😀"),
        exclude_op_types=("Softmax",),
        fold_relu=True,
        fit_weights=True,
        quantize_before_relu=True,
        align_concat=True,
        align_slice=True,
        align_eltwise_quant_type=True,
        dual_quant_nodes=True,
        keep_weight_nodes=True,
        equalize_layers=True,
        balance_channels=True,
        move_outliers=True,
        keep_float=True,
        found=False,
        dynamic_ranges="tensor",
        optimize=False,
        target="ort-cpu",
        opset=17,
        input_shapes={"images:0": (1, 3, 224, 224)},
        qdq_domain="com.microsoft",
        domain="com.amd.quark",
        bfloat16_as="cast",
        saturation="ignore",
        formats={"small": {"base": "bfp16", "bit_width": 13, "block_size": 16}},
        layers={
            "/body/conv*": LayerRule("int16", bias="auto", per_channel=False),
            "Gemm": LayerRule("small", "mx9", weight_method="MSE"),
        },
        tensors={"conv3.weight": "bfloat16", "x": "float32"},
        outliers={"/body/norm": "3:1 17:own", "y": "0:-2"},
        auto_mixed_precision={"target": ("bfp16", "int8/int4"), "l2_target": 1e-5, "dual_quant_nodes": True},
        finetune={"algorithm": "adaquant", "num_iterations": 10, "target_op_type": ("Conv", "Gemm")},
    )
    default = Scheme("int8", "int8")
    same = [f.name for f in dataclasses.fields(Scheme) if getattr(full, f.name) == getattr(default, f.name)]
    assert same == ["dynamic"]  # which goes with no format of activations; every other key survives
    assert read_scheme(write(tmp_path, full.to_toml())) == full
    dynamic = preset("A8W8_DYNAMIC").with_(layers={"head": {"dynamic": False}})
    assert read_scheme(write(tmp_path, dynamic.to_toml())) == dynamic


def test_a_file_changes_a_preset(tmp_path: Path) -> None:
    text = """
    preset = "A8W8"
    percentile = 100
    exclude_nodes = ["head*"]
    [layers]
    Gemm = "bfp16"
    "conv*" = { activation = "int16", per_channel = true }
    [tensors]
    "conv3.weight" = "bfloat16"
    """
    expected = preset("A8W8").with_(
        percentile=100.0,
        exclude_nodes=("head*",),
        layers={"Gemm": LayerRule("bfp16", "bfp16"), "conv*": LayerRule("int16", per_channel=True)},
        tensors={"conv3.weight": "bfloat16"},
    )
    assert read_scheme(write(tmp_path, text)) == expected
    assert read_scheme(write(tmp_path, 'activation = "mx9"\nweight = "float32"')) == Scheme("mx9", "float32")


def test_the_scheme_keeps_no_hold_of_what_it_was_made_from() -> None:
    tensors = {"a": "int8"}
    found = preset("A8W8").with_(tensors=tensors)
    tensors["b"] = "no format"
    assert found.tensors == {"a": "int8"}


@pytest.mark.parametrize(
    "name", ("bfp16", "mx4", "mx6", "mx9", "mxint8", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp4")
)
def test_a_format_without_changes_is_its_base(name: str) -> None:
    found = preset("BF16").with_(formats={"own": {"base": name}}).format("own")
    assert found == dataclasses.replace(ops.FORMATS[name], name="own")


def test_a_format_with_changes_is_what_the_table_would_say() -> None:
    formats = {
        "mx9_again": {"base": "bfp16", "bfp_method": "to_bfp_prime", "block_size": 16},
        "plain": {"base": "mx9", "bfp_method": "to_bfp", "block_size": 8},
        "fp6": {"base": "mxint8", "element_dtype": "fp6_e2m3"},
        "ceil": {"base": "mxfp4", "scale_rule": "ceil", "block_size": 16},
    }
    scheme = preset("BF16").with_(formats=formats)
    for own, base in (("mx9_again", "mx9"), ("fp6", "mxfp6_e2m3")):
        assert scheme.format(own) == dataclasses.replace(ops.FORMATS[base], name=own)
    plain, ceil = scheme.format("plain"), scheme.format("ceil")
    assert plain and ceil
    assert {**plain.attributes} == {**ops.FORMATS["bfp16"].attributes, "bfp_method": "to_bfp"}
    assert (plain.bits, plain.highest) == (9, ops.FORMATS["bfp16"].highest)
    assert ceil.attributes["scale_rule"] == "ceil"
    assert (ceil.bits, ceil.block) == (4.5, 16)


def test_formats_that_follow_from_others() -> None:
    int8, mx9 = ops.FORMATS["int8"], ops.FORMATS["mx9"]
    assert preset("BFP16").other_format is None
    assert preset("BF16_BFP16").other_format == ops.FORMATS["bfloat16"]
    assert preset("FP16").other_format == ops.FORMATS["float16"]
    assert preset("BFP16").with_(other="bfloat16").other_format == ops.FORMATS["bfloat16"]
    integers = preset("A8W8")
    assert integers.format("float32") is None
    assert integers.bias_format(int8, int8) == ops.FORMATS["int32"]
    assert integers.bias_format(int8, None) is integers.bias_format(mx9, int8) is None
    assert integers.bias_format(int8, int8, LayerRule(bias="float32")) is None
    assert integers.bias_format(int8, int8, LayerRule("int8")) == ops.FORMATS["int32"]
    assert preset("BF16").bias_format(int8, mx9) == ops.FORMATS["bfloat16"]
    assert preset("BFP16").with_(bias="bfloat16").bias_format(mx9, mx9) == ops.FORMATS["bfloat16"]


def test_signed_ranges_are_symmetric_unless_told_otherwise() -> None:
    signed, unsigned = ops.FORMATS["int16"], ops.FORMATS["uint8"]
    scheme = preset("U8S8")
    assert (scheme.is_symmetric(signed), scheme.is_symmetric(unsigned)) == (True, False)
    assert scheme.with_(activation_symmetric=True).is_symmetric(unsigned)
    assert not scheme.with_(activation_symmetric=False).is_symmetric(signed)


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        (
            {"activaton": "int8"},
            "key 'activaton' is unknown, did you mean 'activation'? legal are activation, weight,",
        ),
        ({"zzz": 1}, "key 'zzz' is unknown, legal are activation,"),
        (
            {"activation": "int9"},
            "activation: format 'int9' is unknown, did you mean 'int8'? legal are float32, ",
        ),
        ({"weight": 8}, "weight is 8, it must be a string"),
        ({"bias": "int8"}, "bias is 'int8', the only integer format for a bias is int32"),
        ({"activation": "auto"}, "activation: format 'auto' is unknown"),
        ({"other": "int8"}, "other is 'int8', legal are 'auto', 'float32', 'bfloat16', 'float16'"),
        ({"per_channel": 1}, "per_channel is 1, it must be true, false or 'auto'"),
        ({"per_channel": "Auto"}, "per_channel is 'Auto', it must be true, false or 'auto'"),
        ({"activation_symmetric": "yes"}, "activation_symmetric is 'yes', it must be true, false or 'auto'"),
        (
            {"calibrate_method": "minmax"},
            "calibrate_method is 'minmax', did you mean 'MinMax'? legal are 'MinMax', 'Entropy', ",
        ),
        (
            {"weight_method": "Entropy"},
            "weight_method is 'Entropy', legal are 'auto', 'MinMax', 'MSE', 'WeightedMSE'",
        ),
        ({"percentile": 50}, "percentile is 50, legal are numbers above 50 up to 100"),
        ({"percentile": 100.1}, "percentile is 100.1, legal are numbers above 50 up to 100"),
        ({"percentile": float("nan")}, "percentile is nan, legal are numbers above 50 up to 100"),
        ({"percentile": True}, "percentile is True, it must be a number"),
        ({"averaging_constant": 0}, "averaging_constant is 0, legal are numbers above 0 up to 1"),
        ({"op_types": "Conv"}, "op_types is 'Conv', it must be a list of strings"),
        ({"exclude_nodes": ["a", 1]}, "exclude_nodes is ['a', 1], it must be a list of strings"),
        ({"domain": "x"}, "domain is 'x', legal are 'ai.onnx.contrib', 'com.amd.quark'"),
        ({"qdq_domain": "ai.onnx"}, "qdq_domain is 'ai.onnx', legal are '', 'com.microsoft'"),
        ({"bfloat16_as": "Cast"}, "bfloat16_as is 'Cast', did you mean 'cast'? legal are 'qdq', 'cast'"),
        ({"tensors": ["x"]}, "tensors is ['x'], it must be a table"),
        ({"tensors": {"x": 3}}, "tensors entry 'x' is 3, it must be the name of a format"),
        ({"tensors": {"x": "bf16"}}, "tensors entry 'x': format 'bf16' is unknown, did you mean 'bfp16'?"),
        ({"layers": {"Conv": {}}}, "layers entry 'Conv' is {}, it must be a format or a table of keys"),
        ({"layers": {"Conv": 3}}, "layers entry 'Conv' is 3, it must be a format or a table of keys"),
        ({"layers": {"Conv": "int7"}}, "layers entry 'Conv': activation: format 'int7' is unknown"),
        (
            {"layers": {"a*": {"wight": "int8"}}},
            "layers entry 'a*': key 'wight' is unknown, did you mean 'weight'?",
        ),
        (
            {"layers": {"a*": {"weight": True}}},
            "layers entry 'a*': weight is True, it must be the name of a format",
        ),
        (
            {"layers": {"a*": {"per_channel": "no"}}},
            "layers entry 'a*': per_channel is 'no', it must be true or false",
        ),
        (
            {"layers": {"a*": {"bias": "uint8"}}},
            "layers entry 'a*': bias is 'uint8', the only integer format for a bias",
        ),
    ),
)
def test_a_wrong_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        preset("A8W8").with_(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format", ("int4", "uint4"))
def test_four_bits_are_for_weights(format: str) -> None:
    assert preset("W4A8").with_(weight=format, tensors={"w": format}).weight == format
    with pytest.raises(ValueError, match=f"^activation is '{format}', but {format} is for weights$"):
        preset("W4A8").with_(activation=format)
    with pytest.raises(
        ValueError, match=f"^layers entry 'Conv': activation is '{format}', but {format} is for"
    ):
        preset("W4A8").with_(layers={"Conv": format})


@pytest.mark.parametrize(
    ("definition", "message"),
    (
        (3, "format 'own' is 3, it must be a table"),
        ({}, "format 'own' has no base, legal are the block formats bfp16, mx4, mx6, mx9, mxint8,"),
        ({"base": "int8"}, "format 'own' has base 'int8', legal are the block formats bfp16,"),
        (
            {"base": "bfp16", "bits": 3},
            "format 'own': attribute 'bits' is unknown, legal are bit_width, block_size,",
        ),
        (
            {"base": "bfp16", "bit_width": 25},
            "format 'own': bit_width is 25, legal are integers from 10 to 24",
        ),
        ({"base": "bfp16", "bit_width": 9}, "format 'own': bit_width is 9, legal are integers from 10 to 24"),
        (
            {"base": "mx9", "block_size": 16.0},
            "format 'own': block_size is 16.0, legal are integers from 1 to",
        ),
        (
            {"base": "mx9", "block_size": True},
            "format 'own': block_size is True, legal are integers from 1 to",
        ),
        (
            {"base": "mx9", "block_size": 15},
            "format 'own': sub_block_size is 2, legal are divisors of block_size 15",
        ),
        ({"base": "bfp16", "sub_block_size": 2}, "format 'own': attribute 'sub_block_size' is unknown"),
        (
            {"base": "mx9", "bfp_method": "x"},
            "format 'own': bfp_method is 'x', legal are 'to_bfp', 'to_bfp_prime'",
        ),
        (
            {"base": "mxint8", "scale_rule": "up"},
            "format 'own': scale_rule is 'up', legal are 'floor', 'ceil', 'even'",
        ),
        (
            {"base": "mxint8", "element_dtype": "fp9"},
            "format 'own': element_dtype is 'fp9', legal are 'int8',",
        ),
        (
            {"base": "mxint8", "bit_width": 8},
            "format 'own': attribute 'bit_width' is unknown, legal are element_dtype",
        ),
    ),
)
def test_a_wrong_format_definition_is_named(definition: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        preset("BF16").with_(formats={"own": definition})
    assert str(caught.value).startswith(message)


def test_names_of_formats_are_not_taken_twice() -> None:
    for name in ("mx9", "float32", "auto"):
        with pytest.raises(ValueError, match=f"^format '{name}' cannot be redefined: the name is taken$"):
            preset("BF16").with_(formats={name: {"base": "bfp16"}})


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ('preset = "a8w8"', "preset 'a8w8' is unknown, did you mean 'A8W8'? legal are A8W8,"),
        ("preset = 3", "preset is 3, it must be a string"),
        ('weight = "int8"', "key 'activation' is missing, and there is no preset to take it from"),
        ('presett = "A8W8"', "key 'presett' is unknown, did you mean 'preset'?"),
        ("activation = ", "Invalid value"),
        ('preset = "A8W8"\n[auto_mixed]\nx = 1', "key 'auto_mixed' is unknown"),
        (
            'preset = "A8W8"\nfold_relu = 1979-05-27',
            "fold_relu is datetime.date(1979, 5, 27), it must be true or false",
        ),
    ),
)
def test_an_error_in_a_file_names_the_file(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        read_scheme(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_what_is_no_file_and_no_preset(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^preset 'BF61' is unknown, did you mean 'BF16'\? legal are A8W8, "
    ):
        preset("BF61")
    with pytest.raises(ValueError, match=r"none\.toml' is neither a file nor one of the presets A8W8, "):
        read_scheme(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"binary\.toml: 'utf-8' codec can't decode"):
        read_scheme(tmp_path / "binary.toml")


def test_rules_of_layers() -> None:
    assert make_rule("Conv", "mx9") == LayerRule("mx9", "mx9", None, None)
    assert make_rule("Conv", {"bias": "float32"}) == LayerRule(bias="float32")
    assert make_rule("Conv", LayerRule(per_channel=False)).said == {"per_channel": False}


def test_toml_of_every_kind_of_value() -> None:
    values = {"a": True, "b": 2, "c": 0.5, "d": "x", "e": ("y", "z"), "f": {"g h": 1, "i": {"j": "k"}}}
    expected = 'a = true\nb = 2\nc = 0.5\nd = "x"\ne = ["y", "z"]\n\n[f]\n"g h" = 1\ni = { j = "k" }\n'
    assert to_toml(values) == expected
