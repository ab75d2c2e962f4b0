"""Patterns of what is said of time, whatever the machine makes of it."""

_SPREAD = r"[\d.]+ to [\d.]+"
AGAINST = (
    rf"(?:[\d.]+ times (?:faster|slower) than {{0}} \({_SPREAD}\)"
    rf"|as fast as {{0}} \({_SPREAD} times its time\))"
)
"""How fast a model is beside another, which is to be filled in."""

UNKNOWN = "unknown, times scatter: the machine is too busy"
BESIDE_FLOAT = rf"(?:[\d.]+ ms, float [\d.]+ ms: {AGAINST.format('float')}|{UNKNOWN})"
"""The time of a model beside that of its float model."""
