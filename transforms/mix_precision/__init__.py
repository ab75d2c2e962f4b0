"""Sensitivities of layers, and a format for each layer that keeps a target.

Imports ``search``, ``judge``, ``run``, ``pipelines`` and what lies below.
Public name: :func:`mix_precision`.
"""

from transforms.mix_precision.mix import mix_precision

__all__ = ["mix_precision"]
