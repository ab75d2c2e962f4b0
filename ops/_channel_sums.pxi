# Sums over the numbers of channels and over their squares, for ops/channel_sums.py.
#
# IN: numbers x [outer, channels, inner]. INOUT: sums [2, channels] in float64, of numbers and of squares. Neighbouring
# channels are summed side by side, each in the order of its numbers. The numbers of a channel that lie in a row go to
# SUM_LANES sums in turn, and these one after the other to the sum of the row.

cdef enum:
    SUM_LANES = 16


cdef inline void add_side_by_side(const float* x, double* totals, double* squares, size_t n) noexcept nogil:
    cdef double number
    cdef size_t j
    for j in range(n):
        number = x[j]
        totals[j] += number
        squares[j] += number * number


cdef CLONED_VOID sum_columns(const float* x, size_t outer, size_t channels, double* totals,
                             double* squares) noexcept nogil:
    cdef size_t i
    for i in range(outer):
        add_side_by_side(x + i * channels, totals, squares, channels)


cdef inline void sum_row(const float* x, size_t size, double* total, double* square) noexcept nogil:
    cdef double totals[SUM_LANES]
    cdef double squares[SUM_LANES]
    cdef size_t i = 0, j
    for j in range(SUM_LANES):
        totals[j] = squares[j] = 0
    while i + SUM_LANES <= size:
        add_side_by_side(x + i, totals, squares, SUM_LANES)
        i += SUM_LANES
    add_side_by_side(x + i, totals, squares, size - i)
    for j in range(1, SUM_LANES):
        totals[0] += totals[j]
        squares[0] += squares[j]
    total[0] += totals[0]
    square[0] += squares[0]


cdef CLONED_VOID sum_rows(const float* x, size_t outer, size_t channels, size_t inner, double* totals,
                          double* squares) noexcept nogil:
    cdef size_t i, c
    for i in range(outer):
        for c in range(channels):
            sum_row(x + (i * channels + c) * inner, inner, totals + c, squares + c)


def channel_sums(x, sums):
    """Add to the sums [2, channels] of numbers and of their squares those of x [outer, channels, inner]."""
    cdef Array numbers = floats(x, 3), totals = doubles(sums, 2, True)
    cdef const float* first = <const float*>numbers.data
    cdef double* plain = <double*>totals.data
    cdef double* squares = plain + totals.d1
    if numbers.d0 == 0 or numbers.d1 == 0 or numbers.d2 == 0:
        return
    with nogil:
        if numbers.d2 == 1:
            sum_columns(first, numbers.d0, numbers.d1, plain, squares)
        else:
            sum_rows(first, numbers.d0, numbers.d1, numbers.d2, plain, squares)
