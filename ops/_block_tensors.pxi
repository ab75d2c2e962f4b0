# One block at a time: any size -------------------------------------------------------------------------------------

cdef inline int32_t strided_maximum(const BlockTask* task, size_t start, size_t n, bint positive, bint poisoned) noexcept nogil:
    """The largest magnitude of n elements of a fibre, or of the positive ones among them."""
    cdef int32_t result = 0
    cdef float x
    cdef size_t i
    for i in range(n):
        x = load_one(task, start + i * task.inner)
        if not positive or x > 0:
            result = larger(result, counted_magnitude(x, poisoned))
    return result


cdef inline void single_unit(const BlockTask* task, size_t unit, Kind kind, int rounding) noexcept nogil:
    cdef Grid grid = task.grid
    cdef size_t blocks = task.tiles
    cdef size_t first = (unit // task.inner) % blocks * grid.block_size
    cdef size_t start = (unit // task.inner // blocks * task.length + first) * task.inner + unit % task.inner
    cdef size_t n = min(grid.block_size, task.length - first)
    cdef int32_t block = exponent_field(strided_maximum(task, start, n, False, kind == PRIME), grid.carry)
    cdef int32_t field
    cdef size_t i, group, stop
    cdef float x
    if grid.grow:  # rounding up the bits below the significand carries into the exponent
        block = larger(block, exponent_field(strided_maximum(task, start, n, True, False), 1 << (23 - grid.bits)))
    for group in range((n - 1) // grid.group_size + 1):
        field = block
        stop = min((group + 1) * grid.group_size, n)
        i = start + group * grid.group_size * task.inner
        if kind == PRIME:
            field = exponent_field(strided_maximum(task, i, stop - group * grid.group_size, False, True), grid.carry)
            field = group_field(field, block, grid.span)
        while i < start + stop * task.inner:
            x = round_element(load_one(task, i), scale_down(field, kind == PRIME), scale_up(field), grid, kind, rounding)
            store_one(task, i, x)
            i += task.inner


# A tensor ----------------------------------------------------------------------------------------------------------

cdef Ordinary ordinary_grid(const BlockTask* task) noexcept nogil:
    """Turn constants into differences of bit patterns."""
    cdef Ordinary result
    cdef Grid grid = task.grid
    cdef int least = grid.span + grid.element_span + grid.bits + 2  # of biased exponents: all numbers are normal then
    if task.layout == ROWS and grid.kind == PRIME and grid.group_size > LANES:
        least = 255  # no block but one of zeros
    result.block_size = grid.block_size
    result.group_size = grid.group_size
    result.carry = grid.carry
    result.magic = ((24 - grid.bits) << 23) + 0x400000
    result.half = grid.bits << 23
    result.span = grid.span << 23
    result.element_span = grid.element_span << 23
    result.highest = <int32_t>(bits_of(grid.highest) - bits_of(1))
    result.uneven = <int32_t>(bits_of(-grid.lowest) - bits_of(grid.highest))
    result.low = min(least, 255) << 23
    result.high = 228 << 23
    return result


cdef inline void unit_range(const BlockTask* task, const Ordinary* ordinary, size_t first, size_t last, Kind kind,
                            int rounding) noexcept nogil:
    cdef size_t unit
    if task.layout == ROWS:
        for unit in range(first, last):
            row_unit(task, ordinary, unit, kind, rounding)
    else:
        for unit in range(first, last):
            column_unit(task, ordinary, unit, kind, rounding)


cdef CLONED_VOID prime_up_range(const BlockTask* task, const Ordinary* ordinary, size_t first, size_t last) noexcept nogil:
    """A rare case as a function of its own, which keeps the others' code as fast as it is."""
    unit_range(task, ordinary, first, last, PRIME, HALF_UP)


cdef CLONED_VOID block_range(const BlockTask* task, size_t first, size_t last) noexcept nogil:
    """Quantize the units from first up to last, with constants where they make a loop fast."""
    cdef Ordinary ordinary = ordinary_grid(task)
    cdef size_t unit
    if task.layout == SINGLE:
        for unit in range(first, last):
            single_unit(task, unit, task.grid.kind, task.grid.rounding)
    elif task.grid.kind == FLOATING:
        unit_range(task, &ordinary, first, last, FLOATING, HALF_EVEN)
    elif task.grid.kind == PRIME and task.grid.rounding == HALF_EVEN:
        unit_range(task, &ordinary, first, last, PRIME, HALF_EVEN)
    elif task.grid.kind == PRIME and task.grid.rounding == HALF_UP:
        prime_up_range(task, &ordinary, first, last)
    elif task.grid.kind == PRIME:
        unit_range(task, &ordinary, first, last, PRIME, HALF_AWAY)
    elif task.grid.rounding == HALF_EVEN:
        unit_range(task, &ordinary, first, last, PLAIN, HALF_EVEN)
    elif task.grid.rounding == HALF_AWAY:
        unit_range(task, &ordinary, first, last, PLAIN, HALF_AWAY)
    else:
        unit_range(task, &ordinary, first, last, PLAIN, HALF_UP)
    if task.streams:
        stream_fence()


cdef bint is_power_of_two(size_t n) noexcept nogil:
    return n & (n - 1) == 0


cdef void choose_layout(BlockTask* task) noexcept nogil:
    """Choose how to go through a tensor that is not empty, and how many units that makes."""
    task.streams = task.element_type == FLOAT32 and task.outer * task.length * task.inner >= STREAM_FROM
    cdef size_t block = task.grid.block_size
    cdef size_t lines = min(block, task.length)
    cdef size_t blocks = (task.length - 1) // block + 1
    if task.inner == 1 and block <= ROW_TILE and is_power_of_two(block) and not task.grid.grow \
            and is_power_of_two(task.grid.group_size):
        if task.length % block == 0:  # the end of a fibre is the end of a block, too
            task.length *= task.outer
            task.outer = 1
        task.layout = ROWS
        task.tile = ROW_TILE
        task.tiles = (task.length - 1) // ROW_TILE + 1
        task.units = task.outer * task.tiles
    elif task.inner > 1 and lines * 16 <= COLUMN_TILE and not task.grid.grow:
        task.layout = COLUMNS
        task.tile = min(COLUMN_TILE // lines & ~<size_t>15, <size_t>MOST_LANES)
        task.tiles = (task.inner - 1) // task.tile + 1
        task.units = task.outer * blocks * task.tiles
    else:
        task.layout = SINGLE
        task.tiles = blocks
        task.units = task.outer * blocks * task.inner
