"""The weights of a model as arrays that a session can read, in files where they would not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from transforms.files import cleanup
from transforms.files.mapped_file import map_file
from transforms.graph.lazy_values import PACKED, Computed, Weight, load_values

_ALIGNMENT = 4096  # weights are mapped by pages


@contextmanager
def weight_arrays(weights: Mapping[str, Weight], *, in_file: bool) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield weights as arrays; computed ones in memory, or ``in_file``.

    They are computed and written one at a time, and mapped. The file has a name during the block alone, in
    which it can be opened; the arrays are good for longer. Raises OSError if it cannot be written.
    """
    computed = {name: w for name, w in weights.items() if isinstance(w, Computed) and w.dtype not in PACKED}
    if not computed or not in_file:
        yield {name: load_values(weight) for name, weight in weights.items()}
        return
    with cleanup.temporary_folder() as folder:
        mapped = _written(computed, folder / "weights")
        yield {name: mapped[name] if name in mapped else load_values(w) for name, w in weights.items()}


def _written(weights: Mapping[str, Computed], path: Path) -> dict[str, NDArray[Any]]:
    places: dict[str, int] = {}
    with path.open("wb") as file:
        for name, weight in weights.items():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            places[name] = file.tell()
            weight.load().tofile(file)
    content = map_file(path)
    return {
        name: content[place : place + weights[name].nbytes]
        .view(weights[name].dtype)
        .reshape(weights[name].shape)
        for name, place in places.items()
    }
