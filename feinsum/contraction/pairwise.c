/* A contraction of two operands of any ranks, without copies of either.

   The indices form four groups: the batch, which both operands and the result have; the
   rows, of the first operand and the result; the columns, of the second and the result;
   and the terms of the sum, of both operands alone. With a vector of offsets for each
   group and array, entry (row, term) of the first operand lies at rows[row] +
   terms[term]: any contraction is a batch of products of matrices whose entries lie
   anywhere (the block-scatter layout of Matthews 2018, section 4). So packing, which a
   fast product of matrices does anyway, reads by offsets, and tiles are stored by them.

   This file knows strides and pointers; arrays of Python are those of einsum.c.
*/

#define _GNU_SOURCE /* processors of threads */
#include "pairwise.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Entries per block; measured on Zen 3 to 5, where a block of the first operand of
   double precision takes half of L2, and a strip of the second a third of L1. */
#define BLOCK_TERMS 256
#define BLOCK_ROWS 144
#define BLOCK_COLUMNS 1024

/* Terms that are added up in registers, by rounding as coarse as the type's. */
#define DIRECT_TERMS 512
#define BLOCK_OF_DOT 1024

/* Sums that threads share: terms of each part; the largest number of parts, which one
   thread adds up, and of results; and rows or columns from which on threads share these. */
#define MIN_SHARE 512
#define MAX_PARTS 32
#define MAX_SHARED (1 << 17)
#define SHARED_ROWS 128

/* Tiles, in entries, that are read in one order and written in another. */
#define TILE 16
#define MIN_TILE 4

/* Products of an entry of a small operand from which on a copy of it is worth it. */
#define MIN_SHARED_ENTRY 4

/* Rows of a run that are computed apart from other runs. */
#define MIN_RUN 8

/* Terms of sums from which on a result may be written twice, for vectors of it. */
#define MIN_TURNED 4

/* Work that is worth waking another thread for; in virtual machines that takes 30 µs. */
#define PER_THREAD_NS 60000

/* How the products of one entry of the batch, or of many, are computed:
   PACKED  in blocks that are copied, by register tiles;
   DIRECT  by vectors of rows, where they lie;
   DOT     by vectors of terms, where they lie in an operand;
   LANES_OF_BATCH  by vectors of entries of the batch, where they lie;
   TILED   without a sum, in lines, or in tiles that turn rows to columns;
   SCALAR  one after the other, where there are few of each. */
enum { PACKED, DIRECT, DOT, LANES_OF_BATCH, TILED, SCALAR };

/* Indices that are looped over together, the last one fastest; strides in entries. */
typedef struct {
    int rank;
    long n[MAX_INDICES];
    long strides[MAX_INDICES][3];
} Group;

/* Two of the strides of an index matter to rows, columns and terms, three to a batch:
   see `offsets` and `step`. TILED has one row and one column index with all three. */
typedef struct {
    Group batch, rows, columns, terms;
    const void *a, *b;
    void *c;
    int is_complex, method, is_copied, is_turned;
} Problem;

typedef struct {
    long first_batch, n_batch, first_row, n_rows, first_column, n_columns;
} Part;

typedef struct {
    long at[MAX_INDICES], a, b, c;
} Place;

static inline long min(long x, long y) { return x < y ? x : y; }

static long count(const Group *group)
{
    long n = 1;
    for (int k = 0; k < group->rank; ++k)
        n *= group->n[k];
    return n;
}

static long count_last(const Group *group)
{
    return group->rank ? group->n[group->rank - 1] : 1;
}

static int is_along_batch(const Problem *p)
{
    return p->method == LANES_OF_BATCH || p->method == SCALAR;
}

/* The offsets of some entries of a group, in the array of that stride. */
static void offsets(const Group *group, long first, long n, int which, long *to)
{
    if (group->rank == 0) {
        if (n)
            *to = 0;
        return;
    }
    long at[MAX_INDICES], offset = 0, rest = first;
    for (int k = group->rank - 1; k >= 0; --k) {
        at[k] = rest % group->n[k];
        rest /= group->n[k];
        offset += at[k] * group->strides[k][which];
    }
    const int last = group->rank - 1;
    const long length = group->n[last], stride = group->strides[last][which];
    for (long done = 0; done < n;) {
        long run = min(length - at[last], n - done);
        for (long i = 0; i < run; ++i)
            to[done + i] = offset + i * stride;
        done += run;
        offset -= at[last] * stride;
        at[last] = 0;
        for (int k = last - 1; k >= 0; --k) {
            offset += group->strides[k][which];
            if (++at[k] < group->n[k])
                break;
            offset -= group->n[k] * group->strides[k][which];
            at[k] = 0;
        }
    }
}

