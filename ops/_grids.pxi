# The constants of each block format, for the algorithm in _blocks.pxi. Adding an element type is adding a row.

cdef struct Element:
    const char* name
    bint floating
    int bits  # of the significand
    int span  # from the exponent of the largest element to that of the smallest normal one
    float highest  # largest element, divided by 2^(its exponent)
    float lowest

cdef enum:
    ELEMENTS = 6
    SCALE_RULES = 4
    METHODS = 3
    LONGEST_BLOCK = 0x7FFFFFFF


cdef void fill_elements(Element* elements) noexcept nogil:
    elements[0] = Element(b"int8", False, 7, 0, 127.0 / 64, -2)
    elements[1] = Element(b"fp8_e4m3", True, 4, 14, 1.75, -1.75)
    elements[2] = Element(b"fp8_e5m2", True, 3, 29, 1.75, -1.75)
    elements[3] = Element(b"fp6_e3m2", True, 3, 6, 1.75, -1.75)
    elements[4] = Element(b"fp6_e2m3", True, 4, 2, 1.875, -1.875)
    elements[5] = Element(b"fp4_e2m1", True, 2, 2, 1.5, -1.5)


cdef int scale_carry(int rule, const Element* element) noexcept nogil:
    """What a scale rule adds to the bits of a block's largest magnitude, whose exponent is then the block's."""
    if rule == 0:  # floor
        return 0
    if rule == 1:  # ceil: the next power of two
        return 0x7FFFFF
    if rule == 2:  # even: after rounding to the element's significand
        return 1 << (23 - element.bits)
    return 0x7FFFFF - <int>(bits_of(element.highest) & 0x7FFFFF)  # rceil: the next that does not clip


cdef Grid plain_grid(size_t block_size, int bits, int rounding) noexcept nogil:
    """Block floating point: a sign and ``bits`` of magnitude for each element."""
    cdef Grid grid
    memset(&grid, 0, sizeof(grid))
    grid.block_size = block_size
    grid.group_size = block_size
    grid.bits = bits
    grid.rounding = rounding
    grid.highest = 2 - <float>1.0 / (1 << (bits - 1))
    grid.lowest = -grid.highest
    return grid


cdef Grid compiler_grid(size_t block_size, int bits, int rounding) noexcept nogil:
    """Block floating point in two's complement, where a block's exponent grows instead of a clamp."""
    cdef Grid grid = plain_grid(block_size, bits, rounding)
    grid.grow = True
    grid.highest = 2
    grid.lowest = -2
    return grid


cdef Grid prime_grid(size_t block_size, int bits, int rounding, size_t group_size, int shift_bits) noexcept nogil:
    """Microexponents (arXiv 2302.08007): groups may lower the block's exponent by up to 2^shift_bits - 1."""
    cdef Grid grid = plain_grid(block_size, bits, rounding)
    grid.group_size = group_size
    grid.span = (1 << shift_bits) - 1
    grid.kind = PRIME
    return grid


cdef Grid element_grid(size_t block_size, const Element* element, int rule, int rounding) noexcept nogil:
    """Microscaling (OCP MX v1.0). Floating elements always round half to even."""
    cdef Grid grid = plain_grid(block_size, element.bits, HALF_EVEN if element.floating else rounding)
    grid.kind = FLOATING if element.floating else PLAIN
    grid.element_span = element.span
    grid.carry = scale_carry(rule, element)
    grid.highest = element.highest
    grid.lowest = element.lowest
    return grid
