"""Illegal attributes are refused at session creation, naming node, attribute, value and what is legal."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import helper

import ops
from tests.helpers.operator_sessions import BFP, DOMAINS, MX, QUANTIZE, block_session, make_session

PRIME = {"bfp_method": "to_bfp_prime"}
ILLEGAL: list[tuple[str, dict[str, Any], str, str]] = [
    (BFP, {"bfp_method": "bfp"}, "'bfp_method' is 'bfp'", "to_bfp, to_bfp_prime, to_bfp_prime_shared"),
    (BFP, {"bfp_method": "x" * 99}, "'bfp_method' is", "to_bfp"),
    (BFP, {"bfp_method": ""}, "'bfp_method' is ''", "to_bfp"),
    (BFP, {"bit_width": 9}, "'bit_width' is 9", "10 to 24"),
    (BFP, {"bit_width": 25}, "'bit_width' is 25", "10 to 24"),
    (BFP, {"block_size": 0}, "'block_size' is 0", "1 to"),
    (BFP, {"block_size": -8}, "'block_size' is -8", "1 to"),
    (BFP, {"rounding_mode": 3}, "'rounding_mode' is 3", "0 to 2"),
    (BFP, {"rounding_mode": -1}, "'rounding_mode' is -1", "0 to 2"),
    (BFP, {"sub_block_shift_bits": 9}, "'sub_block_shift_bits' is 9", "0 to 8"),
    (BFP, {**PRIME, "sub_block_size": 3}, "'sub_block_size' is 3", "divisors of block_size 8"),
    (BFP, {"sub_block_size": 0}, "'sub_block_size' is 0", "1 to"),
    (BFP, {"convert_to_bfloat_before_bfp": 2}, "'convert_to_bfloat_before_bfp' is 2", "0 to 1"),
    (BFP, {"use_compiler_version_cpu_kernel": 2}, "'use_compiler_version_cpu_kernel' is 2", "0 to 1"),
    (BFP, {"use_compiler_version_cpu_kernel": 1, "bit_width": 13}, "cpu_kernel' is 1", "bit_width is 16"),
    (BFP, {"use_compiler_version_cpu_kernel": 1, **PRIME}, "cpu_kernel' is 1", "to_bfp"),
    (BFP, {"axis": 2}, "'axis' is 2", "-2 to 1 for an input of rank 2"),
    (BFP, {"axis": -3}, "'axis' is -3", "-2 to 1"),
    (BFP, {"axis": 1.0}, "'axis' has a wrong type", "integer"),
    (BFP, {"bfp_method": 1}, "'bfp_method' has a wrong type", "string"),
    (MX, {"element_dtype": "fp8"}, "'element_dtype' is 'fp8'", "int8, fp8_e4m3, fp8_e5m2, fp6_e3m2"),
    (MX, {"scale_rule": "round"}, "'scale_rule' is 'round'", "floor, ceil, even, rceil"),
    (MX, {"block_size": 0}, "'block_size' is 0", "1 to"),
    (MX, {"rounding_mode": 3}, "'rounding_mode' is 3", "0 to 2"),
    (MX, {"axis": 5}, "'axis' is 5", "-2 to 1"),
]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(("op", "attributes", "said", "legal"), ILLEGAL)
def test_illegal_attribute(op: str, attributes: dict[str, Any], said: str, legal: str, domain: str) -> None:
    with pytest.raises(Exception, match=re.escape(said)) as caught:
        block_session(op, attributes, shape=[4, 8], domain=domain)
    assert f"{op} node 'node1'" in str(caught.value)
    assert legal in str(caught.value)


def test_axis_of_an_input_of_unknown_rank_is_checked_when_it_runs() -> None:
    session = block_session(BFP, {"axis": 2})
    assert session.run(None, {"x": np.ones((2, 2, 2), np.float32)})[0].shape == (2, 2, 2)
    with pytest.raises(Exception, match="'axis' is 2, legal are -2 to 1 for an input of rank 2"):
        session.run(None, {"x": np.ones((2, 2), np.float32)})


def test_axis_is_ignored_for_rank_1() -> None:
    x = np.linspace(-1, 1, 21, dtype=np.float32)
    results = [block_session(BFP, {"axis": axis}, shape=[21]).run(None, {"x": x})[0] for axis in (0, 9)]
    assert np.array_equal(*results)


def test_axis_of_extended_quantize_linear_is_checked_when_it_matters() -> None:
    def load(scale: list[float]) -> object:
        constants = {"scale": np.array(scale, np.float32), "zero": np.zeros((), np.int8)}
        node = helper.make_node(QUANTIZE, ["x", "scale", "zero"], ["y"], name="q7", domain=ops.DOMAIN, axis=3)
        return make_session([node], 1, 3, constants=constants, shape=[2, 2])

    assert load([1.0])
    with pytest.raises(Exception, match="node 'q7': attribute 'axis' is 3, legal are -2 to 1"):
        load([1.0, 2.0])


def test_long_node_names_do_not_hide_the_error() -> None:
    node = helper.make_node(BFP, ["x"], ["y"], name="n" * 5000, domain=ops.DOMAIN, bit_width=9)
    with pytest.raises(Exception, match="'bit_width' is 9, legal are 10 to 24"):
        make_session([node], 1, 1)
