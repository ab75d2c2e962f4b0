# AdaQuant's steps (arXiv 2006.10518) for one output, with all that belongs to it in a processor's inner caches.
#
# IN: hessian H [K, K] (symmetric), scale, lowest, highest, pace [K], factors [iterations]. INOUT: the continuous weights
# u [K], in units of scale, and the weights w [K] that they are rounded to, which come as the target t. OUT: best [K], and
# by what to multiply it. Scratch: mean, square, slope, pull, next, changes, places [K].
#
# An iteration rounds few weights to another number than the one before: a fifth of them, since those between two numbers
# jump to and fro. Instead of a product with H there is then, for changes d of w and e = w - t,
#
#   slope = H e       slope += H d, a row of H for each d that is not 0
#   error = e H e     error += d (slope before + slope after)
#
# with both zero at the start, where w is t. Where the scale is learned, it is in each iteration the best for all w
# together: with pull = H t, power = t H t and lean = t H e, w (1 + more) has the least error, (power error - lean^2) / s,
# where more = -(lean + error) / s and s = w H w = power + 2 lean + error.
#
# Sums have one order, whatever the number of threads and the processor.

from libc.math cimport sqrtf

cdef struct Steps:
    size_t inputs
    size_t iterations
    size_t patience  # iterations without a smaller error, after which there are no more
    bint learn_scale
    int32_t least  # the exponent of the grid's subnormal numbers, as a float's bits
    int32_t shift  # from a number's exponent to that of the magic number that leaves its mantissa's bits
    const float* hessian
    const float* scale
    const float* lowest
    const float* highest
    const float* pace
    const float* factors
    float* u
    float* w
    float* best
    float* mean
    float* square
    float* slope
    float* pull
    float* next
    float* changes
    size_t* places


cdef inline float round_to_grid(float u, int32_t least, int32_t shift) noexcept nogil:
    """Round half to even, as round_floating in ops/fixed_grid.py."""
    cdef int32_t exponent = <int32_t>(bits_of(u) & EXPONENT)
    cdef float magic = float_of(<uint32_t>((exponent if exponent > least else least) + shift))
    return (u + magic) - magic


cdef inline void round_all(const Steps* s) noexcept nogil:
    """Bring u within its limits, and write what it is rounded to in units of all weights to next."""
    cdef size_t k
    cdef float u
    for k in range(s.inputs):
        u = s.u[k]
        u = u if u > s.lowest[k] else s.lowest[k]
        u = u if u < s.highest[k] else s.highest[k]
        s.u[k] = u
        s.next[k] = round_to_grid(u, s.least, s.shift) * s.scale[k]


cdef inline size_t find_changes(const Steps* s) noexcept nogil:
    """List the weights that change and by how much, and let w be next; return how many there are."""
    cdef size_t j, n = 0
    for j in range(s.inputs):  # without a branch, which nothing could predict
        s.places[n] = j
        s.changes[n] = s.next[j] - s.w[j]
        n += s.next[j] != s.w[j]
        s.w[j] = s.next[j]
    return n


cdef inline double along_changes(const Steps* s, const float* values, size_t n) noexcept nogil:
    """Return the sum of changes times values."""
    cdef double total = 0
    cdef size_t i
    for i in range(n):
        total += <double>s.changes[i] * values[s.places[i]]
    return total


cdef inline void add_rows(const Steps* s, float* sums, size_t n) noexcept nogil:
    """Add the rows of H times their changes, in their order; four at once, so that sums are loaded less often."""
    cdef const float* row[4]
    cdef float change[4]
    cdef size_t i, j, k
    for i in range(0, n, 4):
        for j in range(4):
            change[j] = s.changes[i + j] if i + j < n else 0
            row[j] = s.hessian + (s.places[i + j] if i + j < n else 0) * s.inputs
        for k in range(s.inputs):
            sums[k] = (((sums[k] + change[0] * row[0][k]) + change[1] * row[1][k]) + change[2] * row[2][k]) \
                + change[3] * row[3][k]


cdef inline double find_pull(const Steps* s) noexcept nogil:
    """Write pull; return power."""
    cdef size_t k
    for k in range(s.inputs):
        s.places[k] = k
        s.changes[k] = s.w[k]
    add_rows(s, s.pull, s.inputs)
    return along_changes(s, s.pull, s.inputs)


cdef inline const float* blend(const Steps* s, float more) noexcept nogil:
    """Return the slope with the weights times 1 + more, which may take the place of next."""
    cdef size_t k
    if more == 0:
        return s.slope
    for k in range(s.inputs):
        s.next[k] = s.slope[k] + more * (s.slope[k] + s.pull[k])
    return s.next


cdef inline void descend(const Steps* s, const float* slope, float factor) noexcept nogil:
    """Go a step down: Adam.descend of ops/adam.py."""
    cdef float mean, square
    cdef size_t k
    for k in range(s.inputs):
        mean = s.mean[k] * <float>0.9 + slope[k]
        square = s.square[k] * <float>0.999 + slope[k] * slope[k]
        s.mean[k] = mean
        s.square[k] = square
        s.u[k] -= mean / sqrtf(square) * s.pace[k] * factor


cdef inline void start_steps(const Steps* s) noexcept nogil:
    cdef size_t k
    for k in range(s.inputs):
        s.mean[k] = s.slope[k] = s.pull[k] = 0
        s.square[k] = <float>1e-30


cdef CLONED_VOID gradient_steps(const Steps* s, double* best_factor) noexcept nogil:
    """Go all steps, and keep the best weights."""
    cdef double error = 0, power = 0, lean = 0, more = 0, least = 0, found, total
    cdef size_t i, n, idle = 0
    start_steps(s)
    if s.learn_scale:
        power = find_pull(s)
    for i in range(s.iterations):
        round_all(s)
        n = find_changes(s)
        error += along_changes(s, s.slope, n)
        lean += along_changes(s, s.pull, n)
        add_rows(s, s.slope, n)
        error += along_changes(s, s.slope, n)
        total = power + 2 * lean + error
        found, more = error, 0
        if power + lean > 0 and total > 0:  # a scale stays positive
            found, more = (power * error - lean * lean) / total, -(lean + error) / total
        idle += 1
        if i == 0 or found < least:
            least, idle, best_factor[0] = found, 0, 1 + more
            memcpy(s.best, s.w, s.inputs * sizeof(float))
        if idle >= s.patience:
            break
        descend(s, blend(s, <float>more), s.factors[i])