static inline int are_adjacent(const long *offsets, long n)
{
    int are = 1;
    for (long k = 1; k < n; ++k)
        are &= offsets[k] - offsets[k - 1] == 1;
    return are;
}

static void move(const Group *group, int k, long by, Place *place)
{
    place->at[k] += by;
    place->a += by * group->strides[k][0];
    place->b += by * group->strides[k][1];
    place->c += by * group->strides[k][2];
}

static void start(const Group *group, long first, Place *place)
{
    memset(place, 0, sizeof(Place));
    for (int k = group->rank - 1; k >= 0; --k) {
        move(group, k, first % group->n[k], place);
        first /= group->n[k];
    }
}

/* Go on by n along the last index, at most to its end, from where the next one steps. */
static void step(const Group *group, long n, Place *place)
{
    for (int k = group->rank - 1; k >= 0; --k, n = 1) {
        move(group, k, n, place);
        if (place->at[k] < group->n[k])
            return;
        move(group, k, -group->n[k], place);
    }
}

/* The offsets of a part of rows and columns, and of all terms. */
typedef struct {
    long n_rows, n_columns, n_terms;
    long *memory, *rows_a, *rows_c, *columns_b, *columns_c, *terms_a, *terms_b;
} Offsets;

static int find_offsets(const Problem *p, const Part *part, Offsets *o)
{
    Group terms = p->terms;
    if (p->method == DOT && terms.rank) /* the last index is looped over apart */
        --terms.rank;
    o->n_rows = part->n_rows;
    o->n_columns = part->n_columns;
    o->n_terms = count(&terms);
    o->memory = malloc(2 * (o->n_rows + o->n_columns + o->n_terms + 1) * sizeof(long));
    if (o->memory == NULL)
        return -1;
    o->rows_a = o->memory, o->rows_c = o->rows_a + o->n_rows;
    o->columns_b = o->rows_c + o->n_rows, o->columns_c = o->columns_b + o->n_columns;
    o->terms_a = o->columns_c + o->n_columns, o->terms_b = o->terms_a + o->n_terms;
    offsets(&p->rows, part->first_row, o->n_rows, 0, o->rows_a);
    offsets(&p->rows, part->first_row, o->n_rows, 1, o->rows_c);
    offsets(&p->columns, part->first_column, o->n_columns, 0, o->columns_b);
    offsets(&p->columns, part->first_column, o->n_columns, 1, o->columns_c);
    offsets(&terms, 0, o->n_terms, 0, o->terms_a);
    offsets(&terms, 0, o->n_terms, 1, o->terms_b);
    return 0;
}

/* Memory of this thread, which is kept for the next call, and freed with the thread. */
static __thread struct {
    void *memory;
    size_t n_bytes;
} held;
static pthread_key_t held_key;

static void *scratch(size_t n_bytes)
{
    if (held.n_bytes < n_bytes) {
        free(held.memory);
        held.n_bytes = 0;
        held.memory = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
        pthread_setspecific(held_key, held.memory);
        if (held.memory != NULL)
            held.n_bytes = n_bytes;
    }
    return held.memory;
}

typedef int (*Run)(const Problem *, const Part *);

#define CONCATENATE(x, y) x##_##y
#define JOINED(x, y) CONCATENATE(x, y)
#define NAME(x) JOINED(x, SUFFIX)

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_X86 1
#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma,prefer-vector-width=256")
#endif
#define BYTES 64
#define COLUMNS 12
#define T double
#define SUFFIX f64_avx512
#include "pairwise_kernel.h"
#undef T
#undef SUFFIX
#define T float
#define SUFFIX f32_avx512
#include "pairwise_kernel.h"
#undef T
#undef SUFFIX
#undef BYTES
#undef COLUMNS
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define BYTES 32
#define COLUMNS 6
#define T double
#define SUFFIX f64_avx2
#include "pairwise_kernel.h"
#undef T
#undef SUFFIX
#define T float
#define SUFFIX f32_avx2
#include "pairwise_kernel.h"
#undef T
#undef SUFFIX
#undef BYTES
#undef COLUMNS
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#define BYTES 16
#define COLUMNS 6
#define T double
#define SUFFIX f64_base
#include "pairwise_kernel.h"
#undef T
#undef SUFFIX
#define T float
#define SUFFIX f32_base
#include "pairwise_kernel.h"
#undef T
#undef SUFFIX
#undef BYTES
#undef COLUMNS

