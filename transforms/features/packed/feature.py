"""The feature of packed weights."""

from __future__ import annotations

from transforms.features.hooks import CodedWeights, Feature
from transforms.features.packed.pack_constant import grid_of
from transforms.features.packed.packed_calls import attach_packed, calls_in, unpack_calls

FEATURE = Feature("a packed weight", coded=CodedWeights(attach_packed, unpack_calls, calls_in, grid_of))
