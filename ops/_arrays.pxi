# What NumPy callers use, through ops/bfloat16.py and ops/formats.py, which check shapes and types.


cdef CLONED_VOID bfloat16_from_float(const float* source, uint16_t* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <uint16_t>bfloat16_bits(source[i])


cdef CLONED_VOID bfloat16_from_half(const uint16_t* source, uint16_t* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <uint16_t>bfloat16_bits(float_of_float16(source[i]))


cdef CLONED_VOID float_from_bfloat16(const uint16_t* source, float* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = float_of_bfloat16(source[i])


cdef CLONED_VOID half_from_bfloat16(const uint16_t* source, uint16_t* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <uint16_t>float16_bits(float_of_bfloat16(source[i]))


def round_float32(const float[::1] source, uint16_t[::1] target):
    """Write the bfloat16 bits of float32 numbers."""
    if source.shape[0]:
        with nogil:
            bfloat16_from_float(&source[0], &target[0], source.shape[0])


def round_float16(const uint16_t[::1] source, uint16_t[::1] target):
    """Write the bfloat16 bits of float16 numbers, given by their bits."""
    if source.shape[0]:
        with nogil:
            bfloat16_from_half(&source[0], &target[0], source.shape[0])


def widen_to_float32(const uint16_t[::1] source, float[::1] target):
    """Write bfloat16 numbers, given by their bits, as float32."""
    if source.shape[0]:
        with nogil:
            float_from_bfloat16(&source[0], &target[0], source.shape[0])


def narrow_to_float16(const uint16_t[::1] source, uint16_t[::1] target):
    """Write bfloat16 numbers, given by their bits, as float16 bits."""
    if source.shape[0]:
        with nogil:
            half_from_bfloat16(&source[0], &target[0], source.shape[0])
