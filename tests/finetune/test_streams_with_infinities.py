"""Whether samples follow each other, where an input is a mask that holds infinities."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.finetune.find_states import is_stream


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_elements_that_are_not_finite_do_not_count(special: float) -> None:
    steps = np.arange(8, dtype=np.float32)
    feeds = [{"mask": np.asarray([special, step], np.float32)} for step in steps]
    assert is_stream(feeds)
    assert not is_stream([{"mask": np.full(2, special, np.float32)} for _ in steps])
