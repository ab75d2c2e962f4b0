"""Caches of keys and values that a decoder keeps in 8 or 4 bits between steps, and those of its encoder."""
