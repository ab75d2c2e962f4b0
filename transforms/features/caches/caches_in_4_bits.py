"""Attention caches in 4 bits: rotated keys, values less an offset, and which of them stay in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float32Array
from transforms.features.caches.cache_scales import cache_scales, first_tokens
from transforms.features.caches.finer_caches import Finer, finer_caches
from transforms.features.caches.fit_rotations import MARGIN, fit_rotations
from transforms.features.caches.key_rotations import Rotation, rotate_keys
from transforms.model.copy_graph import copy_graph
from transforms.quantize_caches import TOKENS, find_caches, quantize_caches
from transforms.run.events import Events
from transforms.run.kept_runs import KeptRuns
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions

_BITS = 4


@dataclass(frozen=True)
class FourBits:
    """Scales, offsets and rotations of caches in 4 bits, by output name; which caches stay in 8 bits."""

    scales: Mapping[str, Float32Array]
    offsets: Mapping[str, Float32Array]
    rotations: Mapping[str, Rotation]
    finer: Finer

    @classmethod
    def of(cls, graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions, events: Events) -> FourBits:
        """Return these for the caches of a float model, which is changed."""
        rotations = fit_rotations(graph, feeds, run)
        _rotate(graph, rotations)
        caches = find_caches(graph, _BITS)
        axes = {str(cache.present.name): cache.channels for cache in caches}
        model = KeptRuns(open_model(copy_graph(graph), run), [*axes])
        shifted = {str(cache.present.name): cache.channels for cache in caches if cache.takes_offset}
        offsets = first_tokens(model, shifted, feeds, TOKENS) if shifted else {}
        least = cache_scales(model, axes, feeds, bits=_BITS, offsets=offsets)
        del model  # large weights are in memory once
        scales = {
            name: scale * np.float32(MARGIN if name in rotations else 1) for name, scale in least.items()
        }
        return cls(scales, offsets, rotations, finer_caches(graph, (scales, offsets), feeds, run, events))

    def store(self, graph: gs.Graph) -> int:
        """Store caches of a graph accordingly; return their bytes per token."""
        stored = {name: scale for name, scale in self.scales.items() if name not in self.finer.names}
        _rotate(graph, {name: self.rotations[name] for name in stored if name in self.rotations})
        quantize_caches(graph, stored, bits=_BITS, offsets=self.offsets)
        return sum(scale.size for scale in stored.values()) * _BITS // 8


def _rotate(graph: gs.Graph, rotations: Mapping[str, Rotation]) -> None:
    keys = [cache for cache in find_caches(graph, _BITS) if cache.present.name in rotations]
    rotate_keys(graph, [(cache.node, rotations[str(cache.present.name)]) for cache in keys])
