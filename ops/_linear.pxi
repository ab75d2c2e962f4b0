# ExtendedQuantizeLinear and ExtendedDequantizeLinear on arrays. IN: source, scale, zero_point. OUT: target.
#
#   y = stored(x / scale + zero_point)      integers: rounded half to even before the zero point, then saturated
#   x = (y - zero_point) * scale            in float32
#
#   stored     finite overflow    +-Inf              NaN            subnormals
#   integers   saturated          saturated          zero_point     -
#   float16    +-65504            +-65504            NaN            kept
#   bfloat16   +-Inf              +-Inf              NaN            kept

# 4-bit integers take a byte each, int4 with its sign extended. They are for arrays: the operators do not take them.

cdef extern from *:
    """
    typedef struct { int8_t number; } int4_t;
    typedef struct { uint8_t number; } uint4_t;
    """
    ctypedef struct int4_t:
        int8_t number
    ctypedef struct uint4_t:
        uint8_t number

ctypedef fused integer:
    uint8_t
    int8_t
    uint16_t
    int16_t
    uint32_t
    int32_t

ctypedef fused stored:
    integer
    uint4_t
    int4_t
    float16_t
    bfloat16_t

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


cdef inline float widen(stored value) noexcept nogil:
    if stored is float16_t:
        return float_of_float16(value.bits)
    elif stored is bfloat16_t:
        return float_of_bfloat16(value.bits)
    elif stored is int4_t or stored is uint4_t:
        return <float>value.number
    else:
        return <float>value


cdef inline double saturate(float ratio, double zero_point, double lowest, double highest) noexcept nogil:
    """Round the ratio half to even, add the zero point and clamp. In double: exact for 32-bit integers too."""
    cdef double magic = 6755399441055744.0  # 1.5 * 2^52: adding it leaves no fraction
    cdef double limit = 8589934592.0  # 2^33, beyond every range even with a zero point
    cdef double value = ratio if ratio == ratio else 0.0
    value = limit if value > limit else (-limit if value < -limit else value)
    value = ((value + magic) - magic) + zero_point
    return highest if value > highest else (lowest if value < lowest else value)


cdef inline integer saturate_to(float ratio, integer zero_point) noexcept nogil:
    cdef int bits = 8 * sizeof(integer)
    cdef bint signed = (<integer>(-1)) < 1
    cdef double lowest = -<double>(<uint64_t>1 << (bits - 1)) if signed else 0.0
    cdef double highest = <double>((<uint64_t>1 << (bits - signed)) - 1)
    cdef double value = saturate(ratio, <double>zero_point, lowest, highest)
    if integer is uint32_t:
        return <integer><int64_t>value
    else:
        return <integer><int32_t>value


cdef inline stored quantize_one(float ratio, stored zero_point) noexcept nogil:
    cdef stored result
    cdef float value
    if stored is float16_t or stored is bfloat16_t:
        # Subtracting the negative zero point keeps the sign of a zero, which adding +0 would lose.
        value = ratio - (<float>0.0 - widen(zero_point))
    if stored is float16_t:
        value = <float>65504.0 if value > <float>65504.0 else value
        value = <float>-65504.0 if value < <float>-65504.0 else value
        result.bits = <uint16_t>float16_bits(value)
        return result
    elif stored is bfloat16_t:
        result.bits = <uint16_t>bfloat16_bits(value)
        return result
    elif stored is int4_t:
        result.number = <int8_t><int32_t>saturate(ratio, zero_point.number, -8, 7)
        return result
    elif stored is uint4_t:
        result.number = <uint8_t><int32_t>saturate(ratio, zero_point.number, 0, 15)
        return result
    else:
        return saturate_to(ratio, zero_point)


cdef inline float dequantize_one(stored value, float scale, stored zero_point) noexcept nogil:
    if stored is float16_t or stored is bfloat16_t or stored is int4_t or stored is uint4_t:
        return (widen(value) - widen(zero_point)) * scale
    elif stored is int32_t or stored is uint32_t:
        return <float>(<int64_t>value - <int64_t>zero_point) * scale
    else:
        return <float>(<int32_t>value - <int32_t>zero_point) * scale


