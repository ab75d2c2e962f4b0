"""Near names. Oracle: the names that a typing error was made in; difflib for how near is near."""

from __future__ import annotations

import random
import string
import time

import pytest

from ops.legal_names import did_you_mean, nearest, refuse_unknown

NAMES = [
    f"/encoder/layer.{i}/attention/{part}/MatMul" for i in range(100) for part in ("query", "key", "value")
]


@pytest.mark.parametrize(
    ("name", "near"),
    [("a8w8", "A8W8"), ("A8W9", "A8W8"), ("conv", "Conv"), ("Covn", "Conv"), ("Softmax", None), ("", None)],
)
def test_near_names(name: str, near: str | None) -> None:
    assert nearest(name, ["A8W8", "A16W8", "Conv", "Gemm"]) == near


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("batch_size", None),
        ("dat_size", "data_size"),
        ("calib_method", "calibrate_method"),
        ("exclude", "exclude_nodes"),
        ("--device", None),
        ("--dta-size", "data_size"),
    ],
)
def test_words_that_names_share_do_not_make_them_near(name: str, near: str | None) -> None:
    assert nearest(name, ["data_size", "calibrate_method", "exclude_nodes", "--metric"]) == near


def test_of_names_that_differ_in_case_the_first_is_meant() -> None:
    assert nearest("CONV1", ["conv1", "Conv1"]) == "conv1"


@pytest.mark.parametrize("seed", range(20))
def test_a_typing_error_anywhere_in_a_long_name_is_found(seed: int) -> None:
    draw = random.Random(seed)
    meant = draw.choice(NAMES)
    place = draw.randrange(len(meant))
    shown = meant[:place] + draw.choice(["", "_", meant[place] * 2]) + meant[place + 1 :]
    found = nearest(shown, NAMES)
    assert found == meant or (shown in NAMES and found == shown)  # a digit less is another layer


def test_many_long_names_take_no_time() -> None:
    draw = random.Random(1)
    many = ["".join(draw.choices(string.ascii_letters, k=190)) for _ in range(20_000)]
    start = time.process_time()
    assert nearest(many[77][:-1], many) == many[77]
    assert time.process_time() - start < 3  # all pairs took a minute


def test_what_no_one_typed_is_not_compared() -> None:
    assert nearest("x" * 100_000, ["x" * 100_000]) is None
    assert nearest("x", ["x" * 100_000, "X"]) == "X"


def test_ends_of_errors() -> None:
    assert did_you_mean("Covn", [*NAMES, "Conv"]) == ", did you mean 'Conv'?"
    assert did_you_mean("Softmax", ["Conv"]) == ""
    refuse_unknown("Conv", ["Conv"], "operator")
    with pytest.raises(
        ValueError, match=r"^operator 'conv' is unknown, did you mean 'Conv'\? legal are Conv, Gemm$"
    ):
        refuse_unknown("conv", ["Conv", "Gemm"], "operator")
    with pytest.raises(ValueError, match=r"^operator 'Relu' is unknown, legal are Conv, Gemm$"):
        refuse_unknown("Relu", ["Conv", "Gemm"], "operator")
