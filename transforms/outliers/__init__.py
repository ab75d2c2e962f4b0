"""Choosing which outlying channels of activations are moved into weights.

Layers say what would help them, by the error of what they make on samples that gave no ranges; the outputs of
the whole model decide, on such samples, too. It begins with
:func:`transforms.outliers.choose_moves.choose_moves`; :func:`transforms.move_outliers.move_outliers` does it.
"""