/* For vectors of 16 bytes and more: by length, then by type, float and double. */
static const Run runs[][2] = {
    {run_f32_base, run_f64_base},
#ifdef HAS_X86
    {run_f32_avx2, run_f64_avx2},
    {run_f32_avx512, run_f64_avx512},
#endif
};
static int longest; /* that this processor has, as a number in this list */

int count_vector_bytes(void) { return 16 << longest; }

static void find_processor(void)
{
#ifdef HAS_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        longest = 2;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        longest = 1;
#endif
}

/* Threads that wait for parts; made when the first call needs them. One call at a time
   has them: others run alone, as they would share the cores anyway. */
#define MAX_THREADS 256

static struct {
    pthread_mutex_t lock, one_call;
    pthread_cond_t has_work, is_done;
    int n_threads, n_placed; /* see leave_processor */
    pthread_t threads[MAX_THREADS];
    Run run;
    const Problem *problem;
    Part *parts;
    int n_parts, n_taken, n_left, failed;
} pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .one_call = PTHREAD_MUTEX_INITIALIZER,
    .has_work = PTHREAD_COND_INITIALIZER,
    .is_done = PTHREAD_COND_INITIALIZER,
};

static void take_parts(void) /* with the lock */
{
    while (pool.n_taken < pool.n_parts) {
        const Part *part = &pool.parts[pool.n_taken++];
        pthread_mutex_unlock(&pool.lock);
        int failed = pool.run(pool.problem, part);
        pthread_mutex_lock(&pool.lock);
        pool.failed |= failed;
        if (--pool.n_left == 0)
            pthread_cond_signal(&pool.is_done);
    }
}

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        take_parts();
        pthread_cond_wait(&pool.has_work, &pool.lock);
    }
    return NULL;
}

/* The child of a fork has one thread, and no lock that another one held. */
static void forget_threads(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_mutex_init(&pool.one_call, NULL);
    pthread_cond_init(&pool.has_work, NULL);
    pthread_cond_init(&pool.is_done, NULL);
    pool.n_threads = pool.n_placed = pool.n_parts = pool.n_taken = 0;
}

/* Keep the waiting threads off the processor of the caller. Where threads of a BLAS still
   spin on all others, Linux would wake ours behind the caller, which computes alone. */
static void leave_processor(void) /* with the lock */
{
#ifdef __linux__
    static cpu_set_t allowed;
    static int processor = -1;
    cpu_set_t now;
    const int here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof(now), &now))
        return;
    if (here != processor || !CPU_EQUAL(&now, &allowed))
        pool.n_placed = 0;
    processor = here, allowed = now;
    if (CPU_COUNT(&now) > 1)
        CPU_CLR(here, &now);
    for (; pool.n_placed < pool.n_threads; ++pool.n_placed)
        pthread_setaffinity_np(pool.threads[pool.n_placed], sizeof(now), &now);
#endif
}

static int run_parts(Run run, const Problem *problem, Part *parts, int n_parts)
{
    if (n_parts == 1 || pthread_mutex_trylock(&pool.one_call)) {
        int failed = 0;
        for (int k = 0; k < n_parts; ++k)
            failed |= run(problem, &parts[k]);
        return failed;
    }
    pthread_mutex_lock(&pool.lock);
    while (pool.n_threads < n_parts - 1 && pool.n_threads < MAX_THREADS) {
        pthread_t *thread = &pool.threads[pool.n_threads];
        if (pthread_create(thread, NULL, work, NULL))
            break;
        pthread_detach(*thread);
        ++pool.n_threads;
    }
    leave_processor();
    pool.run = run, pool.problem = problem, pool.parts = parts;
    pool.n_parts = pool.n_left = n_parts, pool.n_taken = pool.failed = 0;
    pthread_cond_broadcast(&pool.has_work);
    take_parts();
    while (pool.n_left)
        pthread_cond_wait(&pool.is_done, &pool.lock);
    int failed = pool.failed;
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.one_call);
    return failed;
}

/* The part of a range that is the k-th of n, in multiples of `unit`. */
static void divide(long n, int k, int n_parts, long unit, long *first, long *length)
{
    long n_units = (n + unit - 1) / unit;
    long begin = n_units * k / n_parts * unit, end = n_units * (k + 1) / n_parts * unit;
    *first = min(begin, n);
    *length = min(end, n) - *first;
}

/* Roughly, the time of one thread with data in L2; measured on Zen 5. */
static double estimate_ns(const Problem *p)
{
    const double n_batch = count(&p->batch), n_rows = count(&p->rows);
    const double n_columns = count(&p->columns), n_terms = count(&p->terms);
    const double n_products = p->method == PACKED
                                  ? 0.02 * (n_rows + 8) * (n_columns + 8) * (n_terms + 2)
                                  : (p->method == TILED ? 0.5 : 0.1) * n_rows *
                                        n_columns * n_terms;
    const double n_entries =
        n_rows * n_terms + n_columns * n_terms + n_rows * n_columns;
    return n_batch * ((p->is_complex ? 4 : 1) * n_products + 0.2 * n_entries);
}

