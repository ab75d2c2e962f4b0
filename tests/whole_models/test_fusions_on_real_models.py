"""The fusions on real models, one after another.

Oracle: the model itself before the fusions. Errors are those of sums of at most K = 1536 products, which add
up like random ones: a relative sqrt(K) * 2^-24 per layer, which the normalisations keep from growing over at
most 40 layers.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import fusion
from transforms.convert_opset import convert_opset
from transforms.fuse_gelu import find_gelu, fuse_gelu
from transforms.fuse_layernorm import find_layernorm, fuse_layernorm
from transforms.fuse_matmul import fuse_matmul

FUSIONS = (fuse_matmul, fuse_layernorm, fuse_gelu)
COUNTS = {
    "minilm_l6_op13": [6, 13, 6],
    "magika_v3_3": [0, 2, 2],
    "gtcrn_simple": [0, 4, 0],
    "vittrack": [0, 7, 3],
    "silero_vad": [0, 0, 0],
    "mobilenet_v1_025": [0, 0, 0],
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", COUNTS)
def test_counts_and_results(name: str) -> None:
    graph = fusion.load(fusion.real_model(name))
    assert [find_layernorm(graph), find_gelu(graph)] == COUNTS[name][1:]
    convert_opset(graph, 20)
    original = fusion.export(graph)
    assert [fuse(graph) for fuse in FUSIONS] == COUNTS[name]
    assert [fuse(graph) for fuse in FUSIONS] == [0, 0, 0]
    fused = fusion.export(graph)
    if any(COUNTS[name]):
        feeds = fusion.random_feeds(original)
        results = zip(fusion.run(original, **feeds), fusion.run(fused, **feeds), strict=True)
        worst = max(fusion.relative_error(after, before) for before, after in results)
        assert worst < 40 * np.sqrt(1536) * 2.0**-24
