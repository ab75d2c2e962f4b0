"""Refusing a model that ONNX Runtime would read into more memory, or longer, than its file lets expect."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from transforms.files.named_file import named
from transforms.model import detached_weights, graph_proto
from transforms.model.constant_size import count_constants
from transforms.model.read_model import ModelError, read_bytes

PROTOBUF_LIMIT = (1 << 31) - (1 << 20)
"""Bytes above which a model cannot be one protobuf message, with room for what surrounds the weights."""


def refuse_bomb(path: Path) -> None:
    """Raise ModelError, naming the file, for what local functions, sparse tensors or constants come to.

    Other errors of a file are left to the runtime; OSError if it cannot be opened.
    """
    model = onnx.ModelProto()
    with named(path, ModelError):
        try:
            model.ParseFromString(read_bytes(path))
        except DecodeError:
            return
        weights = detached_weights.hollow(model)
        light = graph_proto.inline(model)
        try:
            plain = onnx.shape_inference.infer_shapes(light)
        except onnx.shape_inference.InferenceError:
            return
        count_constants(plain, weights)
