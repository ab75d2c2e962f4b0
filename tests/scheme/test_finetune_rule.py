"""The table ``[finetune]`` of a scheme."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transforms.scheme import preset, read_scheme
from transforms.scheme.finetune_rule import FinetuneRule
from transforms.scheme.presets import PRESETS, TUNED


def test_nothing_said_is_no_rule() -> None:
    assert FinetuneRule.parse("finetune", {}) is None
    assert preset("A8W8").finetune is None


def test_file_with_a_table(tmp_path: Path) -> None:
    path = tmp_path / "scheme.toml"
    path.write_text('preset = "MX9"\n[finetune]\nalgorithm = "adaquant"\nlearning_rate = 1\ndata_size = 8\n')
    rule = read_scheme(path).finetune
    assert rule == FinetuneRule("adaquant", learning_rate=1.0, data_size=8)


@pytest.mark.parametrize(
    ("suffix", "plain"), [(suffix, name) for suffix in TUNED for name in sorted(TUNED[suffix])]
)
def test_a_suffix_tunes_a_preset(suffix: str, plain: str) -> None:
    tuned = read_scheme(plain + suffix)
    assert tuned.with_(finetune={}) == preset(plain)
    assert tuned.finetune == FinetuneRule(suffix.strip("_").lower())


def test_documented_presets_are_there() -> None:
    assert TUNED["_ADAROUND"] >= {"A8W8", "A16W8"}
    assert TUNED["_ADAQUANT"] >= {"A8W8", "A16W8", "BF16", "BFP16", "MX9"}


@pytest.mark.parametrize(
    "name", ["BF16_ADAROUND", "INT32_ADAQUANT", "_ADAQUANT", "A8W8_ADAQUANT_ADAQUANT", "A8W8_"]
)
def test_other_presets_have_no_suffix(name: str) -> None:
    with pytest.raises(ValueError, match=f"preset '{name}' is unknown"):
        preset(name)


def test_a_suffix_is_no_preset_of_its_own_but_is_suggested() -> None:
    assert not [name for name in PRESETS if name.endswith(tuple(TUNED))]
    with pytest.raises(ValueError, match=r"'A8W8_ADAQANT' is neither .* did you mean 'A8W8_ADAQUANT'"):
        read_scheme("A8W8_ADAQANT")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"algoritm": "gptq"}, "finetune key 'algoritm' is unknown, did you mean 'algorithm'?"),
        ({"algorithm": "adam"}, "finetune algorithm 'adam' is unknown"),
        ({"algorithm": 3}, "finetune algorithm is 3, it must be a string"),
        ({"algorithm": "adaquant", "num_iterations": 0}, "num_iterations is 0, legal are numbers from 1"),
        (
            {"algorithm": "adaquant", "num_iterations": 1.5},
            "num_iterations is 1.5, it must be a whole number",
        ),
        ({"algorithm": "adaquant", "num_iterations": True}, "it must be a whole number"),
        ({"algorithm": "adaquant", "learning_rate": -1}, "learning_rate is -1.0, legal are numbers from 0"),
        (
            {"algorithm": "adaquant", "learning_rate": float("nan")},
            "learning_rate is nan, legal are numbers from 0",
        ),
        (
            {"algorithm": "adaquant", "learning_rate": float("inf")},
            "learning_rate is inf, legal are numbers from 0",
        ),
        ({"fixed_seed": -1}, "fixed_seed is -1, legal are numbers from 0"),
        ({"data_size": -1}, "data_size is -1, legal are numbers from 0"),
        ({"output_index": -2}, "output_index is -2, legal are numbers from -1"),
        ({"target_op_type": ["LSTM"]}, "finetune target_op_type 'LSTM' is unknown"),
        ({"num_iterations": 5}, "finetune num_iterations requires algorithm adaquant or adaround"),
        ({"algorithm": "gptq", "early_stop": True}, "finetune early_stop requires algorithm"),
        ({"full_range": "added"}, "'added' is unknown, did you mean 'padded'? legal are padded, free, off"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        preset("A8W8").with_(finetune=values)
    assert words in str(error.value)


def test_a_scheme_holds_the_parsed_rule_and_writes_it_as_it_was_written() -> None:
    scheme = preset("A8W8").with_(finetune={"learning_rate": 1, "algorithm": "adaquant"})
    assert isinstance(scheme.finetune, FinetuneRule)
    assert scheme.to_toml().endswith('[finetune]\nlearning_rate = 1\nalgorithm = "adaquant"\n')
    assert scheme.with_(finetune=scheme.finetune).to_toml() == scheme.to_toml()


def test_a_rule_that_was_not_written_says_all_its_values(tmp_path: Path) -> None:
    """Also one that was changed since it was written, and one of defaults alone, which is no empty table."""
    written = preset("A8W8").with_(finetune={"algorithm": "adaround"}).finetune
    assert written is not None
    for rule in (FinetuneRule(), replace(written, num_iterations=5)):
        path = tmp_path / "scheme.toml"
        path.write_text(preset("A8W8").with_(finetune=rule).to_toml())
        assert read_scheme(path).finetune == rule
