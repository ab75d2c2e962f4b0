# How far numbers are from integers of one scale or another, for ops/integers.py: what a search of scales compares.
#
# IN: numbers w and how much each counts [outer, channels, inner]; scale, lowest and highest of each channel. INOUT: the
# errors of channels, in float64. With v = w where that is finite and 0 elsewhere, in float32,
#
#   error = sum of counts (v / scale - the integer next to it, from lowest to highest)^2
#
# Neighbouring channels are summed side by side, each in the order of its numbers. The numbers of a channel that lie in a
# row go to ROW_SUMS sums in turn, and these one after the other to the error.

from libc.math cimport rintf

cdef enum:
    ROW_SUMS = 16
    CHANNELS = 64

cdef struct Scales:
    const float* scale
    const float* lowest
    const float* highest


cdef inline float squared_miss(float number, float scale, float lowest, float highest) noexcept nogil:
    cdef float ratio = (number if number - number == 0 else <float>0.0) / scale
    cdef float near = rintf(ratio)
    near = near if near > lowest else lowest
    near = near if near < highest else highest
    return (ratio - near) * (ratio - near)


cdef inline void add_channels(const float* w, const float* counts, size_t first, size_t outer, size_t stride, Scales of,
                              double* errors, size_t n) noexcept nogil:
    """Add what n channels miss, from the first one on; their rows are stride numbers apart. counts may be NULL."""
    cdef double total[CHANNELS]
    cdef float miss
    cdef size_t i, c
    for c in range(n):
        total[c] = errors[c]
    for i in range(outer):
        for c in range(n):
            miss = squared_miss(w[i * stride + first + c], of.scale[c], of.lowest[c], of.highest[c])
            total[c] += miss if counts == NULL else miss * counts[i * stride + first + c]
    for c in range(n):
        errors[c] = total[c]


cdef CLONED_VOID scale_errors_of_columns(const float* w, const float* counts, size_t outer, size_t channels, Scales of,
                                         double* errors) noexcept nogil:
    """Channels lie side by side: numbers are [outer, channels]."""
    cdef size_t c = 0
    cdef Scales here
    while c < channels:
        here.scale, here.lowest, here.highest = of.scale + c, of.lowest + c, of.highest + c
        if c + CHANNELS > channels:
            add_channels(w, counts, c, outer, channels, here, errors + c, channels - c)
        elif counts == NULL:
            add_channels(w, NULL, c, outer, channels, here, errors + c, CHANNELS)
        else:
            add_channels(w, counts, c, outer, channels, here, errors + c, CHANNELS)
        c += CHANNELS


cdef inline void add_lanes(const float* w, const float* counts, size_t first, size_t n, Scales of,
                           double* total) noexcept nogil:
    """Add what n numbers miss, from the first one on. counts may be NULL."""
    cdef float miss
    cdef size_t j
    for j in range(n):
        miss = squared_miss(w[first + j], of.scale[0], of.lowest[0], of.highest[0])
        total[j] += miss if counts == NULL else miss * counts[first + j]


cdef inline double row_error(const float* w, const float* counts, size_t size, Scales of) noexcept nogil:
    cdef double total[ROW_SUMS]
    cdef double error = 0
    cdef size_t i = 0, j
    for j in range(ROW_SUMS):
        total[j] = 0
    while i + ROW_SUMS <= size:
        add_lanes(w, counts, i, ROW_SUMS, of, total)
        i += ROW_SUMS
    add_lanes(w, counts, i, size - i, of, total)
    for j in range(ROW_SUMS):
        error += total[j]
    return error


cdef CLONED_VOID scale_errors_of_rows(const float* w, const float* counts, size_t outer, size_t channels, size_t inner,
                                      Scales of, double* errors) noexcept nogil:
    """The numbers of a channel lie in rows of ``inner``."""
    cdef size_t i, c, place
    cdef Scales own
    for i in range(outer):
        for c in range(channels):
            own.scale, own.lowest, own.highest = of.scale + c, of.lowest + c, of.highest + c
            place = (i * channels + c) * inner
            if counts == NULL:
                errors[c] += row_error(w + place, NULL, inner, own)
            else:
                errors[c] += row_error(w + place, counts + place, inner, own)
