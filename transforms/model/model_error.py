"""The error of a model that cannot be read or converted."""

from __future__ import annotations


class ModelError(ValueError):
    """A model that cannot be read, or cannot be converted as requested; the message names the reason."""


class NothingToDoError(ValueError):
    """A model in which a job finds nothing to change: not an error of the model, and no file is written."""
