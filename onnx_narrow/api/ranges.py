"""Files of ranges that ``quantize`` reads and writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onnx_narrow.api.usage import files_in
from onnx_narrow.options.option import Keywords
from transforms.files.cleanup import replacing
from transforms.files.named_file import named
from transforms.files.spelling import spelled
from transforms.plan import range_files
from transforms.plan.tensor_grids import FixedGrids, TensorGrid
from transforms.scheme import Scheme

_ENCODINGS, _OWN = ".encodings", ".json"


@dataclass(frozen=True)
class RangeFiles:
    """The file that ranges are read from, and the one that they are written to."""

    imported: Path | None = None
    exported: Path | None = None

    def read(self, scheme: Scheme, keywords: Keywords, source: Path | None) -> FixedGrids:
        """Return the imported grids, none without a file, after checking that the scheme allows them.

        ``source``: the file of the model. Raises ValueError or OSError for a file that cannot be read or
        written.
        """
        for words, path in (
            (spelled("{ranges}"), self.imported),
            (spelled("{export_ranges}"), self.exported),
        ):
            if path and scheme.auto_mixed_precision:
                raise ValueError(f"{words} requires a scheme without automatic mixed precision")
            if path and scheme.block_size:
                reason = "files have no scales of blocks"
                raise ValueError(f"{words} requires a scheme without block_size: {reason}")
        if self.exported and scheme.finetune:
            words = "requires a scheme without fine-tuning, which changes scales"
            raise ValueError(f"{spelled('{export_ranges}')} {words}")
        if self.exported and "data" in keywords and not self.imported and scheme.fits_weights:
            words = "weights of few bits get other scales by the outputs"
            pair = spelled("{export_ranges} requires {fast}")
            raise ValueError(f"{pair} here: {words} after their ranges are known")
        grids = _grids(self.imported) if self.imported else FixedGrids()
        if self.exported and self.exported.suffix not in (_OWN, _ENCODINGS):
            words = f"'{self.exported}' ends neither in {_OWN} nor {_ENCODINGS}"
            raise ValueError(f"{spelled('{export_ranges}')} {words}")
        files_in(keywords, "export_ranges", inputs=(source, self.imported))
        return grids

    @contextmanager
    def writing(self, grids: Collection[TensorGrid]) -> Iterator[None]:
        """Write the exported file, if any; it appears only if the block succeeds."""
        if not self.exported:
            yield
            return
        text = range_files.to_text(grids, encodings=self.exported.suffix == _ENCODINGS)
        with replacing(self.exported) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
            yield

    def line(self, grids: Collection[TensorGrid]) -> Iterator[str]:
        """Yield the line on the file, if it was asked for."""
        if self.exported:
            yield f"Ranges of {len(grids)} tensors written to '{self.exported}'"


def _grids(path: Path) -> FixedGrids:
    with named(path):
        grids = FixedGrids(range_files.from_text(path.read_text(encoding="utf-8")))
        if not grids:
            raise ValueError("no grid of integers is in it")
        return grids
