"""Names of states before and after a step. Oracle: names that exporters give, and names that mean others."""

from __future__ import annotations

import pytest

from transforms.graph.paired_names import Likeness, likeness


@pytest.mark.parametrize(
    ("fed", "back", "expected"),
    [
        ("h", "h_out", Likeness.DIRECTION),
        ("in_state", "out_state", Likeness.DIRECTION),
        ("cached_0", "new_cached_0", Likeness.DIRECTION),
        ("past_key_values.0.key", "present.0.key", Likeness.DIRECTION),
        ("past_key_values", "present", Likeness.DIRECTION),
        ("hPrev", "hNext", Likeness.DIRECTION),
        ("h0", "hn", Likeness.STEP),
        ("c0", "cN", Likeness.STEP),
        ("enc_h_0", "enc_h_n", Likeness.STEP),
        ("lens0", "lensn", Likeness.STEP),
        ("lens0", "leftn", Likeness.NONE),
        ("state", "stateN", Likeness.STEP),
        ("hidden", "hidden_state", Likeness.PREFIX),
        ("past_key_values.0.key", "present.0.value", Likeness.NONE),
        ("past_key_values.0.key", "present.1.key", Likeness.NONE),
        ("h0", "cn", Likeness.NONE),
        ("c", "clean", Likeness.NONE),
        ("input", "output", Likeness.NONE),
    ],
)
def test_names_differ_in_direction_in_the_step_or_in_more(fed: str, back: str, expected: Likeness) -> None:
    assert likeness(fed, back) == expected
