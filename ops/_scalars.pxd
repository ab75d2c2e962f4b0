# Arithmetic on single numbers: bit patterns, bfloat16 and float16. No Python, no libm, no branches in the way of SIMD.

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    typedef struct { uint16_t bits; } float16_t;
    typedef struct { uint16_t bits; } bfloat16_t;
    #define SIGN 0x80000000u
    #define MAGNITUDE 0x7FFFFFFFu
    #define EXPONENT 0x7F800000u     /* also the magnitude of infinity: what lies above is NaN */
    #define MIN_NORMAL 0x00800000u
    """
    const uint32_t SIGN
    const uint32_t MAGNITUDE
    const uint32_t EXPONENT
    const uint32_t MIN_NORMAL
    ctypedef struct float16_t:
        uint16_t bits
    ctypedef struct bfloat16_t:
        uint16_t bits

cdef union Float32:
    float number
    uint32_t bits


cdef inline uint32_t bits_of(float number) noexcept nogil:
    cdef Float32 both
    both.number = number
    return both.bits


cdef inline float float_of(uint32_t bits) noexcept nogil:
    cdef Float32 both
    both.bits = bits
    return both.number


cdef inline uint32_t bfloat16_bits(float number) noexcept nogil:
    """The upper half, rounded half to even; subnormals are kept, overflow gives infinity, NaN stays a (quiet) NaN."""
    cdef uint32_t bits = bits_of(number)
    cdef uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    cdef uint32_t quiet = (bits >> 16) | 0x40
    return quiet if (bits & MAGNITUDE) > EXPONENT else rounded


cdef inline uint32_t float16_bits(float number) noexcept nogil:
    """IEEE binary16, rounded half to even; subnormals are kept, overflow gives infinity, NaN stays a quiet NaN."""
    cdef uint32_t bits = bits_of(number)
    cdef uint32_t magnitude = bits & MAGNITUDE
    cdef uint32_t normal = (magnitude - (112 << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    # 0.5 has an ulp of 2^-24, the step of float16's subnormals, so that this addition rounds to it.
    cdef uint32_t subnormal = bits_of(float_of(magnitude) + <float>0.5) - 0x3F000000
    cdef uint32_t finite = subnormal if magnitude < 0x38800000 else normal
    cdef uint32_t special = 0x7E00 if magnitude > EXPONENT else 0x7C00
    return (special if magnitude >= 0x477FF000 else finite) | ((bits >> 16) & 0x8000)


cdef inline float float_of_bfloat16(uint32_t bits) noexcept nogil:
    return float_of(bits << 16)


cdef inline float float_of_float16(uint32_t bits) noexcept nogil:
    cdef uint32_t scaled = bits_of(float_of((bits & 0x7FFF) << 13) * float_of((112 + 127) << 23))
    cdef uint32_t special = EXPONENT if scaled >= 0x47800000 else 0
    return float_of(scaled | special | ((bits & 0x8000) << 16))
