# ExtendedQuantizeLinear and ExtendedDequantizeLinear on arrays. IN: source, scale, zero_point. OUT: target.
#
#   y = stored(x / scale + zero_point)      integers: rounded half to even before the zero point, then saturated
#   x = (y - zero_point) * scale            in float32
#
#   stored     finite overflow    +-Inf              NaN            subnormals
#   integers   saturated          saturated          zero_point     -
#   float16    +-65504            +-65504            NaN            kept
#   bfloat16   +-Inf              +-Inf              NaN            kept

# Integers of 4 and 2 bits take a byte each, signed ones with the sign extended. They are for arrays: the operators do not take them.
#
# Zero points of integers, and what is quantized to small integers, are int32 in a tile between the tensor and the
# arithmetic, which there is one copy of then. Those of uint32 are 2^31 less, which differences and clamps do not notice.

cdef enum:
    INTEGER_TILE = 512

ctypedef fused half:
    float16_t
    bfloat16_t

ctypedef fused small_integer:
    uint8_t
    int8_t
    uint16_t
    int16_t

cdef struct LinearTask:
    bint quantize  # source is float32 and target stored, otherwise the other way round
    int stored_type  # an OrtElementType
    const void* source
    void* target
    const float* scale
    const void* zero_point
    size_t channels  # 1 for per-tensor
    size_t inner  # elements that share one channel in a row
    bint one_zero_point  # for all channels


cdef inline float widen(half value) noexcept nogil:
    return float_of_float16(value.bits) if half is float16_t else float_of_bfloat16(value.bits)


# float16 and bfloat16 ----------------------------------------------------------------------------------------------

cdef inline half quantize_one(float ratio, half zero_point) noexcept nogil:
    cdef half result
    # Subtracting the negative zero point keeps the sign of a zero, which adding +0 would lose.
    cdef float value = ratio - (<float>0.0 - widen(zero_point))
    if half is float16_t:
        value = <float>65504.0 if value > <float>65504.0 else value
        value = <float>-65504.0 if value < <float>-65504.0 else value
        result.bits = <uint16_t>float16_bits(value)
    else:
        result.bits = <uint16_t>bfloat16_bits(value)
    return result


cdef inline void quantize_run(const float* source, half* target, size_t n, const float* scale, const half* zero_point,
                              size_t scale_step, size_t zero_step, bint unit) noexcept nogil:
    """One run of elements; a step of 0 means one value for all, and unit that scale is 1, which saves the division."""
    cdef size_t i
    for i in range(n):
        target[i] = quantize_one(source[i] if unit else source[i] / scale[i * scale_step], zero_point[i * zero_step])


cdef inline void dequantize_run(const half* source, float* target, size_t n, const float* scale, const half* zero_point,
                                size_t scale_step, size_t zero_step) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = (widen(source[i]) - widen(zero_point[i * zero_step])) * scale[i * scale_step]


cdef inline void convert_halves(const LinearTask* task, half* tag, size_t first, size_t n, size_t channel,
                                bint along) noexcept nogil:
    """Convert a run within one channel, or ``along`` the channels when they are the last axis. IN: tag, for its type."""
    cdef const float* scale = task.scale + channel
    cdef const half* zero_point = <const half*>task.zero_point + (0 if task.one_zero_point else channel)
    cdef size_t zero_step = along and not task.one_zero_point
    cdef float one_scale = scale[0]
    cdef half one_zero = zero_point[0]
    if task.quantize:
        if along and task.one_zero_point:
            quantize_run(<const float*>task.source + first, <half*>task.target + first, n, scale, &one_zero, 1, 0, False)
        elif along:
            quantize_run(<const float*>task.source + first, <half*>task.target + first, n, scale, zero_point, 1, 1, False)
        elif one_scale == 1:
            quantize_run(<const float*>task.source + first, <half*>task.target + first, n, &one_scale, &one_zero,
                         0, 0, True)
        else:
            quantize_run(<const float*>task.source + first, <half*>task.target + first, n, &one_scale, &one_zero,
                         0, 0, False)
    elif along:
        dequantize_run(<const half*>task.source + first, <float*>task.target + first, n, scale, zero_point, 1, zero_step)
    else:
        dequantize_run(<const half*>task.source + first, <float*>task.target + first, n, &one_scale, &one_zero, 0, 0)


# Integers ----------------------------------------------------------------------------------------------------------

