"""Find .npy files and images in a folder, in natural order, and read them as arrays."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transforms.files.array_archive import native
from transforms.files.array_header import ArrayHeader, read_header, refuse_expansion, stored_bytes
from transforms.files.named_file import named
from transforms.files.paths import AnyPath

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
ARRAY_SUFFIXES = (".npy", *IMAGE_SUFFIXES)

_LITTER = re.compile(
    r"\._.*|\.ds_store|\.apdisk|\.localized|icon\r|thumbs\.db(:.*)?|ehthumbs(_vista)?\.db|desktop\.ini"
    r"|\.directory|\.~lock\..*#|__macosx|\$recycle\.bin|@eadir|\.ipynb_checkpoints",
    re.I | re.S,
)
MOST_PIXELS = 1 << 27
"""Limit of an image's pixels: no camera has more, and a few bytes of a file may claim more."""

_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP")
"""Formats read under the name of an image: readers of others start programs or take too long."""

_PLAIN_MODES = ("L", "RGB", "RGBA", "I;16", "I", "F")


def find_files(folder: AnyPath, suffixes: Collection[str] = ARRAY_SUFFIXES) -> dict[str, Path]:
    """Return the files of a folder that have one of the suffixes (any letter case), by name.

    Files left by operating systems are skipped, see :func:`is_litter`. Names keep their letter case
    except the suffix, which is lower case, and come in natural order: 2 before 10. Raises OSError when the
    folder cannot be listed, ValueError when two names differ only in the case of the suffix.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"folder '{folder}' does not exist")
    paths: dict[str, Path] = {}
    for path in folder.iterdir():
        name = path.stem + path.suffix.lower()
        if path.suffix.lower() not in suffixes or is_litter(path.name) or not path.is_file():
            continue
        if name in paths:
            raise ValueError(
                f"'{paths[name]}' and '{path}' have the same name except for the case of letters"
            )
        paths[name] = path
    return {name: paths[name] for name in sorted(paths, key=natural_order)}


def is_litter(name: str) -> bool:
    """Return whether operating systems leave files or folders of this name: ``._a.npy``, ``Thumbs.db``."""
    return _LITTER.fullmatch(name) is not None


def find_litter(folder: AnyPath) -> list[str]:
    """Return the names in a folder for which :func:`is_litter` holds, sorted; none if it cannot be listed."""
    try:
        with named(folder):
            return sorted(path.name for path in Path(folder).iterdir() if is_litter(path.name))
    except OSError:
        return []


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that takes runs of digits as numbers: ``a2`` comes before ``a10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def read_array(path: Path) -> np.ndarray:
    """Return the array in a .npy file, or the pixels of an image, uint8 unless they are finer.

    Images are [H, W] or [H, W, C]; palettes and rarer modes become RGB, one-bit images grey. Nothing is ever
    unpickled. Raises ValueError naming the file when it cannot be read.
    """
    with named(path):
        return _read_image(path) if path.suffix.lower() in IMAGE_SUFFIXES else _read_npy(path)


def read_array_header(path: Path) -> ArrayHeader:
    """Return the header of a .npy file; raise ValueError naming the file when it cannot be read."""
    with named(path), path.open("rb") as file:
        size = path.stat().st_size
        refuse_expansion(size, stored_bytes(file))
        return read_header(file, size)


def _read_npy(path: Path) -> np.ndarray:
    read_array_header(path)
    with path.open("rb") as file:
        return native(np.lib.format.read_array(file, allow_pickle=False))


@contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """Open an image; only its header is read yet.

    Raises ValueError for one with too many pixels, and whatever the reader raises.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damage is either repaired or an error later
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels, at most {MOST_PIXELS:,} are read")
            yield image


def _read_image(path: Path) -> np.ndarray:
    with open_image(path) as image:
        if image.mode in _PLAIN_MODES:
            return np.asarray(image)
        return np.asarray(image.convert("L" if image.mode == "1" else "RGB"))
