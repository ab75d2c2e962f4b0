"""Requests of a user: presets, TOML files, rules per layer, ``[finetune]`` and ``[auto_mixed_precision]``.

Imports ``model`` and ``search``. Public names: :class:`Scheme`, :func:`preset`, :func:`read_scheme`.
"""

from transforms.scheme.scheme import Scheme
from transforms.scheme.sources import preset, read_scheme

__all__ = ["Scheme", "preset", "read_scheme"]
