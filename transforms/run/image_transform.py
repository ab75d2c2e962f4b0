"""A function of the user that makes the input of a model of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from transforms.run.data_sets import as_array
from transforms.run.fitted import Fitting
from transforms.run.image_inputs import KEYWORD
from transforms.runtime.inputs import ModelInput

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImageTransform:
    """A function that is called with an image, and returns an array or a tensor for the input.

    ``place``: ``FILE.py:FUNCTION``, of which each process loads its own; else the function itself, which
    stays in this process. A mapping of one array, as image processors of language models return, is taken as
    this array.
    """

    place: str = ""
    function: Callable[[Image], object] | None = None

    def __str__(self) -> str:
        return self.place or str(getattr(self.function, "__name__", type(self.function).__name__))

    def check(self) -> None:
        """Load the function; ValueError if there is none."""
        self._loaded()

    def array(self, image: Image, wanted: ModelInput, name: str) -> np.ndarray:
        """Return the input that the function makes of an image, in the type of the input and as a batch.

        Raises ValueError in one line that names the image if the function fails.
        """
        function = self._loaded()
        try:
            value = function(image)
            if isinstance(value, Mapping) and len(value) == 1:
                (value,) = value.values()
            array = as_array(value)
        except (Exception, SystemExit) as error:
            from transforms.search.user_metric import one_line

            raise ValueError(f"{KEYWORD} '{self}' failed on '{name}': {one_line(error)}") from error
        if array.dtype.kind not in "fiub":
            raise ValueError(f"{KEYWORD} '{self}' returned no array for '{name}', but {type(value).__name__}")
        return np.asarray(Fitting().of({wanted.name: array}, [wanted])[wanted.name])

    def _loaded(self) -> Callable[[Image], object]:
        return _load(self.place) if self.function is None else self.function


@cache
def _load(place: str) -> Callable[[Image], object]:
    from transforms.search.user_metric import load_function

    return load_function(place, KEYWORD)
