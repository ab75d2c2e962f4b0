"""The table ``[auto_mixed_precision]`` of a scheme. Oracle: what each test says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_graphsurgeon as gs
import pytest

from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import Scheme, preset, read_scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.mixing_rule import MixingRule
from transforms.scheme.presets import MIXED, suffixes
from transforms.search.target import Target


def rule(name: str, **table: Any) -> MixingRule:
    found = preset(name).with_(auto_mixed_precision=table).auto_mixed_precision
    assert found is not None
    return found


def test_nothing_said_is_no_rule() -> None:
    assert MixingRule.parse("auto_mixed_precision", {}) is None
    assert preset("A16W8").auto_mixed_precision is None


def test_file_with_a_table(tmp_path: Path) -> None:
    path = tmp_path / "scheme.toml"
    path.write_text(
        'preset = "BF16"\n[auto_mixed_precision]\ntarget = ["bfp16", "mx6"]\ntarget_op_types = ["MatMul"]\n'
        'exclude_nodes = ["/head/*"]\nl2_target = 1\ndual_quant_nodes = true\n'
    )
    scheme = read_scheme(path)
    assert scheme.auto_mixed_precision == MixingRule(
        target=("bfp16", "mx6"),
        target_op_types=("MatMul",),
        exclude_nodes=("/head/*",),
        l2_target=1.0,
        dual_quant_nodes=True,
    )
    path.write_text(scheme.to_toml())
    assert read_scheme(path) == scheme


def test_formats_of_layers() -> None:
    assert MixingRule("bfp16").choices("bfloat16", "bfloat16") == (LayerRule("bfp16", "bfp16"),)
    several = MixingRule(("mx9", "int8/int4")).choices("int16", "int8")
    assert several == (LayerRule("mx9", "mx9"), LayerRule("int8", "int4"))
    assert [one.label for one in several] == ["mx9", "int8/int4"]
    assert MixingRule(activation_target="int8").choices("int16", "int8") == (LayerRule("int8", "int8"),)
    assert MixingRule(weight_target="int4").choices("int16", "int8") == (LayerRule("int16", "int4"),)


@pytest.mark.parametrize(
    ("table", "target", "measured_by"),
    [
        ({}, None, "sqnr"),
        ({"l2_target": 0.5}, Target("l2", 0.5), "l2"),
        ({"l2_target": 0}, Target("l2", 0.0), "l2"),
        ({"sqnr_target": -3}, Target("sqnr", -3.0), "sqnr"),
        ({"sqnr_drop_target": 3}, Target("sqnr", 3.0, relative=True), "sqnr"),
        ({"top1_target": 0.01}, Target("lost_top1", 0.01), "kl"),
        ({"kl_target": 0.1}, Target("kl", 0.1), "kl"),
        (
            {"evaluate_target": 0.1, "evaluate": "m.py:f"},
            Target("evaluate", 0.1, relative=True),
            "evaluate",
        ),
    ],
)
def test_targets(table: dict[str, Any], target: Target | None, measured_by: str) -> None:
    found = rule("BF16", target="bfp16", **table)
    assert found.bound == target
    assert found.measured_by == measured_by


@pytest.mark.parametrize("name", MIXED)
def test_mixed_presets(name: str) -> None:
    scheme = preset(name)
    found = scheme.auto_mixed_precision
    assert found is not None
    plain = {"BF16_MIXED_BFP16": "BF16", "BF16_MIXED_MXINT8": "BF16", "S16S8_MIXED_S8S8": "A16W8"}[name]
    assert scheme.with_(auto_mixed_precision=None) == preset(plain)
    labels = [one.label for one in found.choices(scheme.activation, scheme.weight)]
    assert labels == [{"BFP16": "bfp16", "MXINT8": "mxint8", "S8S8": "int8"}[name.rpartition("_")[2]]]
    drop = Target("sqnr", 3.0, relative=True)
    assert found.bound == (drop if plain == "A16W8" else None)
    assert suffixes(name) == ("_ADAQUANT",)


def test_mixing_is_a_step_of_its_own() -> None:
    for name in MIXED:
        with pytest.raises(ValueError) as caught:
            quantize_graph(gs.Graph(outputs=[gs.Variable("y")]), preset(name))
        step = "transforms.precision.mix.mix_precision"
        words = f"the scheme asks for mixed precision, which is a step of its own: {step}"
        assert str(caught.value) == words


START = "auto_mixed_precision "


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"taget": "bfp16"}, START + "key 'taget' is unknown, did you mean 'target'?"),
        ({"l2_target": 1}, START + "target is missing: the format, or formats, that layers may get"),
        ({"target": 3}, START + "target is 3, it must be a string or a list of strings"),
        ({"target": ["mx6", "mx6"]}, START + "target names a format twice: mx6, mx6"),
        ({"target": "bfp61"}, "auto_mixed_precision: activation of 'bfp61': format 'bfp61' is unknown, did"),
        ({"target": "mx6/x"}, "auto_mixed_precision: weight of 'mx6/x': format 'x' is unknown, legal"),
        ({"target": "int8/"}, "auto_mixed_precision: weight of 'int8/': format '' is unknown"),
        ({"target": "int4"}, "auto_mixed_precision: activation of 'int4' is 'int4', but int4 is for weights"),
        (
            {"target": ["mx6", "int16/int8"]},
            "auto_mixed_precision: 'int16/int8' is the scheme's own format",
        ),
        ({"weight_target": "int8"}, "auto_mixed_precision: 'int16/int8' is the scheme's own format"),
        (
            {"target": "mx6", "weight_target": "mx6"},
            START + "target cannot be combined with activation_target and weight_target",
        ),
        ({"target": "mx6", "target_op_types": ["LSTM"]}, START + "target_op_types 'LSTM' is unknown, legal"),
        ({"target": "mx6", "exclude_nodes": "a"}, START + "exclude_nodes is 'a', it must be a list of str"),
        ({"target": "mx6", "output_index": -2}, START + "output_index is -2, legal are numbers from -1"),
        ({"target": "mx6", "output_index": 1.5}, START + "output_index is 1.5, it must be a whole number"),
        ({"target": "mx6", "l2_target": -1}, START + "l2_target is -1.0, legal are numbers from 0"),
        ({"target": "mx6", "l2_target": "1"}, START + "l2_target is '1', it must be a number"),
        (
            {"target": "mx6", "sqnr_target": float("nan")},
            START + "sqnr_target is nan, legal are numbers of any sign",
        ),
        ({"target": "mx6", "top1_target": 1.5}, START + "top1_target is 1.5, legal are numbers from 0 to 1"),
        (
            {"target": "mx6", "l2_target": 1, "top1_target": 0.01},
            START + "l2_target and top1_target cannot be combined: there is one target",
        ),
        (
            {"target": "mx6", "evaluate_target": 0.01},
            START + "evaluate, FILE.py:FUNCTION, and evaluate_target require each other",
        ),
        (
            {"target": "mx6", "evaluate": "m.py:f"},
            START + "evaluate, FILE.py:FUNCTION, and evaluate_target require each other",
        ),
        (
            {"target": "mx6", "evaluate": "m", "evaluate_target": 0.01},
            "evaluate 'm' is not FILE.py:FUNCTION",
        ),
        ({"target": "mx6", "sensitivity": "trace"}, START + "key 'sensitivity' is unknown"),
        *(
            ({"target": "mx6", key: 1}, f"{START}key '{key}' is unknown")
            for key in ("strategy", "metric", "bytes_target", "include_nodes", "data_size")
        ),
        (
            {"target": "mx6", "bits_target": 8, "size_target": 9},
            START + "bits_target and size_target cannot be combined",
        ),
        (
            {"target": "mx6", "l2_target": 1, "size_target": 9},
            START + "size_target cannot be combined with a target of the outputs",
        ),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        preset("A16W8").with_(auto_mixed_precision=table)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_formats_of_the_scheme_itself_may_be_targets() -> None:
    scheme = Scheme(
        "bfloat16",
        "bfloat16",
        formats={"small": {"base": "bfp16", "bit_width": 13}},
        auto_mixed_precision={"target": ["small", "float32"]},
    )
    assert scheme.auto_mixed_precision == MixingRule(("small", "float32"))


@pytest.mark.parametrize(
    ("table", "has_budget", "is_of_size"),
    [
        ({}, False, False),
        ({"bits_target": 6}, True, True),
        ({"size_target": 5000}, True, True),
        ({"sqnr_target": 30}, False, False),
        ({"bits_target": 6, "sqnr_target": 30}, True, False),
    ],
)
def test_budgets(table: dict[str, Any], has_budget: bool, is_of_size: bool) -> None:
    mixing = rule("BF16", target=["bfp16", "mx6"], **table)
    assert (mixing.has_budget, mixing.is_of_size) == (has_budget, is_of_size)
