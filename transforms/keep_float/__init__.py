"""The fewest nodes that stay float, so that a conversion to BF16 keeps a given SQNR (``--min-sqnr``).

Imports ``search``, ``run``, ``pipelines`` and what lies below. Public name: :func:`keep_float`.
"""

from transforms.keep_float.keep import keep_float

__all__ = ["keep_float"]
