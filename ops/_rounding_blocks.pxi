# Inputs that are rounded one after the other, for ops/round_block.py: what GPTQ and coordinate descent share.
#
# IN: base and reference [B, N] of B inputs and N outputs, factor [B, B]; scale, lowest, highest [B, N] of their grid, each
# input's by a pointer. OUT: rounded and change [B, N]. In float64:
#
#   rounded_j = the number of the grid next to base_j + sum over i < j of factor_ij change_i
#   change_j = rounded_j - reference_j

cdef union Float64:
    double number
    uint64_t bits

cdef struct Rounding64:
    int64_t least  # the exponent of the grid's subnormal numbers, as a double's bits
    int64_t shift  # from a number's exponent to that of the magic number that leaves its mantissa's bits


cdef inline double nearest_number(double value, double scale, double lowest, double highest,
                                  Rounding64 rounding) noexcept nogil:
    """Round half to even, as Grid.nearest in ops/fixed_grid.py."""
    cdef Float64 both
    cdef double u = value / scale
    cdef int64_t exponent
    both.number = u
    exponent = <int64_t>(both.bits & <uint64_t>0x7FF0000000000000)
    both.bits = <uint64_t>((exponent if exponent > rounding.least else rounding.least) + rounding.shift)
    u = (u + both.number) - both.number
    u = u if u > lowest else lowest
    u = u if u < highest else highest
    return u * scale


cdef CLONED_VOID add_multiple(double* sums, const double* values, double factor, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        sums[i] += factor * values[i]


cdef CLONED_VOID round_input(double* rounded, double* change, const double* reference, const double* scale,
                             const double* lowest, const double* highest, Rounding64 rounding, size_t n) noexcept nogil:
    """Round one input; rounded holds the values."""
    cdef size_t i
    for i in range(n):
        rounded[i] = nearest_number(rounded[i], scale[i], lowest[i], highest[i], rounding)
    for i in range(n):
        change[i] = rounded[i] - reference[i]
