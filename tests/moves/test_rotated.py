"""Channels of a language model's states are rotated where samples choose moves. Oracle: the float model on
texts that nothing was chosen by.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.judged_networks import quantized
from tests.moves.test_lost_rows import divergence
from tests.rewrites.test_rotate_channels import CENTRED, FUSED, WORDS, decoder
from transforms.scheme import preset


def texts(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"ids": random.integers(0, WORDS, (1, 40))} for _ in range(count)]


@pytest.mark.parametrize("norm", (FUSED, CENTRED))
def test_outlying_channels_of_states_are_rotated(norm: str) -> None:
    model, scheme = decoder(norm), preset("A8W8")
    made, done = quantized(model, scheme, texts(8, 1))
    assert done.scheme is not None and done.scheme.rotate_channels
    assert any(one.move == "rotated channels" for one in done.decisions.kept)
    still = quantized(model, scheme.with_(move_outliers=False, keep_float=False), texts(8, 1))[0]
    unseen = texts(6, 2)
    assert divergence(model, made, unseen) < divergence(model, still, unseen)
    assert quantized(model, done.scheme, texts(8, 1))[0] == made


def test_what_is_said_is_done_without_a_choice() -> None:
    model = decoder(FUSED)
    scheme = preset("A8W8").with_(rotate_channels=True)
    done = quantized(model, scheme, texts(8, 1))[1]
    assert done.scheme is not None and done.scheme.rotate_channels
    assert not any(one.move == "rotated channels" for one in done.decisions.tried)
