"""Random valid graphs through every conversion."""

from tests.attack.graphs.run import attack

__all__ = ["attack"]
