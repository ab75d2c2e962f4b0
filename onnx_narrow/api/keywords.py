"""The values that keywords of the API take, by their names: the same in every function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from onnx_narrow.api.image_keywords import PREPROCESS
from onnx_narrow.api.kinds import (
    FLAG,
    MOST_AT_ONCE,
    NUMBERS,
    PATH,
    SIZE,
    TABLE,
    TEXT,
    TEXTS,
    Kind,
    choice,
    number,
    whole,
)
from transforms.judge.constants import EFFORTS
from transforms.scheme import Scheme
from transforms.scheme.targets import TARGETS
from transforms.search.target import FALLBACKS

CONFIG = Kind("a preset, a path, a Scheme or a mapping of its keys", (str, os.PathLike, Scheme, Mapping))

METRIC = Kind("the name of a metric, FILE.py:FUNCTION or a function", (str, Callable))  # type: ignore[arg-type]

KINDS: Mapping[str, Kind] = {
    # what is made
    "output": PATH,
    "config": CONFIG,
    "opset": whole(13),
    "input_shapes": TABLE,
    "exclude_nodes": TEXTS,
    "exclude_op_types": TEXTS,
    "exclude_node": TEXTS,
    "exclude_op": TEXTS,
    "storage": choice("plain", "packed"),
    "functions": FLAG,
    "save_as_external_data": FLAG,
    "force": FLAG,
    "matmul_nbits": FLAG,
    "accuracy_level": choice(1, 4),
    "embeddings": choice("int8", "int4", "float"),
    "kv_cache": choice("int8", "int4"),
    "ranges": PATH,
    "export_ranges": PATH,
    "calibration_cache": PATH,
    "allow_code": FLAG,
    # what decides
    "fast": FLAG,
    "effort": choice(*EFFORTS),
    "min_sqnr": number(),
    "top1": number(0, 1),
    "metric": METRIC,
    "min_metric": number(),
    "max_loss": number(0),
    "allow_miss": FLAG,
    "allow_large": FLAG,
    "fallback": choice(*FALLBACKS),
    "random_data": whole(),
    # samples
    "limit": whole(),
    "image_size": SIZE,
    "mean": NUMBERS,
    "std": NUMBERS,
    "layout": choice("NCHW", "NHWC"),
    "preprocess": PREPROCESS,
    "sequences": FLAG,
    "states": TABLE,
    "feeds": TABLE,
    # running
    "provider": TEXT,
    "threads": whole(1, MOST_AT_ONCE),
    "memory_limit": whole(0, 2**62),
    "resume": PATH,
    "jobs": whole(1, MOST_AT_ONCE),
    "dask": TEXT,
}

TARGET = choice(*TARGETS)
"""The runtime that a model is made for."""
