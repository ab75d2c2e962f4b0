"""Rows that rewrite a quantized graph for ONNX Runtime, store its weights, and run it for the first time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transforms import features
from transforms.conversion.rows import Row, shows
from transforms.pipelines.later import later
from transforms.pipelines.work import Work, WorkRow
from transforms.scheme.scheme import FLOAT32, FOUND

if TYPE_CHECKING:
    from transforms.features.language.write_parts import spend_little, write_embeddings, write_products
    from transforms.pipelines.store import store
    from transforms.pipelines.try_out import try_out
    from transforms.pipelines.write_for_runtime import (
        keep_unstored,
        store_features,
        tie_heads,
        write_interface,
    )
else:
    _NAMES = ("keep_unstored", "store_features", "tie_heads", "write_interface")
    store, try_out, keep_unstored, store_features, tie_heads, write_interface = later(
        __package__, "store", "try_out", *(f"write_for_runtime.{name}" for name in _NAMES)
    )
    _NAMES = ("spend_little", "write_embeddings", "write_products")
    spend_little, write_embeddings, write_products = later(
        "transforms.features.language", *(f"write_parts.{name}" for name in _NAMES)
    )


def _writes_products(work: Work) -> bool:
    return work.options.matmul_nbits and work.scheme.weight != FOUND


def _spends_little(work: Work) -> bool:
    return work.scheme.activation == FLOAT32


def _keeps_unstored(work: Work) -> bool:
    return work.options.storage != "plain" and work.options.may_compare and work.data is not None


_TUNED = ("place", "beside_preset", "reach", "tune", "keep_target", "gate")
_PARTED = ("write_products", "write_embeddings", *_TUNED)
_WRITTEN = (*("store_features", "write_products", "spend_little", "write_embeddings", "write_interface"),)

FOR_RUNTIME: tuple[WorkRow, ...] = (
    Row(tie_heads, frozenset({"Gather"}), after=("build", "mix", *_TUNED)),
    Row(store_features, features.MARKS, after=("tie_heads", *_TUNED)),
    Row(write_products, when=_writes_products, after=("tie_heads", "store_features", *_TUNED)),
    Row(
        spend_little,
        frozenset({"Gather", "MatMulNBits"}),
        _spends_little,
        after=("write_products", "keep_found", *_TUNED),
    ),
    Row(
        write_embeddings,
        when=lambda work: bool(work.options.embeddings),
        after=("tie_heads", "write_products", "spend_little", *_TUNED),
    ),
    Row(write_interface, when=lambda work: bool(features.asked_for(work.options)), after=_PARTED),
    Row(keep_unstored, when=_keeps_unstored, after=_WRITTEN),
)
"""Rows that write products, embeddings, caches and experts as operators of ONNX Runtime."""

STORE: WorkRow = Row(
    store, when=lambda work: work.options.storage != "plain", after=("keep_unstored", *_WRITTEN, *_TUNED)
)
"""Converts weights of block formats to their stored form."""

TRY_OUT: WorkRow = Row(
    try_out,
    after=(
        *("build", "mix", "tune", "tune_quantized", "convert", "gate"),
        *(row.name for row in FOR_RUNTIME),
        "store",
    ),
    phases=shows("test run"),
)
"""Runs the model before it is saved."""