static int run_problem(Run run, const Problem *p, int n_threads)
{
    const long n_rows = count(&p->rows), n_columns = count(&p->columns);
    const int is_along = is_along_batch(p);
    const long n_batch = is_along ? count_last(&p->batch) : count(&p->batch);
    const double worth = estimate_ns(p) / PER_THREAD_NS;
    int n_parts = worth < n_threads ? (int)worth : n_threads;
    if (n_parts > MAX_THREADS)
        n_parts = MAX_THREADS;
    const int by_batch = n_batch >= (p->method == LANES_OF_BATCH ? 64 : 2) * n_parts;
    const int by_rows = n_rows >= n_columns;
    if (n_parts > 1 && !by_batch && (by_rows ? n_rows : n_columns) < 16)
        n_parts = 1;
    if (n_parts < 1)
        n_parts = 1;
    Part parts[MAX_THREADS], whole = {0, n_batch, 0, n_rows, 0, n_columns};
    for (int k = 0; k < n_parts; ++k) {
        Part *part = &parts[k];
        *part = whole;
        if (by_batch)
            divide(n_batch, k, n_parts, p->method == LANES_OF_BATCH ? 64 : 1,
                   &part->first_batch, &part->n_batch);
        else if (by_rows)
            divide(n_rows, k, n_parts, 16, &part->first_row, &part->n_rows);
        else
            divide(n_columns, k, n_parts, 12, &part->first_column, &part->n_columns);
    }
    return run_parts(run, p, parts, n_parts);
}

/* An index behind those of a group that have longer strides in the array `by`. */
static void insert(Group *group, long n, const long *strides, int by)
{
    int k = group->rank++;
    for (; k > 0 && labs(group->strides[k - 1][by]) < labs(strides[by]); --k) {
        group->n[k] = group->n[k - 1];
        memcpy(group->strides[k], group->strides[k - 1], sizeof(long[3]));
    }
    group->n[k] = n;
    memcpy(group->strides[k], strides, sizeof(long[3]));
}

/* Join indices that all arrays have one behind the other. */
static void merge(Group *group)
{
    int last = 0;
    for (int k = 1; k < group->rank; ++k) {
        int is_joined = 1;
        for (int x = 0; x < 3; ++x)
            is_joined &= group->strides[last][x] == group->n[k] * group->strides[k][x];
        if (is_joined)
            group->n[last] *= group->n[k];
        else
            group->n[++last] = group->n[k];
        memcpy(group->strides[last], group->strides[k], sizeof(long[3]));
    }
    if (group->rank)
        group->rank = last + 1;
}

static int is_contiguous(const Group *group, int x)
{
    return group->rank == 0 || (group->rank == 1 && group->strides[0][x] == 1);
}

/* Rows and columns have their own array and the result, terms have both operands. */
static void keep(Group *group, int x, int y)
{
    for (int k = 0; k < group->rank; ++k) {
        long first = group->strides[k][x], second = group->strides[k][y];
        group->strides[k][0] = first, group->strides[k][1] = second;
    }
}

/* Whether the last index of the batch has all entries of the result, and those of the
   operands that have it, one behind the other. */
static int has_lanes(const Group *batch)
{
    if (batch->rank == 0)
        return 0;
    const long *strides = batch->strides[batch->rank - 1];
    const int is_unit = (strides[0] == 1 || strides[0] == 0) &&
                        (strides[1] == 1 || strides[1] == 0) && strides[2] == 1 &&
                        (strides[0] || strides[1]); /* not both are broadcast */
    return is_unit && batch->n[batch->rank - 1] >= 8;
}

/* Move an index of a group to its end. */
static void move_to_end(Group *group, int k)
{
    const int last = group->rank - 1;
    const long n = group->n[k], *own = group->strides[k];
    const long strides[3] = {own[0], own[1], own[2]};
    for (; k < last; ++k) {
        group->n[k] = group->n[k + 1];
        memcpy(group->strides[k], group->strides[k + 1], sizeof(strides));
    }
    group->n[last] = n;
    memcpy(group->strides[last], strides, sizeof(strides));
}

/* The longest index along which one operand lies in runs, and the other likewise or not
   at all; -1 if there is none. */
