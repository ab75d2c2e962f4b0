"""An LSTM in NumPy with its backward pass, see :mod:`examples.training.layers`."""

from __future__ import annotations

import numpy as np

from examples.training.layers import Array, Backward


def recur(x: Array, weight: Array, recurrence: Array, bias: Array) -> tuple[Array, Backward]:
    """Return the last state ``[batch, size]`` of an LSTM over ``x`` ``[step, batch, in]``, from zeros.

    ``weight`` ``[4 * size, in]``, ``recurrence`` ``[4 * size, size]`` and ``bias`` ``[4 * size]`` have the
    gates in the order of ONNX: input, output, forget, cell.
    """
    size = recurrence.shape[1]
    state = cell = np.zeros((x.shape[1], size), x.dtype)
    steps = []
    for step in x:
        sums = step @ weight.T + state @ recurrence.T + bias
        admit, emit, keep = np.split(1 / (1 + np.exp(-sums[:, : 3 * size])), 3, axis=1)
        new, before = np.tanh(sums[:, 3 * size :]), cell
        cell = keep * before + admit * new
        steps.append((step, state, before, admit, emit, keep, new, np.tanh(cell)))
        state = emit * np.tanh(cell)

    def backward(dy: Array) -> tuple[Array, ...]:
        dstate, dcell, dx = dy, np.zeros_like(dy), np.empty_like(x)
        dweight, drecurrence, dbias = (np.zeros_like(one) for one in (weight, recurrence, bias))
        for i in reversed(range(len(steps))):
            step, earlier, before, admit, emit, keep, new, bent = steps[i]
            dcell = dcell + dstate * emit * (1 - bent**2)
            slopes = [
                dcell * new * admit * (1 - admit),
                dstate * bent * emit * (1 - emit),
                dcell * before * keep * (1 - keep),
                dcell * admit * (1 - new**2),
            ]
            slope = np.concatenate(slopes, axis=1)
            dx[i] = slope @ weight
            dweight += slope.T @ step
            drecurrence += slope.T @ earlier
            dbias += slope.sum(axis=0)
            dstate, dcell = slope @ recurrence, dcell * keep
        return dx, dweight, drecurrence, dbias

    return state, backward