cdef inline void quantize_run(const float* source, stored* target, size_t n, const float* scale, const stored* zero_point,
                              size_t scale_step, size_t zero_step, bint unit) noexcept nogil:
    """One run of elements; a step of 0 means one value for all, and unit that scale is 1, which saves the division."""
    cdef size_t i
    for i in range(n):
        target[i] = quantize_one(source[i] if unit else source[i] / scale[i * scale_step], zero_point[i * zero_step])


cdef inline void dequantize_run(const stored* source, float* target, size_t n, const float* scale, const stored* zero_point,
                                size_t scale_step, size_t zero_step) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = dequantize_one(source[i], scale[i * scale_step], zero_point[i * zero_step])


cdef inline void convert_run(const LinearTask* task, stored* tag, size_t first, size_t n, size_t channel,
                             bint along) noexcept nogil:
    """Convert a run within one channel, or ``along`` the channels when they are the last axis. IN: tag, for its type."""
    cdef const float* scale = task.scale + channel
    cdef const stored* zero_point = <const stored*>task.zero_point + (0 if task.one_zero_point else channel)
    cdef size_t zero_step = along and not task.one_zero_point
    cdef float one_scale = scale[0]
    cdef stored one_zero = zero_point[0]
    if task.quantize:
        if along and task.one_zero_point:
            quantize_run(<const float*>task.source + first, <stored*>task.target + first, n, scale, &one_zero, 1, 0, False)
        elif along:
            quantize_run(<const float*>task.source + first, <stored*>task.target + first, n, scale, zero_point, 1, 1, False)
        elif one_scale == 1:
            quantize_run(<const float*>task.source + first, <stored*>task.target + first, n, &one_scale, &one_zero,
                         0, 0, True)
        else:
            quantize_run(<const float*>task.source + first, <stored*>task.target + first, n, &one_scale, &one_zero,
                         0, 0, False)
    elif along:
        dequantize_run(<const stored*>task.source + first, <float*>task.target + first, n, scale, zero_point, 1, zero_step)
    else:
        dequantize_run(<const stored*>task.source + first, <float*>task.target + first, n, &one_scale, &one_zero, 0, 0)


cdef inline void convert_range(const LinearTask* task, stored* tag, size_t first, size_t last) noexcept nogil:
    """Cut the range where the channel changes, or at the end of a row of channels."""
    cdef bint along = task.inner == 1 and task.channels > 1
    cdef size_t run = task.channels if along else task.inner
    cdef size_t stop
    while first < last:
        stop = min(last, (first // run + 1) * run)
        convert_run(task, tag, first, stop - first, (first // task.inner) % task.channels, along)
        first = stop


cdef CLONED_VOID linear_range(const LinearTask* task, size_t first, size_t last) noexcept nogil:
    """Convert the elements from first up to last."""
    if task.stored_type == BFLOAT16:
        convert_range(task, <bfloat16_t*>NULL, first, last)
    elif task.stored_type == FLOAT16:
        convert_range(task, <float16_t*>NULL, first, last)
    elif task.stored_type == INT8:
        convert_range(task, <int8_t*>NULL, first, last)
    elif task.stored_type == UINT8:
        convert_range(task, <uint8_t*>NULL, first, last)
    elif task.stored_type == INT16:
        convert_range(task, <int16_t*>NULL, first, last)
    elif task.stored_type == UINT16:
        convert_range(task, <uint16_t*>NULL, first, last)
    elif task.stored_type == INT32:
        convert_range(task, <int32_t*>NULL, first, last)
    elif task.stored_type == INT4:
        convert_range(task, <int4_t*>NULL, first, last)
    elif task.stored_type == UINT4:
        convert_range(task, <uint4_t*>NULL, first, last)
    else:
        convert_range(task, <uint32_t*>NULL, first, last)
