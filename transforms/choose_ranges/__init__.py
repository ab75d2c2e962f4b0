"""Choosing ranges and granularity of integers by what they do to the outputs of the model.

Settings are compared on samples that gave them no ranges: those of one half of the samples are used on the
other. The two begin with :func:`transforms.choose_ranges.choose.choose_settings`.
"""