static int find_runs(const Group *terms)
{
    int run = -1;
    for (int k = 0; k < terms->rank; ++k) {
        const long *strides = terms->strides[k];
        if (!(strides[0] & ~1L) && !(strides[1] & ~1L) && (strides[0] | strides[1]) &&
            (run < 0 || terms->n[k] > terms->n[run]))
            run = k;
    }
    return run;
}

/* Move the index of the batch to its end along which the operands lie in runs, if sums are
   long enough to pay for results that do not. */
static int find_lanes(Group *batch, long n_terms)
{
    const int last = batch->rank - 1;
    if (n_terms < 4 || n_terms > 4096)
        return 0;
    for (int k = last; k >= 0; --k) {
        const long *own = batch->strides[k];
        if (batch->n[k] < 16 || (own[0] & ~1L) || (own[1] & ~1L) || !(own[0] | own[1]))
            continue;
        move_to_end(batch, k);
        return 1;
    }
    return 0;
}

static int choose_method(Problem *p, int is_single)
{
    const long n_rows = count(&p->rows), n_columns = count(&p->columns);
    const long n_terms = count(&p->terms);
    const long n_products = n_rows * n_columns * n_terms;
    if (p->is_complex && n_rows > 2 && n_columns > 2 && n_terms > 1 && n_products > 64 &&
        (n_rows * n_columns > 64 || n_terms > 64))
        return PACKED;
    if (has_lanes(&p->batch) && n_terms <= 4096 &&
        (n_terms == 1 || n_rows * n_columns <= 4096))
        return LANES_OF_BATCH;
    /* for few of each, preparing a vector takes longer than the products */
    if (n_terms == 1 && (n_rows == 1 || n_columns == 1) && n_products < 16)
        return SCALAR;
    const int run = find_runs(&p->terms);
    if (run >= 0 && p->terms.n[run] >= 4 &&
        (n_columns <= 2 || n_rows <= 2 ||
         (n_rows <= 8 && n_columns <= 8 && p->terms.n[run] >= 64))) {
        move_to_end(&p->terms, run);
        return DOT;
    }
    const int are_rows = is_contiguous(&p->rows, 0);
    const int is_small = n_rows * n_terms <= 4096 && n_columns >= 8;
    if (n_rows > 1 && is_contiguous(&p->rows, 1) && (are_rows || is_small) &&
        (n_terms <= DIRECT_TERMS || !is_single || !p->is_complex) &&
        (n_columns <= 4 || n_rows * n_terms <= 4096 || n_terms <= 4 ||
         (n_rows <= 8 && n_columns <= 64)))
        return DIRECT;
    if (n_rows * n_columns <= 4 && find_lanes(&p->batch, n_terms))
        return LANES_OF_BATCH;
    if (p->is_complex && (n_rows <= 2 || n_columns <= 2 || n_terms == 1))
        return SCALAR;
    /* a register tile would be all but empty */
    return n_products <= 64 || n_rows * n_columns <= 4 ? SCALAR : PACKED;
}

/* The entries of the result lie one behind the other, in some order. */
static int is_compact(const Problem *p)
{
    const Group *groups[3] = {&p->batch, &p->rows, &p->columns};
    long n = 1, last = 0;
    for (int g = 0; g < 3; ++g)
        for (int k = 0; k < groups[g]->rank; ++k) {
            const long stride = groups[g]->strides[k][g == 0 ? 2 : 1];
            if (stride < 0)
                return 0;
            n *= groups[g]->n[k];
            last += (groups[g]->n[k] - 1) * stride;
        }
    return last == n - 1;
}

/* The longest index of the terms. */
static int find_longest(const Group *terms)
{
    int longest_term = 0;
    for (int k = 1; k < terms->rank; ++k)
        if (terms->n[k] > terms->n[longest_term])
            longest_term = k;
    return longest_term;
}

/* Whether threads share the terms: few results of long sums, in which every thread would
   otherwise read an operand as a whole. */
static int is_shared_sum(const Problem *p, int n_threads)
{
    const long n_batch = count(&p->batch), n_rows = count(&p->rows);
    const long n_columns = count(&p->columns);
    return n_threads > 1 && p->terms.rank > 0 && p->method != LANES_OF_BATCH &&
           p->batch.rank < MAX_INDICES && n_batch < 2 * n_threads &&
           n_rows < SHARED_ROWS && n_columns < SHARED_ROWS &&
           n_batch * n_rows * n_columns <= MAX_SHARED &&
           p->terms.n[find_longest(&p->terms)] >= 2 * MIN_SHARE &&
           estimate_ns(p) > 2 * PER_THREAD_NS && is_compact(p);
}

/* Sums by several threads: a batch of parts of the longest index of the terms, each with
   results of its own, which are added up in double precision. */
