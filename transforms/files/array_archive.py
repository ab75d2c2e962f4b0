"""Archives of arrays, .npz files, written and read with any names of arrays.

NumPy's own writer takes names as keywords, some of which have another meaning (``file``, ``allow_pickle``),
and its reader takes ``a.npy`` for the array ``a``.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ops.array_types import AnyArray
from transforms.files.array_header import ArrayHeader, read_header, refuse_expansion

_SUFFIX = ".npy"


def write_arrays(path: Path, arrays: Mapping[str, AnyArray]) -> None:
    """Write arrays by name; ValueError for an array of objects, which would have to be pickled."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(name + _SUFFIX, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def read_arrays(path: Path) -> dict[str, AnyArray]:
    """Return the arrays of an archive by name; nothing is ever unpickled.

    Raises what :func:`read_headers` does, before any array is read.
    """
    read_headers(path)
    found: dict[str, AnyArray] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                found[_name(member)] = native(np.lib.format.read_array(file, allow_pickle=False))
    return found


def native(array: AnyArray) -> AnyArray:
    """Return an array in this machine's byte order: ONNX Runtime ignores other byte orders."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def read_headers(path: Path) -> dict[str, ArrayHeader]:
    """Return the headers of the members of a .npz archive, by name.

    Raises ValueError, naming the member, if one is not an array or expands to far more than is stored; and
    the reader's own errors.
    """
    headers: dict[str, ArrayHeader] = {}
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a .npz archive")
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = _name(member)
            if name in headers:
                raise ValueError(f"it holds two arrays '{name}'")
            try:
                refuse_expansion(member.file_size, member.compress_size)
                with archive.open(member) as file:
                    headers[name] = read_header(file, member.file_size)
            except ValueError as error:
                raise ValueError(f"{error}, array '{name}'") from error
    return headers


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(_SUFFIX)
