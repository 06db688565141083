/* The products and sums of a problem, by the method that pairwise.c has chosen: for each
   type and length of vectors, and by several threads. */

#define _GNU_SOURCE /* processors of threads */
#include "pairwise_problem.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_X86 1
#include <immintrin.h>
#endif

/* Rows of a block of PACKED if there are few terms; entries of columns that no other rows
   need. */
#define MAX_BLOCK_ROWS 576
#define PANEL_ENTRIES (1 << 16)
/* Bytes of a run that are packed before those of the next term, which may lie on another
   page. */
#define RUN_BYTES 512

/* How a tile is written; STREAM past the caches. */
enum { ADD, STORE, STREAM };

/* How a strip of rows lies in a result: in vectors, even in cache lines, or otherwise. */
typedef enum { SCATTERED, IN_VECTORS, IN_LINES } RowLayout;

/* Of the batch, LANES_OF_BATCH and SCALAR have entries of the last index in n_batch, and
   those of all others in n_outer. */
typedef struct {
    long first_batch, n_batch, first_row, n_rows, first_column, n_columns, first_outer,
        n_outer;
} Part;

static int is_along_batch(const Problem *p)
{
    return p->method == LANES_OF_BATCH || p->method == SCALAR;
}

static double count_result(const Problem *p)
{
    return (double)count(&p->batch) * count(&p->rows) * count(&p->columns);
}

/* The first row and column of a tile. Tiles are visited in blocks, row by row, so that
   several lines of each row and column are read and written at once. */
typedef struct {
    long i, j, first_i, first_j;
} Corner;

static Corner first_corner(const Part *part)
{
    return (Corner){part->first_row, part->first_column, part->first_row,
                    part->first_column};
}

