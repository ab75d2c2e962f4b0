"""The native operator library: arithmetic on arrays, and the custom operators that ONNX Runtime loads.

This one module is everything native, put together from the files that it includes. It has to be: ONNX Runtime may
load the shared object by its path, without running Python's initialiser of the module, and then neither functions
of another Cython module nor variables with initial values would be there.

    _scalars.pxd           arithmetic on single numbers
    _array_memory.pxi      arrays that Python hands over
    _subnormals.pxi        subnormal numbers, kept in every thread
    _linear.pxi            quantize and dequantize with scale and zero point
    _block_lanes.pxi       ordinary blocks, several elements at once
    _blocks.pxi            block formats: one element, and scratch memory
    _block_rows.pxi        blocks one after the other
    _block_columns.pxi     neighbouring blocks at once
    _block_tensors.pxi     blocks of any size, and the way through a tensor
    _grids.pxi             the constants of each block format
    _gradient_steps.pxi    rounding learned by gradient steps
    _rounding_blocks.pxi   rounding of one input after the other
    _scale_errors.pxi      what scales of integers are compared by
    _histograms.pxi        numbers counted in bins
    _channel_sums.pxi      sums over channels
    _operators.pxi         the operators as ONNX Runtime sees them
    _attributes.pxi        attributes of a node, checked
    _linear_operators.pxi  the operators of _linear.pxi
    _block_operators.pxi   the operators of _blocks.pxi
    _show.pxi              the operator that shows a tensor to Python
    _registration.pxi      all operators, handed to ONNX Runtime
    _arrays.pxi            what NumPy callers use
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_READ, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.limits cimport INT_MAX
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strchr, strcmp, strcpy, strlen, strstr

from ops._ort_abi cimport *
from ops._scalars cimport *

cdef extern from *:
    """
    /* The array loops are compiled for two generations of x86-64 and chosen when the library is loaded; elsewhere
       there is one portable copy. What they call must be inlined, or the clones would all call that one copy. */
    #if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) \\
        && !defined(NARROW_NO_DISPATCH)
    #define CLONED_VOID __attribute__((target_clones("arch=x86-64-v3", "default"))) void
    #else
    #define CLONED_VOID void
    #endif

    #if defined(_MSC_VER)
    #pragma fp_contract(off)  /* gcc and clang have it from setup.py */
    #include <intrin.h>
    #define atomic_increment(counter) _InterlockedIncrement(counter)
    #define atomic_clear(counter) _InterlockedExchange(counter, 0)
    #else
    #define atomic_increment(counter) __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED)
    #define atomic_clear(counter) __atomic_store_n(counter, 0, __ATOMIC_RELAXED)
    #endif
    """
    ctypedef void CLONED_VOID
    long atomic_increment(long* counter) noexcept nogil
    void atomic_clear(long* counter) noexcept nogil

include "_array_memory.pxi"
include "_subnormals.pxi"
include "_linear.pxi"
include "_block_lanes.pxi"
include "_blocks.pxi"
include "_block_rows.pxi"
include "_block_columns.pxi"
include "_block_tensors.pxi"
include "_grids.pxi"
include "_gradient_steps.pxi"
include "_rounding_blocks.pxi"
include "_scale_errors.pxi"
include "_histograms.pxi"
include "_channel_sums.pxi"
include "_operators.pxi"
include "_attributes.pxi"
include "_linear_operators.pxi"
include "_block_operators.pxi"
include "_show.pxi"
include "_registration.pxi"
include "_arrays.pxi"
