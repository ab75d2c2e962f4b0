"""Random valid graphs through every conversion."""

from tests.attack.graphs.run import attack, keep, replay

__all__ = ["attack", "keep", "replay"]