static void next_corner(Corner *t, const Part *part)
{
    enum { BLOCK_I = 4 * TILE, BLOCK_J = 4 * TILE };
    const long last_row = part->first_row + part->n_rows;
    const long last_column = part->first_column + part->n_columns;
    t->i += TILE;
    if (t->i < min(last_row, t->first_i + BLOCK_I))
        return;
    t->i = t->first_i, t->j += TILE;
    if (t->j < min(last_column, t->first_j + BLOCK_J))
        return;
    t->first_j += BLOCK_J;
    if (t->first_j >= last_column)
        t->first_j = part->first_column, t->first_i += BLOCK_I;
    t->i = t->first_i, t->j = t->first_j;
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

/* Terms of which SCALAR has lists, or more, so that there are as few lists; columns and
   terms of DIRECT. So the lists stay in the caches. */
#define LISTED_TERMS 512
#define LISTED_COLUMNS 4096
#define LISTED_BY_DIRECT (1 << 13)

/* The offsets of a part of rows and columns, and of all terms, or the first of them. */
typedef struct {
    long n_rows, n_columns, n_terms;
    int is_added; /* to the result, by SCALAR */
    int has_squares; /* the last two indices of the terms, for SCALAR */
    long *memory, *rows_a, *rows_c, *columns_b, *columns_c, *terms_a, *terms_b;
} Offsets;

/* Rows and columns from which on squares of them are worth their start. */
#define MIN_SQUARES 8

/* Whether each of the last two terms has neighbours in another operand: for ab,ba-> sums
   are added up by squares of four rows and columns, one of which is turned. */
static int has_squares(const Problem *p)
{
    const Group *terms = &p->terms;
    if (p->method != SCALAR || p->is_complex || terms->rank < 2)
        return 0;
    const int last = terms->rank - 1;
    const long *outer = terms->strides[last - 1], *inner = terms->strides[last];
    return terms->n[last - 1] >= MIN_SQUARES && terms->n[last] >= MIN_SQUARES &&
           ((inner[0] == 1 && outer[1] == 1) || (inner[1] == 1 && outer[0] == 1));
}

/* The terms of which there are lists; the others are in runs, or in squares. */
static Group get_listed_terms(const Problem *p)
{
    Group terms = p->terms;
    terms.rank -= p->method == DOT ? terms.rank > 0 : 2 * has_squares(p);
    return terms;
}

static void list_terms(const Group *terms, long first, Offsets *o)
{
    offsets(terms, first, o->n_terms, 0, o->terms_a);
    offsets(terms, first, o->n_terms, 1, o->terms_b);
}

static int find_offsets(const Problem *p, const Part *part, Offsets *o)
{
    const Group terms = get_listed_terms(p);
    o->n_rows = part->n_rows;
    o->n_columns = part->n_columns;
    o->n_terms = count(&terms);
    if (p->method == SCALAR && !p->is_complex)
        o->n_terms = min(o->n_terms, max(LISTED_TERMS, o->n_terms / LISTED_TERMS));
    o->is_added = p->is_added;
    o->has_squares = has_squares(p);
    /* DIRECT has its rows in a run, and lists of many columns block by block */
    const int is_direct = p->method == DIRECT && !p->is_complex;
    if (is_direct && !p->is_copied)
        o->n_terms = min(o->n_terms, LISTED_BY_DIRECT);
    const long n_rows = is_direct && !p->is_copied ? 0 : o->n_rows;
    const long n_columns =
        is_direct && o->n_columns > LISTED_COLUMNS ? 0 : o->n_columns;
    o->memory = malloc(2 * (n_rows + n_columns + o->n_terms + 1) * sizeof(long));
    if (o->memory == NULL)
        return -1;
    o->rows_a = o->memory, o->rows_c = o->rows_a + n_rows;
    o->columns_b = o->rows_c + n_rows, o->columns_c = o->columns_b + n_columns;
    o->terms_a = o->columns_c + n_columns, o->terms_b = o->terms_a + o->n_terms;
    offsets(&p->rows, part->first_row, n_rows, 0, o->rows_a);
    offsets(&p->rows, part->first_row, n_rows, 1, o->rows_c);
    offsets(&p->columns, part->first_column, n_columns, 0, o->columns_b);
    offsets(&p->columns, part->first_column, n_columns, 1, o->columns_c);
    list_terms(&terms, 0, o);
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

#ifdef HAS_X86
#define FENCE() _mm_sfence()
#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma,prefer-vector-width=256")
#endif
#define STORE_PAST_CACHES(to, v) _mm512_stream_si512((void *)(to), (__m512i)(v))
#define BYTES 64
#define VECTORS 3
#define COLUMNS 8
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
#undef VECTORS
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
#undef STORE_PAST_CACHES
#define STORE_PAST_CACHES(to, v) _mm256_stream_si256((void *)(to), (__m256i)(v))
#define BYTES 32
#define COLUMNS 6
#define VECTORS 2
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
#undef VECTORS
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#undef STORE_PAST_CACHES
#ifdef HAS_X86
#define STORE_PAST_CACHES(to, v) _mm_stream_si128((void *)(to), (__m128i)(v))
#else
#define STORE_PAST_CACHES(to, v) (*(to) = (v))
#define FENCE() ((void)0)
#endif
#define BYTES 16
#define COLUMNS 6
#define VECTORS 2
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
#undef VECTORS

/* For vectors of 16 bytes and more: by length, then by type, float and double. */
static const Run runs[][2] = {
    {run_f32_base, run_f64_base},
#ifdef HAS_X86
    {run_f32_avx2, run_f64_avx2},
    {run_f32_avx512, run_f64_avx512},
#endif
};
static int longest; /* that this processor has, as a number in this list */

int get_longest_vector(void) { return longest; }

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

/* How long a thread spins before it sleeps: to wake it takes up to 50 us in a virtual
   machine, which back-to-back calls, and the end of a call, do not wait for. */
#define SPIN_NS 50000

/* Work of each thread from which on back-to-back calls share it. */
#define PER_THREAD_BACK_TO_BACK_NS 20000

static struct {
    pthread_mutex_t lock, one_call;
    pthread_cond_t has_work, is_done;
    int n_threads, n_placed; /* see leave_processor */
    pthread_t threads[MAX_THREADS];
    Run run;
    const Problem *problem;
    Part *parts;
    int n_parts, n_taken, n_left, failed;
    unsigned n_calls;
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
        if (__atomic_sub_fetch(&pool.n_left, 1, __ATOMIC_RELAXED) == 0)
            pthread_cond_signal(&pool.is_done);
    }
}

double read_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static inline void pause_briefly(void)
{
#ifdef HAS_X86
    for (int k = 0; k < 8; ++k)
        __builtin_ia32_pause();
#endif
}

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        take_parts();
        const unsigned n_calls = pool.n_calls;
        pthread_mutex_unlock(&pool.lock);
        for (const double end = read_clock_ns() + SPIN_NS; read_clock_ns() < end;
             pause_briefly())
            if (__atomic_load_n(&pool.n_calls, __ATOMIC_RELAXED) != n_calls)
                break;
        pthread_mutex_lock(&pool.lock);
        while (pool.n_calls == n_calls)
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
    __atomic_store_n(&pool.n_calls, pool.n_calls + 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&pool.has_work);
    take_parts();
    pthread_mutex_unlock(&pool.lock);
    for (const double end = read_clock_ns() + SPIN_NS; read_clock_ns() < end;
         pause_briefly())
        if (__atomic_load_n(&pool.n_left, __ATOMIC_RELAXED) == 0)
            break;
    pthread_mutex_lock(&pool.lock);
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

double estimate_ns(const Problem *p)
{
    const double n_batch = count(&p->batch), n_rows = count(&p->rows);
    const double n_columns = count(&p->columns), n_terms = count(&p->terms);
    const int is_matrix = n_rows >= 16 && n_columns >= 16 && n_terms >= 16;
    const double n_products = p->method == PACKED || (p->method == DIRECT && is_matrix)
                                  ? 0.02 * (n_rows + 8) * (n_columns + 8) * (n_terms + 2)
                                  : (p->method == TILED ? 0.5 : 0.1) * n_rows *
                                        n_columns * n_terms;
    const double n_entries =
        n_rows * n_terms + n_columns * n_terms + n_rows * n_columns;
    return n_batch * ((p->is_complex ? 4 : 1) * n_products + 0.2 * n_entries);
}

/* When the last call that threads might share ended. Any thread may write it: a wrong
   choice costs some microseconds. */
static volatile double last_ns;

int run_problem(int length, int is_single, const Problem *p, int n_threads)
{
    const Run run = runs[length][!is_single];
    const long n_rows = count(&p->rows), n_columns = count(&p->columns);
    const int is_along = is_along_batch(p);
    const long n_batch = is_along ? count_last(&p->batch) : count(&p->batch);
    const double ns = estimate_ns(p);
    const int may_share = n_threads > 1 && ns > 2 * PER_THREAD_BACK_TO_BACK_NS;
    const int is_back_to_back = may_share && read_clock_ns() - last_ns < SPIN_NS;
    const double worth =
        ns / (is_back_to_back ? PER_THREAD_BACK_TO_BACK_NS : PER_THREAD_NS);
    int n_parts = worth < n_threads ? (int)worth : n_threads;
    if (n_parts > MAX_THREADS)
        n_parts = MAX_THREADS;
    const long n_outer = is_along ? count(&p->batch) / n_batch : 1;
    const int by_outer = n_outer >= 2 * n_parts;
    const long unit_of_batch = p->method == LANES_OF_BATCH ? 64 : 1;
    int by_batch = !by_outer && n_batch >= max(2, unit_of_batch) * n_parts;
    const int by_rows = n_rows >= n_columns;
    if (!by_outer && !by_batch && max(n_rows, n_columns) < 16)
        n_parts = (int)min(n_parts, n_batch / unit_of_batch), by_batch = 1;
    if (n_parts < 1)
        n_parts = 1;
    /* threads share the rows in blocks of whole lines */
    const long period = p->method == PACKED ? find_period(&p->rows, 0) : 0;
    const long unit = period > 1 && n_rows >= 96 * n_parts * period ? 24 * period : 24;
    Part parts[MAX_THREADS], whole = {0, n_batch, 0, n_rows, 0, n_columns, 0, n_outer};
    for (int k = 0; k < n_parts; ++k) {
        Part *part = &parts[k];
        *part = whole;
        if (by_outer)
            divide(n_outer, k, n_parts, 1, &part->first_outer, &part->n_outer);
        else if (by_batch)
            divide(n_batch, k, n_parts, unit_of_batch, &part->first_batch,
                   &part->n_batch);
        else if (by_rows)
            divide(n_rows, k, n_parts, unit, &part->first_row, &part->n_rows);
        else
            divide(n_columns, k, n_parts, 24, &part->first_column, &part->n_columns);
    }
    const int failed = run_parts(run, p, parts, n_parts);
    if (may_share)
        last_ns = read_clock_ns();
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
