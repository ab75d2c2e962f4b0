"""Inputs computed from images by a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from transforms.run.data_sets import as_array
from transforms.run.fitted import Fitting
from transforms.run.image_options import KEYWORD
from transforms.runtime.inputs import ModelInput
from transforms.search.user_metric import load_once, one_line

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = str | Callable[[Any], object]
"""A function, or where it is found: module:name."""


def name_of(transform: Transform) -> str:
    """Return how messages name a function."""
    own = getattr(transform, "__name__", type(transform).__name__)
    return transform if isinstance(transform, str) else str(own)


def transformed(image: Image, transform: Transform, wanted: ModelInput, name: str) -> np.ndarray:
    """Return the input that a function computes from an image, in the input's type and as a batch.

    A mapping with one array, as image processors of language models return, stands for this array. Raises
    ValueError in one line that names the image if the function fails.
    """
    function = load_once(transform, KEYWORD) if isinstance(transform, str) else transform
    try:
        value = function(image)
        if isinstance(value, Mapping) and len(value) == 1:
            (value,) = value.values()
        array = as_array(value)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{KEYWORD} '{name_of(transform)}' failed on '{name}': {one_line(error)}") from error
    if array.dtype.kind not in "fiub":
        said = f"{KEYWORD} '{name_of(transform)}' returned no array for '{name}'"
        raise ValueError(f"{said}, but {type(value).__name__}")
    return np.asarray(Fitting().of({wanted.name: array}, [wanted])[wanted.name])