static int sum_in_parts(Run run, const Problem *p, int is_single, int n_threads)
{
    const int split = find_longest(&p->terms);
    const long length = p->terms.n[split], *steps = p->terms.strides[split];
    const long n_parts = min(min(4 * n_threads, MAX_PARTS), length / MIN_SHARE);
    const long n = length / n_parts, rest = length - n * n_parts;
    const long n_numbers = p->is_complex ? 2 : 1;
    const long n_results =
        count(&p->batch) * count(&p->rows) * count(&p->columns) * n_numbers;
    const size_t n_bytes = is_single ? sizeof(float) : sizeof(double);
    char *parts = malloc((n_parts + 1) * n_results * n_bytes);
    if (parts == NULL)
        return -1;
    Problem part = *p;
    part.c = parts;
    part.terms.n[split] = n;
    const int last = part.batch.rank++;
    part.batch.n[last] = n_parts;
    part.batch.strides[last][0] = n * steps[0];
    part.batch.strides[last][1] = n * steps[1];
    part.batch.strides[last][2] = n_results / n_numbers;
    int failed = run_problem(run, &part, n_threads);
    if (rest && !failed) {
        part.a = (const char *)p->a + n * n_parts * steps[0] * n_numbers * (long)n_bytes;
        part.b = (const char *)p->b + n * n_parts * steps[1] * n_numbers * (long)n_bytes;
        part.c = parts + n_parts * n_results * n_bytes;
        part.terms.n[split] = rest;
        --part.batch.rank;
        failed = run_problem(run, &part, 1);
    }
    for (long x = 0; x < n_results; ++x) {
        double sum = 0;
        for (long k = 0; k < n_parts + (rest > 0); ++k)
            sum += is_single ? ((float *)parts)[k * n_results + x]
                             : ((double *)parts)[k * n_results + x];
        if (is_single)
            ((float *)p->c)[x] = (float)sum;
        else
            ((double *)p->c)[x] = sum;
    }
    free(parts);
    return failed;
}

/* The index with the nearest neighbours in an array, of those that are long enough. */
static const Index *find_nearest(const Index *indices, long n_indices, int array)
{
    const Index *nearest = NULL;
    for (long k = 0; k < n_indices; ++k)
        if (indices[k].is_in[array] && indices[k].extent >= MIN_TILE &&
            (nearest == NULL ||
             labs(indices[k].strides[array]) < labs(nearest->strides[array])))
            nearest = &indices[k];
    return nearest;
}

/* Without a sum, the tiles of the index with neighbours in the result, and of another one
   that has them in an operand; otherwise there are none. */
static int find_tiles(const Index *indices, long n_indices, Problem *p)
{
    const Index *column = find_nearest(indices, n_indices, 2), *row = NULL;
    if (column == NULL)
        return 0;
    for (long k = 0; k < n_indices; ++k)
        if (!indices[k].is_in[2] && indices[k].extent > 1)
            return 0;
    for (int operand = 0; operand < 2; ++operand) {
        const Index *own = find_nearest(indices, n_indices, operand);
        if (column->is_in[operand] && own != column)
            row = own;
    }
    if (row == NULL)
        return 0;
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        Group *group = x == row ? &p->rows : x == column ? &p->columns : &p->batch;
        if (x->extent > 1)
            insert(group, x->extent, x->strides, 2);
    }
    merge(&p->batch);
    p->method = TILED, p->is_turned = 1;
    return 1;
}

/* Move the last index of the batch, or one value of none, to another group. */
static void take_last(Group *batch, Group *group)
{
    static const long none[3] = {0, 0, 0};
    const int last = batch->rank - 1;
    group->rank = 0;
    insert(group, last < 0 ? 1 : batch->n[last], last < 0 ? none : batch->strides[last], 2);
    batch->rank -= last >= 0;
}

/* Without a sum, lines of the index with the nearest neighbours in the result, of those
   that are long. */
static void set_lines(const Index *indices, long n_indices, Problem *p)
{
    p->batch.rank = 0;
    for (long k = 0; k < n_indices; ++k)
        if (indices[k].extent > 1)
            insert(&p->batch, indices[k].extent, indices[k].strides, 2);
    merge(&p->batch);
    int long_line = p->batch.rank - 1;
    while (long_line >= 0 && p->batch.n[long_line] < TILE)
        --long_line;
    if (long_line >= 0)
        move_to_end(&p->batch, long_line);
    take_last(&p->batch, &p->columns);
    take_last(&p->batch, &p->rows);
    p->method = TILED, p->is_turned = 0;
}

/* Of rows that lie in runs, but not in one, those of a run are left: the others become
   entries of the batch. So bca,c->ba reads and writes vectors along a. */
