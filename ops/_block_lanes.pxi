# Ordinary blocks, eight elements at once, without scaling them.
#
# A block is ordinary when its largest magnitude is zero, or so far from both ends of float32 that every number below is
# a normal one; nothing in it is Inf or NaN then. With E the block's exponent (a float's bits are its exponent's plus
# its fraction's, so that sums of bits are products with powers of two), and k bits in a significand:
#
#   C = 1.5 * 2^(E - k + 24)      a + C - C is |x| rounded half to even to a multiple of step = 2^(E - k + 1)
#   |x| - rounded == step / 2     a tie that went down (exact: the difference has few bits)
#   min(rounded, limit)           limit = 2^E * highest; bits of positive floats compare like integers
#   | sign of x
#
# Largest magnitudes are found by comparing each lane with its neighbour, the neighbour pair and the other half, which
# leaves the result in all lanes: nothing has to be spread. The lanes are GNU vectors, which gcc and clang map to
# whatever registers the target has; another compiler gets functions that find no block ordinary.

cdef extern from *:
    """
    enum Kind { PLAIN, PRIME, FLOATING };
    enum Rounding { HALF_AWAY, HALF_UP, HALF_EVEN };
    #define LANES 8

    typedef struct {  /* a Grid, as differences of bit patterns */
        size_t block_size, group_size;
        int32_t carry, magic, half, span, element_span;
        int32_t highest, uneven;  /* the limit of positive elements, and what negative ones have beyond it */
        int32_t low, high;  /* largest magnitudes of ordinary blocks */
    } Ordinary;

    #if defined(__GNUC__) && !defined(NARROW_NO_LANES) && defined(__has_builtin)
    #if __has_builtin(__builtin_shufflevector)
    #define HAS_LANES 1
    #endif
    #endif

    #if defined(HAS_LANES)
    #define LANE_CODE static inline __attribute__((always_inline))
    typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
    typedef float float_lanes __attribute__((vector_size(4 * LANES)));

    LANE_CODE lanes load_lanes(const void *source) { lanes a; memcpy(&a, source, sizeof a); return a; }
    LANE_CODE void store_lanes(void *target, lanes a) { memcpy(target, &a, sizeof a); }

    /* Lane by lane, because compilers know these loops as one instruction. */
    LANE_CODE lanes larger_lanes(lanes a, lanes b) {
        for (int i = 0; i < LANES; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
        return a;
    }
    LANE_CODE lanes smaller_lanes(lanes a, lanes b) {
        for (int i = 0; i < LANES; i++) a[i] = a[i] < b[i] ? a[i] : b[i];
        return a;
    }

    /* Each lane gets that of its neighbour, of the neighbouring pair, or of the other half. */
    LANE_CODE lanes swapped_lanes(lanes a, size_t distance) {
        if (distance == 1) return __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6);
        if (distance == 2) return __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5);
        return __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3);
    }

    /* The largest of each group of lanes, in all lanes of the group. (A loop, because gcc would otherwise regroup the
       comparisons of single lanes before it makes vectors of them.) */
    LANE_CODE lanes group_maximum(lanes a, size_t size) {
        for (size_t distance = 1; distance < LANES; distance *= 2)
            if (distance < size) a = larger_lanes(a, swapped_lanes(a, distance));
        return a;
    }

    /* The sign bit of each lane says whether its block is none of the ordinary ones. */
    LANE_CODE lanes rare_lanes(const Ordinary *grid, lanes maximum) {
        return ((maximum - grid->low) | (grid->high - maximum)) & -maximum;
    }
    LANE_CODE int any_negative(lanes a) {
        int32_t any = 0;
        for (int i = 0; i < LANES; i++) any |= a[i];
        return any < 0;
    }

    /* field: the exponent of each lane's group, where it is in a float's bits. */
    LANE_CODE lanes round_lanes(const Ordinary *grid, lanes x, lanes field, enum Kind kind, int rounding) {
        lanes sign = x & (int32_t)SIGN, magnitude = x & (int32_t)MAGNITUDE, own = field;
        if (kind == FLOATING) own = larger_lanes(magnitude & (int32_t)EXPONENT, field - grid->element_span);
        float_lanes magic = (float_lanes)(own + grid->magic), a = (float_lanes)magnitude;
        float_lanes rounded = (a + magic) - magic;
        if (rounding != HALF_EVEN) {
            lanes half = own - grid->half, step = half + (int32_t)MIN_NORMAL;
            if (rounding == HALF_UP) { half |= sign; step |= sign; }
            lanes tie = (lanes)(a - rounded) == half;
            rounded += (float_lanes)(tie & step);
        }
        lanes limit = field + grid->highest;
        if (kind == PLAIN && grid->uneven) limit += (x >> 31) & grid->uneven;
        return smaller_lanes((lanes)rounded, limit) | sign;
    }

    LANE_CODE int round_row_by(size_t step, const Ordinary *grid, const float *x, float *y, size_t n, enum Kind kind,
                               int rounding) {
        lanes rare = {0};
        for (size_t i = 0; i < n; i += step) {
            lanes maximum = load_lanes(x + i) & (int32_t)MAGNITUDE;
            for (size_t j = LANES; j < step; j += LANES)
                maximum = larger_lanes(maximum, load_lanes(x + i + j) & (int32_t)MAGNITUDE);
            maximum = group_maximum(maximum, grid->block_size);
            rare |= rare_lanes(grid, maximum);
            lanes block = (maximum + grid->carry) & (int32_t)EXPONENT;
            for (size_t j = 0; j < step; j += LANES) {
                lanes bits = load_lanes(x + i + j), field = block;
                __builtin_prefetch(x + i + j + 1024);
                if (kind == PRIME) {
                    lanes group = group_maximum(bits & (int32_t)MAGNITUDE, grid->group_size) & (int32_t)EXPONENT;
                    field = larger_lanes(group, block - grid->span);
                }
                store_lanes(y + i + j, round_lanes(grid, bits, field, kind, rounding));
            }
        }
        return !any_negative(rare);
    }

    /* Round whole blocks from x to y, a multiple of LANES elements; false, and y is of no use, if one is not ordinary. */
    LANE_CODE int round_ordinary_row(const Ordinary *grid, const float *x, float *y, size_t n, enum Kind kind, int rounding) {
        return grid->block_size <= LANES ? round_row_by(LANES, grid, x, y, n, kind, rounding)
                                         : round_row_by(grid->block_size, grid, x, y, n, kind, rounding);
    }

    LANE_CODE int all_ordinary(const Ordinary *grid, const int32_t *maxima, size_t n) {
        lanes rare = {0};
        for (size_t i = 0; i < n; i += LANES) rare |= rare_lanes(grid, load_lanes(maxima + i));
        return !any_negative(rare);
    }

    /* Round elements of neighbouring ordinary blocks in place, given the largest magnitudes of the blocks, and of the
       groups (Microexponents). What is needed next is fetched meanwhile. */
    LANE_CODE void round_ordinary_line(const Ordinary *grid, float *x, const float *next, const int32_t *blocks,
                                       const int32_t *groups, size_t n, enum Kind kind, int rounding) {
        for (size_t i = 0; i < n; i += LANES) {
            __builtin_prefetch(next + i);
            lanes field = (load_lanes(blocks + i) + grid->carry) & (int32_t)EXPONENT;
            if (kind == PRIME)
                field = larger_lanes(load_lanes(groups + i) & (int32_t)EXPONENT, field - grid->span);
            store_lanes(x + i, round_lanes(grid, load_lanes(x + i), field, kind, rounding));
        }
    }
    #else
    #define round_ordinary_row(grid, x, y, n, kind, rounding) 0
    #define all_ordinary(grid, maxima, n) 0
    #define round_ordinary_line(grid, x, next, blocks, groups, n, kind, rounding) ((void)0)
    #endif
    """
    enum Kind:
        PLAIN  # elements are multiples of one step
        PRIME  # the same, with the special cases of Microexponents
        FLOATING  # elements have exponents of their own
    enum:  # rounding of ties
        HALF_AWAY
        HALF_UP
        HALF_EVEN
    enum:
        LANES
    ctypedef struct Ordinary:
        size_t block_size
        size_t group_size
        int32_t carry
        int32_t magic
        int32_t half
        int32_t span
        int32_t element_span
        int32_t highest
        int32_t uneven
        int32_t low
        int32_t high
    bint round_ordinary_row(const Ordinary* grid, const float* x, float* y, size_t n, Kind kind, int rounding) noexcept nogil
    bint all_ordinary(const Ordinary* grid, const int32_t* maxima, size_t n) noexcept nogil
    void round_ordinary_line(const Ordinary* grid, float* x, const float* next, const int32_t* blocks,
                             const int32_t* groups, size_t n, Kind kind, int rounding) noexcept nogil
