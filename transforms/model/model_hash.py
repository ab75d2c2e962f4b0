"""Telling models apart by what they hold."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_graphsurgeon as gs

from transforms.model import graph_proto


def model_hash(graph: gs.Graph) -> str:
    """Return a SHA-256 of a graph with all its weights."""
    light, weights = graph_proto.export_light(graph)
    digest = hashlib.sha256(light.SerializeToString(deterministic=True))
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    return digest.hexdigest()