cdef inline void widen_integers(const small_integer* source, int32_t* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = source[i]


cdef inline void narrow_integers(const int32_t* source, small_integer* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <small_integer>source[i]


cdef inline uint32_t first_bit(int stored_type) noexcept nogil:
    """What makes int32 of 32 bits in memory, and the other way round, by exclusive or."""
    return SIGN if stored_type == UINT32 else 0


cdef inline void load_integers(int stored_type, const void* source, size_t first, int32_t* target, size_t n) noexcept nogil:
    cdef uint32_t flip = first_bit(stored_type)
    cdef size_t i
    if stored_type == INT8 or stored_type == INT4 or stored_type == INT2:
        widen_integers(<const int8_t*>source + first, target, n)
    elif stored_type == UINT8 or stored_type == UINT4 or stored_type == UINT2:
        widen_integers(<const uint8_t*>source + first, target, n)
    elif stored_type == INT16:
        widen_integers(<const int16_t*>source + first, target, n)
    elif stored_type == UINT16:
        widen_integers(<const uint16_t*>source + first, target, n)
    else:
        for i in range(n):
            target[i] = <int32_t>((<const uint32_t*>source)[first + i] ^ flip)


cdef inline double lowest_integer(int stored_type) noexcept nogil:
    """The least number of a type, as load_integers gives it."""
    if stored_type == INT32 or stored_type == UINT32:
        return -2147483648.0
    if stored_type == INT16:
        return -32768.0
    if stored_type == INT8:
        return -128.0
    if stored_type == INT4:
        return -8.0
    return -2.0 if stored_type == INT2 else 0.0


cdef inline double integer_span(int stored_type) noexcept nogil:
    """The greatest number of a type less its least one."""
    if stored_type == INT32 or stored_type == UINT32:
        return 4294967295.0
    if stored_type == INT16 or stored_type == UINT16:
        return 65535.0
    if stored_type == INT4 or stored_type == UINT4:
        return 15.0
    return 3.0 if stored_type == INT2 or stored_type == UINT2 else 255.0


cdef inline double saturate(float ratio, double zero_point, double lowest, double highest) noexcept nogil:
    """Round the ratio half to even, add the zero point and clamp. In double: exact for 32-bit integers."""
    cdef double magic = 6755399441055744.0  # 1.5 * 2^52: adding it leaves no fraction
    cdef double limit = 8589934592.0  # 2^33, beyond every range even with a zero point
    cdef double value = ratio if ratio == ratio else 0.0
    value = limit if value > limit else (-limit if value < -limit else value)
    value = ((value + magic) - magic) + zero_point
    return highest if value > highest else (lowest if value < lowest else value)


cdef inline float saturate_small(float ratio, float zero_point, float lowest, float highest) noexcept nogil:
    """The same in float: exact for integers of up to 16 bits, with twice as many of them at once."""
    cdef float magic = 12582912.0  # 1.5 * 2^23
    cdef float limit = 262144.0  # 2^18
    cdef float value = ratio if ratio == ratio else <float>0.0
    value = limit if value > limit else (-limit if value < -limit else value)
    value = ((value + magic) - magic) + zero_point
    return highest if value > highest else (lowest if value < lowest else value)


cdef inline void round_integers(const float* source, int32_t* target, size_t n, const float* scale, const int32_t* zeros,
                                size_t step, bint unit, int stored_type, bint wide) noexcept nogil:
    """As quantize_run; a step of 0 means one scale and zero point for all."""
    cdef double lowest = lowest_integer(stored_type), highest = lowest + integer_span(stored_type)
    cdef uint32_t flip = first_bit(stored_type)
    cdef float ratio
    cdef int32_t number
    cdef size_t i
    for i in range(n):
        ratio = source[i] if unit else source[i] / scale[i * step]
        if wide:
            number = <int32_t>saturate(ratio, <double>zeros[i * step], lowest, highest)
            target[i] = <int32_t>(<uint32_t>number ^ flip)
        else:
            target[i] = <int32_t>saturate_small(ratio, <float>zeros[i * step], <float>lowest, <float>highest)


cdef inline void quantize_numbers(const float* source, int32_t* target, size_t n, const float* scale, const int32_t* zeros,
                                  bint along, int stored_type, bint wide) noexcept nogil:
    cdef float one_scale = scale[0]
    cdef int32_t zero = zeros[0]
    if along:
        round_integers(source, target, n, scale, zeros, 1, False, stored_type, wide)
    elif one_scale == 1:
        round_integers(source, target, n, &one_scale, &zero, 0, True, stored_type, wide)
    else:
        round_integers(source, target, n, &one_scale, &zero, 0, False, stored_type, wide)


cdef inline void quantize_integers(const float* source, int stored_type, void* target, size_t first, size_t n,
                                   const float* scale, const int32_t* zeros, bint along) noexcept nogil:
    """Quantize at most INTEGER_TILE numbers."""
    cdef int32_t numbers[INTEGER_TILE]
    if stored_type == INT32 or stored_type == UINT32:
        quantize_numbers(source, <int32_t*>target + first, n, scale, zeros, along, stored_type, True)
        return
    quantize_numbers(source, numbers, n, scale, zeros, along, stored_type, False)
    if stored_type == INT16 or stored_type == UINT16:
        narrow_integers(numbers, <uint16_t*>target + first, n)
    else:
        narrow_integers(numbers, <uint8_t*>target + first, n)  # the low bits are the same with and without a sign


cdef inline void dequantize_small(const small_integer* source, float* target, size_t n, const float* scale,
                                  const int32_t* zeros, size_t step) noexcept nogil:
    """As dequantize_run; a step of 0 means one scale and zero point for all."""
    cdef size_t i
    for i in range(n):
        target[i] = <float>(<int32_t>source[i] - zeros[i * step]) * scale[i * step]


cdef inline void dequantize_wide(const uint32_t* source, float* target, size_t n, const float* scale,
                                 const int32_t* zeros, size_t step, uint32_t flip) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <float>(<int64_t><int32_t>(source[i] ^ flip) - <int64_t>zeros[i * step]) * scale[i * step]


cdef inline void dequantize_integers(int stored_type, const void* source, size_t first, float* target, size_t n,
                                     const float* scale, const int32_t* zeros, size_t step) noexcept nogil:
    if stored_type == INT8 or stored_type == INT4 or stored_type == INT2:
        dequantize_small(<const int8_t*>source + first, target, n, scale, zeros, step)
    elif stored_type == UINT8 or stored_type == UINT4 or stored_type == UINT2:
        dequantize_small(<const uint8_t*>source + first, target, n, scale, zeros, step)
    elif stored_type == INT16:
        dequantize_small(<const int16_t*>source + first, target, n, scale, zeros, step)
    elif stored_type == UINT16:
        dequantize_small(<const uint16_t*>source + first, target, n, scale, zeros, step)
    else:
        dequantize_wide(<const uint32_t*>source + first, target, n, scale, zeros, step, first_bit(stored_type))


cdef inline void fill_zeros(const LinearTask* task, size_t channel, int32_t* zeros, size_t n) noexcept nogil:
    """Write the zero points of n channels, or the one of all."""
    cdef size_t i
    if not task.one_zero_point:
        load_integers(task.stored_type, task.zero_point, channel, zeros, n)
        return
    load_integers(task.stored_type, task.zero_point, 0, zeros, 1)
    for i in range(1, n):
        zeros[i] = zeros[0]


cdef inline void convert_integers(const LinearTask* task, size_t first, size_t n, size_t channel, bint along) noexcept nogil:
    """As convert_halves, for every type of integers."""
    cdef int32_t zeros[INTEGER_TILE]
    cdef int stored_type = task.stored_type
    cdef const float* source = <const float*>task.source
    cdef float* target = <float*>task.target
    cdef const float* scale = task.scale + channel
    cdef float one_scale = scale[0]
    cdef size_t last = first + n
    if not along:
        fill_zeros(task, channel, zeros, 1)
        if not task.quantize:
            dequantize_integers(stored_type, task.source, first, target + first, n, &one_scale, zeros, 0)
            return
    while first < last:
        n = min(last - first, <size_t>INTEGER_TILE)
        if along:
            fill_zeros(task, channel, zeros, n)
        if task.quantize:
            quantize_integers(source + first, stored_type, task.target, first, n, scale, zeros, along)
        else:
            dequantize_integers(stored_type, task.source, first, target + first, n, scale, zeros, 1)
        first += n
        if along:
            scale += n
            channel += n


# A tensor ----------------------------------------------------------------------------------------------------------

cdef CLONED_VOID linear_range(const LinearTask* task, size_t first, size_t last) noexcept nogil:
    """Convert the elements from first up to last, cut where the channel changes, or at the end of a row of channels."""
    cdef bint along = task.inner == 1 and task.channels > 1
    cdef size_t run = task.channels if along else task.inner
    cdef size_t stop, channel
    while first < last:
        stop = min(last, (first // run + 1) * run)
        channel = (first // task.inner) % task.channels
        if task.stored_type == BFLOAT16:
            convert_halves(task, <bfloat16_t*>NULL, first, stop - first, channel, along)
        elif task.stored_type == FLOAT16:
            convert_halves(task, <float16_t*>NULL, first, stop - first, channel, along)
        else:
            convert_integers(task, first, stop - first, channel, along)
        first = stop
