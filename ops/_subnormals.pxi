# Subnormal numbers are kept, whatever the thread does with them elsewhere.
#
# A session with session.set_denormal_as_zero, and libraries linked with -ffast-math, set bits of a thread's floating-
# point control register that flush subnormal operands and results to zero. Every entry to this library clears these bits
# and sets them again at its end: results do not depend on them, as those of ONNX Runtime's Cast do not, which never
# flushes. The register belongs to the thread, so that nothing is shared. Where it is unknown, nothing is done.

cdef extern from *:
    """
    #if defined(__SSE__) || defined(_M_X64)
    #include <xmmintrin.h>
    #define FLUSH_BITS 0x8040u  /* flush to zero, denormals are zero */
    static inline uint64_t float_control(void) { return _mm_getcsr(); }
    static inline void set_float_control(uint64_t control) { _mm_setcsr((unsigned int)control); }
    #elif defined(__aarch64__) && defined(__GNUC__)
    #define FLUSH_BITS 0x1080001u  /* FZ, FZ16 and FIZ */
    static inline uint64_t float_control(void) {
        uint64_t control;
        __asm__ __volatile__("mrs %0, fpcr" : "=r"(control));
        return control;
    }
    static inline void set_float_control(uint64_t control) {
        __asm__ __volatile__("msr fpcr, %0" : : "r"(control) : "memory");
    }
    #else
    #define FLUSH_BITS 0u
    #define float_control() 0u
    #define set_float_control(control) ((void)(control))
    #endif

    #if defined(__GNUC__)
    #define CODE_STAYS() __asm__ __volatile__("" : : : "memory")  /* on its side of a change of the register */
    #else
    #define CODE_STAYS() ((void)0)
    #endif

    static inline uint64_t stop_flushing(void) {
        uint64_t flushes = float_control() & FLUSH_BITS;
        if (flushes) set_float_control(float_control() & ~(uint64_t)FLUSH_BITS);
        CODE_STAYS();
        return flushes;
    }
    static inline void resume_flushing(uint64_t flushes) {
        CODE_STAYS();
        if (flushes) set_float_control(float_control() | (flushes & FLUSH_BITS));
    }
    """
    uint64_t stop_flushing() noexcept nogil  # returns what resume_flushing takes
    void resume_flushing(uint64_t flushes) noexcept nogil


def keep_subnormals():
    """Keep subnormal numbers in this thread; return what flush_again needs to undo that."""
    return stop_flushing()


def flush_again(uint64_t flushes):
    """Treat subnormal numbers as before keep_subnormals, which returned ``flushes``."""
    resume_flushing(flushes)
