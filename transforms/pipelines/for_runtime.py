"""The recipe from a quantized graph to the form in which its parts are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transforms.conversion.rows import Row
from transforms.pipelines.later import later
from transforms.pipelines.work import Work, WorkRow
from transforms.scheme.scheme import FOUND

if TYPE_CHECKING:
    from transforms.pipelines.store import store
    from transforms.pipelines.write_for_runtime import (
        keep_unstored,
        spend_little,
        store_features,
        tie_heads,
        write_caches,
        write_embeddings,
        write_products,
    )
else:
    _NAMES = (
        *("keep_unstored", "tie_heads", "write_caches", "write_embeddings", "store_features"),
        *("write_products", "spend_little"),
    )
    _PATHS = (f"write_for_runtime.{name}" for name in _NAMES)
    keep_unstored, tie_heads, write_caches, write_embeddings, store_features, *_MORE = later(
        __package__, *_PATHS
    )
    write_products, spend_little = _MORE
    (store,) = later(__package__, "store")


def _writes_products(work: Work) -> bool:
    return work.options.matmul_nbits and work.scheme.weight != FOUND


def _keeps_unstored(work: Work) -> bool:
    return work.options.storage != "plain" and work.options.may_compare and work.data is not None


_TUNED = ("keep_lossy", "place", "beside_preset", "reach", "tune", "keep_target", "gate")
_WRITTEN = (*("store_features", "write_products", "spend_little", "write_embeddings", "write_caches"),)

FOR_RUNTIME: tuple[WorkRow, ...] = (
    Row(tie_heads, frozenset({"Gather"}), after=("build", "mix", *_TUNED)),
    Row(store_features, frozenset({"MoE"}), after=("tie_heads", *_TUNED)),
    Row(write_products, when=_writes_products, after=("tie_heads", "store_features", *_TUNED)),
    Row(
        spend_little,
        frozenset({"Gather", "MatMulNBits"}),
        after=("write_products", "keep_found", *_TUNED),
    ),
    Row(
        write_embeddings,
        when=lambda work: bool(work.options.embeddings),
        after=("tie_heads", "write_products", "spend_little", *_TUNED),
    ),
    Row(
        write_caches,
        when=lambda work: bool(work.options.kv_cache),
        after=("write_products", "write_embeddings", *_TUNED),
    ),
    Row(keep_unstored, when=_keeps_unstored, after=_WRITTEN),
)
"""Products, embeddings, caches and experts as operators of ONNX Runtime."""

STORE: WorkRow = Row(
    store, when=lambda work: work.options.storage != "plain", after=("keep_unstored", *_WRITTEN, *_TUNED)
)
"""Weights of block formats in the form in which they are stored."""