static void split_rows(Problem *p)
{
    Group *rows = &p->rows;
    const int last = rows->rank - 1;
    if (last < 1 || rows->n[last] < MIN_RUN || rows->strides[last][0] != 1 ||
        rows->strides[last][2] != 1 || count(&p->columns) > 4 || count(&p->terms) == 1)
        return;
    for (int k = 0; k < last; ++k)
        insert(&p->batch, rows->n[k], rows->strides[k], 2);
    merge(&p->batch);
    rows->n[0] = rows->n[last];
    memcpy(rows->strides[0], rows->strides[last], sizeof(rows->strides[0]));
    rows->rank = 1;
}

static int contract(int is_single, int is_complex, const Index *indices, long n_indices,
                    const void *a, const void *b, void *c, int n_threads, int n_copies);

/* The indices of an array in the order that another one has them, the longest stride of
   that first. The strides of the array are number 0, those of a compact copy in this
   order number 2 and in `copied`. Returns the number of entries. */
static long order_like(const Index *indices, long n_indices, int array, int other,
                       Group *order, Index *copied)
{
    long n_entries = 1;
    order->rank = 0;
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        const long strides[3] = {x->strides[array], k, x->strides[other]};
        copied[k] = *x;
        if (x->is_in[array] && x->extent > 1)
            insert(order, x->extent, strides, 2);
    }
    for (int k = order->rank - 1; k >= 0; --k) {
        copied[order->strides[k][1]].strides[array] = order->strides[k][2] = n_entries;
        order->strides[k][1] = 0;
        n_entries *= order->n[k];
    }
    return n_entries;
}

/* Copy an array, or a compact copy of it back. */
static void turn(const Group *order, long entry_bytes, const char *from, char *to,
                 int is_back)
{
    Group outer = *order;
    Place at;
    const int last = --outer.rank, of_from = is_back ? 2 : 0, of_to = is_back ? 0 : 2;
    if (last < 0) {
        memcpy(to, from, entry_bytes);
        return;
    }
    const long n = order->n[last], step_from = order->strides[last][of_from] * entry_bytes;
    const long step_to = order->strides[last][of_to] * entry_bytes;
    start(&outer, 0, &at);
    for (long e = count(&outer); e > 0; --e, step(&outer, 1, &at)) {
        const char *x = from + (is_back ? at.c : at.a) * entry_bytes;
        char *y = to + (is_back ? at.a : at.c) * entry_bytes;
        for (long k = 0; k < n; ++k, x += step_from, y += step_to)
            if (entry_bytes == 4)
                memcpy(y, x, 4);
            else if (entry_bytes == 8)
                memcpy(y, x, 8);
            else
                memcpy(y, x, 16);
    }
}

/* Contract a large operand into a result whose indices are in the order of the operand,
   and copy that: so vectors are read and written as they lie. */
static int contract_turned(int is_single, int is_complex, const Index *indices,
                           long n_indices, const void *a, const void *b, void *c,
                           int n_threads, int operand)
{
    const long entry_bytes = (is_single ? 4 : 8) * (is_complex ? 2 : 1);
    Index turned[MAX_INDICES];
    Group *order = malloc(sizeof(Group));
    if (order == NULL)
        return -1;
    const long n_entries = order_like(indices, n_indices, 2, operand, order, turned);
    char *result = malloc(n_entries * entry_bytes);
    const int failed = result == NULL || contract(is_single, is_complex, turned, n_indices,
                                                  a, b, result, n_threads, 0);
    if (!failed)
        turn(order, entry_bytes, result, c, 1);
    free(result);
    free(order);
    return failed ? -1 : 0;
}

/* Whether the neighbours in a large operand, of a product that is no matrix, are none in
   the other one, which is small. */
static int is_scattered(const Index *indices, long n_indices, int large)
{
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        if (x->is_in[large] && x->is_in[!large] && x->extent >= MIN_RUN &&
            x->strides[large] == 1 && x->strides[!large] != 1)
            return 1;
    }
    return 0;
}

/* Contract with a copy of the small operand, whose indices are in the order of the large
   one: da,acd->ca becomes ad,acd->ca, a batch of sums along runs. */
static int contract_copied(int is_single, int is_complex, const Index *indices,
                           long n_indices, const void *a, const void *b, void *c,
                           int n_threads, int large)
{
    const long entry_bytes = (is_single ? 4 : 8) * (is_complex ? 2 : 1);
    Index copied[MAX_INDICES];
    Group *order = malloc(sizeof(Group));
    if (order == NULL)
        return -1;
    const long n_entries = order_like(indices, n_indices, !large, large, order, copied);
    char *copy = malloc(n_entries * entry_bytes);
    int failed = copy == NULL;
    if (!failed) {
        turn(order, entry_bytes, large ? a : b, copy, 0);
        failed = contract(is_single, is_complex, copied, n_indices, large ? copy : a,
                          large ? b : copy, c, n_threads, 1);
    }
    free(copy);
    free(order);
    return failed ? -1 : 0;
}

