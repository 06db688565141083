// CUDA C++ on a processor: one work-group after the other, its work-items as fibers
// that change at barriers.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __int_as_float(x) feinsum_as_float(x)
static inline float feinsum_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }

// Halves: exact in float; rounding to the nearest, ties to even.
static inline float feinsum_float16_value_without_gpu(unsigned short h)
{
  const float sign = h >> 15 ? -1.0f : 1.0f;
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 31)
    return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent ? ldexpf(1024 + mantissa, exponent - 25) : ldexpf(mantissa, -24));
}
static inline unsigned short feinsum_float16_bits_without_gpu(float x)
{
  const unsigned short sign = signbit(x) ? 0x8000 : 0;
  if (isnan(x))
    return 0x7fff;
  x = fabsf(x);
  if (x >= 65520.0f)
    return sign | 0x7c00;
  if (x < 6.103515625e-05f)  // below the normal numbers
    return sign | (unsigned short) nearbyintf(ldexpf(x, 24));
  int exponent;
  const float mantissa = nearbyintf(ldexpf(frexpf(x, &exponent), 11));
  return sign | (unsigned short) (((exponent + 13) << 10) + (int) mantissa);
}
static inline float feinsum_bfloat16_value_without_gpu(unsigned short h)
{
  const unsigned u = (unsigned) h << 16;
  float x;
  memcpy(&x, &u, 4);
  return x;
}
static inline unsigned short feinsum_bfloat16_bits_without_gpu(float x)
{
  unsigned u;
  memcpy(&u, &x, 4);
  return isnan(x) ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

struct dim3 { unsigned x, y, z; };
static dim3 threadIdx, blockIdx, blockDim, gridDim;

enum { STACK_BYTES = 64 << 10 };
static ucontext_t scheduler, fibers[1024];
static char *stacks, done[1024];
static int at_barrier, running;
static void *const *given;
static void call_kernel(void *const *slots);

static void __syncthreads()
{
  ++at_barrier;
  swapcontext(&fibers[running], &scheduler);
}

// Lanes put their fragments down, wait, and read those of their warp. The next product
// has another place; when it has waited, all lanes are done with this one.
static double fragments[2][1024][12];
static char parity[1024];

static void feinsum_mma_without_gpu(int depth, double *c, double const *a, double const *b)
{
  const int item = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int first = item / 32 * 32, g = item % 32 / 4, t = item % 4;
  double (*held)[12] = fragments[parity[item] ^= 1];
  memcpy(held[item], a, depth / 2 * sizeof *a);
  memcpy(held[item] + 8, b, depth / 4 * sizeof *b);
  __syncthreads();
  for (int h = 0; h < 2; ++h)
    for (int e = 0; e < 2; ++e)
      for (int k = 0; k < depth; ++k)
        c[2 * h + e] += held[first + 4 * g + k % 4][k / 4 * 2 + h]
                        * held[first + 4 * (2 * t + e) + k % 4][8 + k / 4];
}

// The same for halves, of which a fragment has eight and four.
static float halves[2][1024][12];

template <typename T>
static void feinsum_half_mma_without_gpu(float *c, T const *a, T const *b)
{
  const int item = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int first = item / 32 * 32, g = item % 32 / 4, t = item % 4;
  float (*held)[12] = halves[parity[item] ^= 1];
  for (int k = 0; k < 8; ++k) held[item][k] = a[k];
  for (int k = 0; k < 4; ++k) held[item][8 + k] = b[k];
  __syncthreads();
  for (int h = 0; h < 2; ++h)
    for (int e = 0; e < 2; ++e)
      for (int k = 0; k < 16; ++k) {
        const int q = k / 8, u = k % 8 / 2, f = k % 2;
        c[2 * h + e] += held[first + 4 * g + u][2 * (2 * q + h) + f]
                        * held[first + 4 * (2 * t + e) + u][8 + 2 * q + f];
      }
}

// Lanes 8*k to 8*k + 7 give the rows of block k.
static void const *rows_of_blocks[2][1024];

template <typename T>
static void feinsum_load_blocks_without_gpu(bool is_transposed, T *to, T const *row)
{
  const int item = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int first = item / 32 * 32, g = item % 32 / 4, t = item % 4;
  void const **given = rows_of_blocks[parity[item] ^= 1];
  if ((size_t) row % 16)
    abort();
  given[item] = row;
  __syncthreads();
  for (int k = 0; k < 4; ++k)
    for (int e = 0; e < 2; ++e) {
      const int r = is_transposed ? 2 * t + e : g, c = is_transposed ? g : 2 * t + e;
      to[2 * k + e] = ((T const *) given[first + 8 * k + r])[c];
    }
}

static void fiber_main()
{
  call_kernel(given);
  done[running] = 1;
}

// Returns 1 if some work-items end while others wait at a barrier.
static int run_group(int n_items)
{
  memset(done, 0, sizeof done);
  for (int k = 0; k < n_items; ++k) {
    getcontext(&fibers[k]);
    fibers[k].uc_stack.ss_sp = stacks + (size_t) k * STACK_BYTES;
    fibers[k].uc_stack.ss_size = STACK_BYTES;
    fibers[k].uc_link = &scheduler;
    makecontext(&fibers[k], fiber_main, 0);
  }
  for (;;) {
    at_barrier = 0;
    for (running = 0; running < n_items; ++running) {
      threadIdx.x = running % blockDim.x;
      threadIdx.y = running / blockDim.x % blockDim.y;
      threadIdx.z = running / blockDim.x / blockDim.y;
      swapcontext(&scheduler, &fibers[running]);
    }
    if (at_barrier == 0)
      return 0;
    if (at_barrier != n_items)
      return 1;
  }
}

extern "C" int launch(const unsigned *grid, const unsigned *block, void *const *slots)
{
  int failed = 0;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  const int n_items = block[0] * block[1] * block[2];
  given = slots;
  stacks = (char *) malloc((size_t) n_items * STACK_BYTES);
  for (blockIdx.z = 0; blockIdx.z < grid[2] && !failed; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1] && !failed; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid[0] && !failed; ++blockIdx.x)
        failed = run_group(n_items);
  free(stacks);
  return failed;
}
