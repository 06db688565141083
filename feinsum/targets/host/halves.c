/* Half precision to single and back, eight numbers at a time.
 *
 * The instructions of F16C do not depend on whether a process flushes subnormal
 * numbers, and round to the nearest, as numpy does. Compiled without them, there is no
 * function, and numpy converts.
 */
#if defined(__F16C__) && defined(__AVX__)

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 8
#define EXPORT __attribute__((visibility("default")))

EXPORT void feinsum_widen(const uint16_t *restrict half, float *restrict single,
                          size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        __m128i given = _mm_loadu_si128((const __m128i *)(half + k));
        _mm256_storeu_ps(single + k, _mm256_cvtph_ps(given));
    }
    for (; k < n; k++)
        single[k] = _cvtsh_ss(half[k]);
}

EXPORT void feinsum_narrow(const float *restrict single, uint16_t *restrict half,
                           size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        __m256 given = _mm256_loadu_ps(single + k);
        __m128i rounded = _mm256_cvtps_ph(given, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(half + k), rounded);
    }
    for (; k < n; k++)
        half[k] = _cvtss_sh(single[k], _MM_FROUND_TO_NEAREST_INT);
}

#else

typedef int feinsum_no_conversions;

#endif