int contract_strided(int is_single, int is_complex, const Index *indices, long n_indices,
                     const void *a, const void *b, void *c, int n_threads)
{
    return contract(is_single, is_complex, indices, n_indices, a, b, c, n_threads, 2);
}

static int contract(int is_single, int is_complex, const Index *indices, long n_indices,
                    const void *a, const void *b, void *c, int n_threads, int n_copies)
{
    Problem *p = malloc(sizeof(Problem));
    if (p == NULL)
        return -1;
    p->is_complex = is_complex;
    p->batch.rank = p->rows.rank = p->columns.rank = p->terms.rank = 0;
    p->a = a, p->b = b, p->c = c;
    if (find_tiles(indices, n_indices, p)) {
        const int failed = run_problem(runs[0][!is_single], p, n_threads);
        free(p);
        return failed;
    }
    /* Vectors go along the rows: those are the indices of the operand that has the
       index of the result with unit stride. */
    int is_swapped = 0;
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        if (x->extent > 1 && x->is_in[1] && !x->is_in[0] && x->strides[2] == 1)
            is_swapped = 1;
    }
    const int first = is_swapped, second = !is_swapped;
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        const long strides[3] = {x->strides[first], x->strides[second], x->strides[2]};
        if (x->extent == 1)
            continue;
        if (!x->is_in[2])
            insert(&p->terms, x->extent, strides, 0);
        else if (x->is_in[0] && x->is_in[1])
            insert(&p->batch, x->extent, strides, 2);
        else
            insert(x->is_in[first] ? &p->rows : &p->columns, x->extent, strides, 2);
    }
    if (is_swapped)
        p->a = b, p->b = a;
    merge(&p->batch);
    merge(&p->rows);
    merge(&p->columns);
    merge(&p->terms);
    split_rows(p);
    keep(&p->rows, 0, 2);
    keep(&p->columns, 1, 2);
    keep(&p->terms, 0, 1);
    p->method = choose_method(p, is_single);
    if (p->method != LANES_OF_BATCH && p->method != DOT && count(&p->terms) == 1 &&
        (count(&p->rows) == 1 || count(&p->columns) == 1)) {
        p->a = a, p->b = b;
        set_lines(indices, n_indices, p);
    }
    if (n_copies > 0 && (p->method == PACKED || p->method == SCALAR) &&
        count(&p->terms) >= MIN_TURNED &&
        (count(&p->rows) == 1) != (count(&p->columns) == 1)) {
        const int operand = count(&p->rows) == 1 ? second : first;
        const int is_copied = n_copies > 1 && is_scattered(indices, n_indices, operand) &&
                              count(&p->rows) + count(&p->columns) > MIN_SHARED_ENTRY;
        free(p);
        return (is_copied ? contract_copied : contract_turned)(is_single, is_complex, indices, n_indices, a, b, c,
                               n_threads, operand);
    }
    p->is_copied = p->method == DIRECT && !is_contiguous(&p->rows, 0);
    int length = longest;
    if (p->method == DIRECT || p->method == LANES_OF_BATCH || p->method == DOT) {
        const long n = count_last(p->method == DIRECT           ? &p->rows
                                  : p->method == LANES_OF_BATCH ? &p->batch
                                                                : &p->terms);
        /* a long vector that is not filled is slower than a short one */
        const long n_numbers = is_complex ? 2 * n : n;
        /* of a short sum, the lanes of long vectors take longer to add up than to fill */
        if (p->method == DOT && length > 1 && count(&p->terms) < (is_single ? 64 : 32))
            length = 1;
        while (length > 0 && n_numbers < (is_single ? 4 : 2) << length)
            --length;
    }
    /* gcc 12 permutes vectors of 64 bytes wrongly */
    if (is_complex && p->method != PACKED && length > 1)
        length = 1;
    const Run run = runs[length][!is_single];
    const int failed = is_shared_sum(p, n_threads)
                           ? sum_in_parts(run, p, is_single, n_threads)
                           : run_problem(run, p, n_threads);
    free(p);
    return failed;
}

int start_pairwise(void)
{
    find_processor();
    return pthread_key_create(&held_key, free) ||
                   pthread_atfork(NULL, NULL, forget_threads)
               ? -1
               : 0;
}
