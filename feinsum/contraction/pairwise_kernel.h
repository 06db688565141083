/* The loops of one type and one length of vectors; included once for each of them.

   Defined by the includer: T, the type of an entry, or of its real and imaginary part;
   BYTES, the length of a vector; VECTORS and COLUMNS, the vectors of rows and the columns
   of a register tile; NAME(x), the name of a function here.

   With AVX2, 2 x 6 accumulators, two vectors of the first operand and one broadcast entry
   of the second take 15 of 16 registers; with AVX-512, 3 x 8 take 28 of 32, and load less
   for a multiply-add than 2 x 12.
*/

#define LANES ((int)(BYTES / sizeof(T)))
#define ROWS (VECTORS * LANES)
#define DIRECT_VECTORS (BYTES == 64 ? 4 : 2)

typedef T NAME(vector) __attribute__((vector_size(BYTES), aligned(sizeof(T))));
#define V NAME(vector)
typedef T NAME(four) __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T))));

#include "pairwise_packed.h"

/* Without packing, where the rows lie next to each other in the first operand and in
   the result: several vectors of rows times a few columns. The sum of the first block of
   terms is stored, later ones are added but for the first `n_added` rows. */
static inline __attribute__((always_inline)) void NAME(direct_tile)(
    const T *a, const long *terms_a, const T *b, const long *terms_b, long n_terms,
    const long *columns_b, T *c, const long *columns_c, const int is_first,
    const long n_added, const int n_vectors, const int n_columns)
{
    V sums[8][4] = {0};
    for (long k = 0; k < n_terms; ++k) {
        const T *from = a + terms_a[k], *factor = b + terms_b[k];
        V x[4];
#pragma GCC unroll 4
        for (int i = 0; i < n_vectors; ++i)
            x[i] = *(const V *)(from + i * LANES);
#pragma GCC unroll 8
        for (int j = 0; j < n_columns; ++j)
#pragma GCC unroll 4
            for (int i = 0; i < n_vectors; ++i)
                sums[j][i] += x[i] * factor[columns_b[j]];
    }
    for (long i = 0; !is_first && i < n_added; ++i)
        for (int j = 0; j < n_columns; ++j)
            sums[j][0][i] = 0;
#pragma GCC unroll 8
    for (int j = 0; j < n_columns; ++j)
#pragma GCC unroll 4
        for (int i = 0; i < n_vectors; ++i) {
            V *to = (V *)(c + columns_c[j] + i * LANES);
            *to = is_first ? sums[j][i] : *to + sums[j][i];
        }
}

static inline __attribute__((always_inline)) void NAME(direct_columns)(
    const T *a, const long *terms_a, const T *b, const long *terms_b, long n_terms,
    const long *columns_b, long n_columns, T *c, const long *columns_c,
    const int is_first, const long n_added, const int n_vectors)
{
    /* enough sums at once to hide the latency of a multiply-add, in half of the registers
       or more */
    const int many = n_vectors == 1 || (n_vectors == 2 && DIRECT_VECTORS == 4) ? 8 : 6;
    long j = 0;
#define TILES_OF(n)                                                                    \
    for (; j + (n) <= n_columns; j += (n))                                             \
    NAME(direct_tile)                                                                  \
    (a, terms_a, b, terms_b, n_terms, columns_b + j, c, columns_c + j, is_first, n_added,  \
     n_vectors, n)
    TILES_OF(many);
    TILES_OF(4);
    TILES_OF(2);
    TILES_OF(1);
#undef TILES_OF
}

static void NAME(direct)(
    const T *a, const long *terms_a, const T *b, const long *terms_b, long n_terms,
    const long *columns_b, long n_columns, T *c, const long *columns_c, long n_rows,
    const int is_first)
{
    long i = 0, n_added = 0;
#define COLUMNS_OF(n)                                                                  \
    NAME(direct_columns)                                                               \
    (a + i, terms_a, b, terms_b, n_terms, columns_b, n_columns, c + i, columns_c,          \
     is_first, n_added, n)
    for (; i + DIRECT_VECTORS * LANES <= n_rows; i += DIRECT_VECTORS * LANES)
        COLUMNS_OF(DIRECT_VECTORS);
    const long n_vectors = (n_rows - i) / LANES;
    if (DIRECT_VECTORS == 4 && n_vectors == 3)
        COLUMNS_OF(3);
    else if (DIRECT_VECTORS == 4 && n_vectors == 2)
        COLUMNS_OF(2);
    else if (n_vectors == 1)
        COLUMNS_OF(1);
    i += n_vectors * LANES;
    if (i < n_rows && n_rows >= LANES) { /* some rows twice, with the same result */
        n_added = i - (n_rows - LANES);
        i = n_rows - LANES;
        COLUMNS_OF(1);
        return;
    }
#undef COLUMNS_OF
    for (; i < n_rows; ++i)
        for (long j = 0; j < n_columns; ++j) {
            T sum = 0;
            for (long k = 0; k < n_terms; ++k)
                sum += a[terms_a[k] + i] * b[terms_b[k] + columns_b[j]];
            T *to = c + columns_c[j] + i;
            *to = is_first ? sum : *to + sum;
        }
}

#if defined(__clang__) || !defined(__GNUC__)
#define SHUFFLE(x, places, y)                                                          \
    for (int i = 0; i < LANES; ++i)                                                    \
    (y)[i] = (x)[(places)[i]]
#else
#define SHUFFLE(x, places, y) (y) = __builtin_shuffle(x, places)
#endif
typedef __typeof__(__builtin_choose_expr(sizeof(T) == 8, 0L, 0)) NAME(places)
    __attribute__((vector_size(BYTES)));

/* Each lane plus the one `distance` away: 1, 2, 4 and so on add up all lanes. */
static inline __attribute__((always_inline)) V NAME(add_lanes)(V x, const int distance)
{
    NAME(places) other = {0};
    V y;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i)
        other[i] = i ^ distance;
    SHUFFLE(x, other, y);
    return x + y;
}

/* By halves in memory for vectors of 64 bytes, which gcc 12 permutes wrongly. */
static inline __attribute__((always_inline)) T NAME(sum_lanes)(V x)
{
#if BYTES > 32
    T lanes[LANES];
    *(V *)lanes = x;
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i)
            lanes[i] += lanes[i + half];
    return lanes[0];
#else
    x = NAME(add_lanes)(x, 1);
    x = LANES > 2 ? NAME(add_lanes)(x, 2) : x;
    x = LANES > 4 ? NAME(add_lanes)(x, 4) : x;
    return x[0];
#endif
}

/* A sum over terms that lie in runs, each of that length, in both operands, or in the
   first alone: then the second has one entry for a run. Blocks are added up in double
   precision, so that the error does not grow with the number of terms. */
static inline __attribute__((always_inline)) double NAME(dot)(
    const T *a, const long *terms_a, const T *b, const long *terms_b, long n_runs,
    long length, const int b_has)
{
    double total = 0;
    V sums[4] = {0};
    double rest = 0; /* of runs shorter than a vector, all terms */
    long n_added = 0;
    for (long run = 0; run < n_runs; ++run) {
        const T *x = a + terms_a[run], *y = b + terms_b[run];
        for (long left = length; left > 0;) {
            const long n = min(left, BLOCK_OF_DOT);
            long k = 0;
#define FACTOR(at) (b_has ? *(const V *)(y + (at)) : *y - (V){0})
            for (; k + 4 * LANES <= n; k += 4 * LANES)
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i)
                    sums[i] += *(const V *)(x + k + i * LANES) * FACTOR(k + i * LANES);
            for (; k + LANES <= n; k += LANES)
                sums[0] += *(const V *)(x + k) * FACTOR(k);
#undef FACTOR
            for (; k < n; ++k)
                rest += x[k] * y[b_has ? k : 0];
            x += n, y += b_has ? n : 0, left -= n, n_added += n;
            if (n_added >= BLOCK_OF_DOT) {
                total += rest;
                total += NAME(sum_lanes)((sums[0] + sums[1]) + (sums[2] + sums[3]));
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i)
                    sums[i] = (V){0};
                rest = 0, n_added = 0;
            }
        }
    }
    total += rest;
    return total + NAME(sum_lanes)((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/* The same for one run that is shorter than four vectors. */
static inline __attribute__((always_inline)) T NAME(short_dot)(
    const T *x, const T *y, long length, const int b_has)
{
    V sum = {0};
    NAME(four) part = {0};
    T rest = 0;
    long k = 0;
#define FACTOR(kind, at) (b_has ? *(const kind *)(y + (at)) : *y - (kind){0})
    for (; k + LANES <= length; k += LANES)
        sum += *(const V *)(x + k) * FACTOR(V, k);
    for (; LANES > 4 && k + 4 <= length; k += 4)
        part += *(const NAME(four) *)(x + k) * FACTOR(NAME(four), k);
#undef FACTOR
    for (; k < length; ++k)
        rest += x[k] * y[b_has ? k : 0];
    return NAME(sum_lanes)(sum) + ((part[0] + part[1]) + (part[2] + part[3])) + rest;
}

/* One product for many entries of the batch, which lie next to each other. An
   operand that does not have their index is the same for all: it has the stride 0. */
static inline __attribute__((always_inline)) void NAME(lanes_tile)(
    const T *x, const T *y, T *z, const Offsets *o, long j, const int a_has,
    const int b_has, const int n_vectors, const int n_columns)
{
    V sums[4][4] = {0};
    for (long k = 0; k < o->n_terms; ++k) {
        const T *from = x + o->terms_a[k], *factors = y + o->terms_b[k];
        V left[4];
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; ++v)
            left[v] = a_has ? *(const V *)(from + v * LANES) : *from - (V){0};
#pragma GCC unroll 4
        for (int c = 0; c < n_columns; ++c) {
            const T *factor = factors + o->columns_b[j + c];
#pragma GCC unroll 4
            for (int v = 0; v < n_vectors; ++v)
                sums[c][v] += left[v] * (b_has ? *(const V *)(factor + v * LANES)
                                               : *factor - (V){0});
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < n_columns; ++c)
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; ++v)
            *(V *)(z + o->columns_c[j + c] + v * LANES) = sums[c][v];
}

/* Four sums at once, at least, hide the latency of a multiply-add. */
static inline __attribute__((always_inline)) void NAME(lanes)(
    const T *a, const T *b, T *c, const Offsets *o, const int a_has, const int b_has,
    const int n_vectors)
{
    const int many = n_vectors == 4 ? 2 : 4;
    for (long i = 0; i < o->n_rows; ++i) {
        const T *x = a + o->rows_a[i];
        T *z = c + o->rows_c[i];
        long j = 0;
        for (; j + many <= o->n_columns; j += many)
            NAME(lanes_tile)(x, b, z, o, j, a_has, b_has, n_vectors, many);
        for (; j < o->n_columns; ++j)
            NAME(lanes_tile)(x, b, z, o, j, a_has, b_has, n_vectors, 1);
    }
}

/* The sum of a[i, j] * b[j, i] by squares, with the distances of rows of a and b. */
static double NAME(turned_dot)(
    const T *a, long row_a, const T *b, long row_b, long n_i, long n_j)
{
    enum { AT_ONCE = 256 }; /* entries of a row that are added up by the type's precision */
    double total = 0;
    for (long i = 0; i < n_i; i += 4)
        for (long j = 0; j < n_j;) {
            const long end = min(n_j, j + AT_ONCE);
            NAME(four) sums = {0};
            for (; n_i - i >= 4 && j + 4 <= end; j += 4) {
                T square[4][4];
                T *columns[4] = {square[0], square[1], square[2], square[3]};
                const T *lines[4];
                for (int k = 0; k < 4; ++k)
                    lines[k] = b + (j + k) * row_b + i;
                NAME(turn_four)(lines, columns);
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k)
                    sums += *(const NAME(four) *)(a + (i + k) * row_a + j) *
                            *(const NAME(four) *)square[k];
            }
            total += ((double)sums[0] + sums[1]) + ((double)sums[2] + sums[3]);
            for (; j < end; ++j)
                for (long k = i; k < min(i + 4, n_i); ++k)
                    total += a[k * row_a + j] * b[j * row_b + k];
        }
    return total;
}

/* A sum over terms that lie anywhere; four sums at once hide the latency of additions. */
static T NAME(sum_products)(const Problem *p, const T *a, const T *b, const Offsets *o)
{
    double sums[4] = {0, 0, 0, 0};
    long k = 0;
    if (o->has_squares) {
        const int last = p->terms.rank - 1;
        const long *outer = p->terms.strides[last - 1], *inner = p->terms.strides[last];
        const long n_outer = p->terms.n[last - 1], n_inner = p->terms.n[last];
        for (; k < o->n_terms; ++k) {
            const T *x = a + o->terms_a[k], *y = b + o->terms_b[k];
            sums[0] += inner[0] == 1 && outer[1] == 1
                           ? NAME(turned_dot)(x, outer[0], y, inner[1], n_outer, n_inner)
                           : NAME(turned_dot)(y, outer[1], x, inner[0], n_outer, n_inner);
        }
        return (T)sums[0];
    }
    for (; k + 4 <= o->n_terms; k += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            sums[i] += a[o->terms_a[k + i]] * b[o->terms_b[k + i]];
    for (; k < o->n_terms; ++k)
        sums[0] += a[o->terms_a[k]] * b[o->terms_b[k]];
    return (T)((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/* The same for entries of the batch that lie anywhere: the i-th and the next one are
   `step` entries apart. */
static void NAME(scalar)(
    const Problem *p, const T *a, const T *b, T *c, const Offsets *o, long n, long step_a,
    long step_b, long step_c)
{
    for (long i = 0; i < o->n_rows; ++i)
        for (long j = 0; j < o->n_columns; ++j) {
            const T *x = a + o->rows_a[i], *y = b + o->columns_b[j];
            T *z = c + o->rows_c[i] + o->columns_c[j];
            if (o->n_terms == 1 && !o->is_added && !o->has_squares) {
                x += o->terms_a[0], y += o->terms_b[0];
                for (long e = 0; e < n; ++e)
                    z[e * step_c] = x[e * step_a] * y[e * step_b];
                continue;
            }
            for (long e = 0; e < n; ++e) {
                const T sum = NAME(sum_products)(p, x + e * step_a, y + e * step_b, o);
                z[e * step_c] = o->is_added ? z[e * step_c] + sum : sum;
            }
        }
}

static inline __attribute__((always_inline)) void NAME(all_lanes)(
    const Problem *p, const T *a, const T *b, T *c, const Offsets *o, long n,
    const int a_has, const int b_has)
{
    /* With a sum, entries of the operands are used again before the next lanes come, some
       rows and columns at a time; without one, memory is read and written in runs. */
    Offsets one = *o;
    const long block = o->n_terms > 1 ? 32 : 1;
    const long n_high = (o->n_rows + block - 1) / block;
    const long n_wide = (o->n_columns + block - 1) / block;
    for (long tile = 0; tile < n_high * n_wide; ++tile) {
        const long i = tile / n_wide * block, j = tile % n_wide * block;
        one.n_rows = min(block, o->n_rows - i);
        one.n_columns = min(block, o->n_columns - j);
        one.rows_a = o->rows_a + i, one.rows_c = o->rows_c + i;
        one.columns_b = o->columns_b + j, one.columns_c = o->columns_c + j;
        long e = 0;
        for (; e + 4 * LANES <= n; e += 4 * LANES)
            NAME(lanes)(a + a_has * e, b + b_has * e, c + e, &one, a_has, b_has, 4);
        for (; e + 2 * LANES <= n; e += 2 * LANES)
            NAME(lanes)(a + a_has * e, b + b_has * e, c + e, &one, a_has, b_has, 2);
        for (; e + LANES <= n; e += LANES)
            NAME(lanes)(a + a_has * e, b + b_has * e, c + e, &one, a_has, b_has, 1);
        NAME(scalar)(p, a + a_has * e, b + b_has * e, c + e, &one, n - e, a_has, b_has, 1);
    }
}

/* Complex numbers lie as pairs, (re, im). With x of one operand in a vector and y of the
   other, x * re(y) and (-im(x), re(x)) * im(y) are added up to the products. */

static inline __attribute__((always_inline)) V NAME(turn)(V x)
{
    NAME(places) other = {0};
    V sign = {0}, y;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i)
        other[i] = i ^ 1, sign[i] = i % 2 ? 1 : -1;
    SHUFFLE(x, other, y);
    return y * sign;
}

static inline __attribute__((always_inline)) V NAME(repeat)(V x, const int part)
{
    NAME(places) same = {0};
    V y;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i)
        same[i] = (i & ~1) + part;
    SHUFFLE(x, same, y);
    return y;
}
#undef SHUFFLE

/* Sums over terms of products of neighbours: lanes are entries of the batch, or rows.
   An operand without them has one number for all. */
static inline __attribute__((always_inline)) void NAME(complex_tile)(
    const T *x, const T *y, T *z, const Offsets *o, const int x_has, const int y_has,
    const int n_vectors)
{
    V real[4] = {0}, imaginary[4] = {0};
    for (long k = 0; k < o->n_terms; ++k) {
        const T *from = x + 2 * o->terms_a[k], *factor = y + 2 * o->terms_b[k];
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; ++v) {
            V left, re, im;
            if (x_has) {
                left = *(const V *)(from + v * LANES);
            } else {
#pragma GCC unroll 16
                for (int i = 0; i < LANES; ++i)
                    left[i] = from[i % 2];
            }
            if (y_has) {
                V right = *(const V *)(factor + v * LANES);
                re = NAME(repeat)(right, 0), im = NAME(repeat)(right, 1);
            } else {
                re = factor[0] - (V){0}, im = factor[1] - (V){0};
            }
            real[v] += left * re;
            imaginary[v] += left * im;
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < n_vectors; ++v)
        *(V *)(z + v * LANES) = real[v] + NAME(turn)(imaginary[v]);
}

static void NAME(complex_scalar)(
    const T *x, const T *y, T *z, const Offsets *o, long n, long step_x, long step_y,
    long step_z)
{
    for (long e = 0; e < n; ++e) {
        double re = 0, im = 0; /* the sums may be long */
        for (long k = 0; k < o->n_terms; ++k) {
            const T *from = x + 2 * (o->terms_a[k] + step_x * e);
            const T *factor = y + 2 * (o->terms_b[k] + step_y * e);
            re += from[0] * factor[0] - from[1] * factor[1];
            im += from[0] * factor[1] + from[1] * factor[0];
        }
        z[2 * e * step_z] = re, z[2 * e * step_z + 1] = im;
    }
}

static inline __attribute__((always_inline)) void NAME(complex_lanes)(
    const T *a, const T *b, T *c, const Offsets *o, long n, const int a_has,
    const int b_has)
{
    for (long i = 0; i < o->n_rows; ++i)
        for (long j = 0; j < o->n_columns; ++j) {
            const T *x = a + 2 * o->rows_a[i], *y = b + 2 * o->columns_b[j];
            T *z = c + 2 * (o->rows_c[i] + o->columns_c[j]);
            long e = 0; /* counts real numbers */
            for (; e + 4 * LANES <= 2 * n; e += 4 * LANES)
                NAME(complex_tile)(x + a_has * e, y + b_has * e, z + e, o, a_has, b_has, 4);
            for (; e + LANES <= 2 * n; e += LANES)
                NAME(complex_tile)(x + a_has * e, y + b_has * e, z + e, o, a_has, b_has, 1);
            NAME(complex_scalar)(
                x + a_has * e, y + b_has * e, z + e, o, n - e / 2, a_has, b_has, 1);
        }
}

/* A sum of products or, without b, of the numbers themselves: an infinite one times (1, 0)
   is not a number. */
static inline __attribute__((always_inline)) void NAME(complex_dot)(
    const T *a, const T *b, long n_terms, double *total, const int b_has, const int has_b)
{
    double re = 0, im = 0;
    while (n_terms > 0) {
        const long n = min(2 * n_terms, 4096);
        long k = 0;
        V real[2] = {0}, imaginary[2] = {0};
        for (; k + 2 * LANES <= n; k += 2 * LANES)
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                V x = *(const V *)(a + k + i * LANES);
                if (!has_b) {
                    real[i] += x;
                } else if (b_has) {
                    V y = *(const V *)(b + k + i * LANES);
                    real[i] += x * NAME(repeat)(y, 0);
                    imaginary[i] += x * NAME(repeat)(y, 1);
                } else {
                    real[i] += x * b[0];
                    imaginary[i] += x * b[1];
                }
            }
        V sum = (real[0] + real[1]) + NAME(turn)(imaginary[0] + imaginary[1]);
        for (int i = 0; i < LANES; i += 2)
            re += sum[i], im += sum[i + 1];
        for (; k < n; k += 2) {
            const T *y = b_has ? b + k : b;
            re += has_b ? a[k] * y[0] - a[k + 1] * y[1] : a[k];
            im += has_b ? a[k] * y[1] + a[k + 1] * y[0] : a[k + 1];
        }
        a += n, b += b_has ? n : 0, n_terms -= n / 2;
    }
    total[0] += re, total[1] += im;
}

static void NAME(complex_direct)(
    const T *a, const T *b, T *c, const Offsets *o, long n_rows)
{
    static long zero = 0;
    Offsets columns = *o; /* the rows are lanes */
    columns.n_rows = 1, columns.rows_a = columns.rows_c = &zero;
    NAME(complex_lanes)(a, b, c, &columns, n_rows, 1, 0);
}

/* Sums over the last index of the terms, along which an operand or both lie in runs; o
   has the other terms. For n entries of the batch, `steps` apart. */
static void NAME(dots)(
    const Problem *p, const T *a, const T *b, T *c, const Offsets *o, long n,
    const long *steps)
{
    const long *in_run = p->terms.strides[p->terms.rank - 1], length = count_last(&p->terms);
    const int is_short = o->n_terms == 1 && length < 4 * LANES;
    for (long i = 0; i < o->n_rows; ++i)
        for (long j = 0; j < o->n_columns; ++j) {
            const T *x = a + o->rows_a[i], *y = b + o->columns_b[j];
            T *z = c + o->rows_c[i] + o->columns_c[j];
            for (long e = 0; e < n; ++e) {
                if (is_short && in_run[0] && in_run[1])
                    *z = NAME(short_dot)(x + o->terms_a[0], y + o->terms_b[0], length, 1);
                else if (is_short && in_run[0])
                    *z = NAME(short_dot)(x + o->terms_a[0], y + o->terms_b[0], length, 0);
                else if (is_short)
                    *z = NAME(short_dot)(y + o->terms_b[0], x + o->terms_a[0], length, 0);
                else if (in_run[0] && in_run[1])
                    *z = (T)NAME(dot)(x, o->terms_a, y, o->terms_b, o->n_terms, length, 1);
                else if (in_run[0])
                    *z = (T)NAME(dot)(x, o->terms_a, y, o->terms_b, o->n_terms, length, 0);
                else
                    *z = (T)NAME(dot)(y, o->terms_b, x, o->terms_a, o->n_terms, length, 0);
                x += steps[0], y += steps[1], z += steps[2];
            }
        }
}

static void NAME(complex_dots)(
    const Problem *p, const T *a, const T *b, T *c, const Offsets *o, long n,
    const long *steps)
{
    const long *in_run = p->terms.strides[p->terms.rank - 1], length = count_last(&p->terms);
    for (long i = 0; i < o->n_rows; ++i)
        for (long j = 0; j < o->n_columns; ++j)
            for (long e = 0; e < n; ++e) {
                const long x = o->rows_a[i] + e * steps[0];
                const long y = o->columns_b[j] + e * steps[1];
                const long z = o->rows_c[i] + o->columns_c[j] + e * steps[2];
                double total[2] = {0, 0};
                for (long k = 0; k < o->n_terms; ++k) {
                    const T *left = a + 2 * (x + o->terms_a[k]);
                    const T *right = b ? b + 2 * (y + o->terms_b[k]) : NULL;
                    if (right == NULL)
                        NAME(complex_dot)(left, NULL, length, total, 0, 0);
                    else if (in_run[0] && in_run[1])
                        NAME(complex_dot)(left, right, length, total, 1, 1);
                    else if (in_run[0])
                        NAME(complex_dot)(left, right, length, total, 0, 1);
                    else
                        NAME(complex_dot)(right, left, length, total, 0, 1);
                }
                c[2 * z] = (T)total[0], c[2 * z + 1] = (T)total[1];
            }
}

/* Products by vectors of rows, which lie in runs in the result. Where they do not in the
   first operand, and that is small, they are copied so. */
static int NAME(by_rows)(const Problem *p, const Part *part, Offsets *o)
{
    const long size = p->is_complex ? 2 : 1, first = size * part->first_row;
    const long n_rows = part->n_rows, n_terms = o->n_terms, n_all = count(&p->terms);
    const T *copied = NULL;
    T *copy = NULL;
    Offsets of_copy = *o;
    if (p->is_copied) {
        of_copy.terms_a = malloc(n_terms * (sizeof(long) + n_rows * size * sizeof(T)));
        if (of_copy.terms_a == NULL)
            return -1;
        copy = (T *)(of_copy.terms_a + n_terms);
        for (long k = 0; k < n_terms; ++k)
            of_copy.terms_a[k] = k * n_rows;
    }
    Place at;
    start(&p->batch, part->first_batch, &at);
    for (long e = 0; e < part->n_batch; ++e, step(&p->batch, 1, &at)) {
        const T *a = (const T *)p->a + size * at.a, *b = (const T *)p->b + size * at.b;
        T *c = (T *)p->c + size * at.c + first;
        if (copy != NULL && a != copied) {
            for (long k = 0; k < n_terms; ++k)
                for (long i = 0; i < n_rows; ++i)
                    for (long x = 0; x < size; ++x)
                        copy[size * (k * n_rows + i) + x] =
                            a[size * (o->rows_a[i] + o->terms_a[k]) + x];
            copied = a;
        }
        a = copy != NULL ? copy : a + first;
        if (p->is_complex) {
            NAME(complex_direct)(a, b, c, &of_copy, n_rows);
            continue;
        }
        /* in blocks: the error grows with their number, not with that of the terms */
        for (long j = 0; j < o->n_columns; j += DIRECT_COLUMNS) {
            const long n = min(DIRECT_COLUMNS, o->n_columns - j);
            const long *columns_b = o->columns_b + j, *columns_c = o->columns_c + j;
            long block_b[DIRECT_COLUMNS], block_c[DIRECT_COLUMNS];
            if (o->n_columns > LISTED_COLUMNS) {
                offsets(&p->columns, part->first_column + j, n, 0, block_b);
                offsets(&p->columns, part->first_column + j, n, 1, block_c);
                columns_b = block_b, columns_c = block_c;
            }
            for (long k = 0; k < n_all; k += DIRECT_TERMS) {
                const long listed = k % n_terms; /* a multiple, if not all are listed */
                if (n_all > n_terms && listed == 0) {
                    o->n_terms = min(n_terms, n_all - k);
                    list_terms(&p->terms, k, o);
                }
                NAME(direct)(a, of_copy.terms_a + listed, b, o->terms_b + listed,
                             min(DIRECT_TERMS, n_all - k), columns_b, n, c, columns_c,
                             n_rows, k == 0);
            }
        }
    }
    if (copy != NULL)
        free(of_copy.terms_a);
    return 0;
}

#include "pairwise_tiles.h"

/* Many entries of the batch at once: n of its last index. */
static void NAME(along_batch)(
    const Problem *p, const T *a, const T *b, T *c, const Offsets *o, long n,
    const long *steps)
{
    const int a_has = steps[0] != 0, b_has = steps[1] != 0;
    if (p->method == LANES_OF_BATCH && p->is_complex) {
        if (a_has && b_has)
            NAME(complex_lanes)(a, b, c, o, n, 1, 1);
        else if (a_has)
            NAME(complex_lanes)(a, b, c, o, n, 1, 0);
        else
            NAME(complex_lanes)(a, b, c, o, n, 0, 1);
    } else if (p->method == LANES_OF_BATCH) {
        if (a_has && b_has)
            NAME(all_lanes)(p, a, b, c, o, n, 1, 1);
        else if (a_has)
            NAME(all_lanes)(p, a, b, c, o, n, 1, 0);
        else
            NAME(all_lanes)(p, a, b, c, o, n, 0, 1);
    } else if (p->is_complex) {
        for (long i = 0; i < o->n_rows; ++i)
            for (long j = 0; j < o->n_columns; ++j)
                NAME(complex_scalar)(
                    a + 2 * o->rows_a[i], b + 2 * o->columns_b[j],
                    c + 2 * (o->rows_c[i] + o->columns_c[j]), o, n, steps[0], steps[1],
                    steps[2]);
    } else {
        NAME(scalar)(p, a, b, c, o, n, steps[0], steps[1], steps[2]);
    }
}

/* The same, where results do not lie in runs: some at a time in runs, which are spread. */
static void NAME(spread)(
    const Problem *p, const T *a, const T *b, T *c, const Offsets *o, long n,
    const long *steps)
{
    enum { CHUNK = 256, WIDE = 4 };
    static long zero = 0, columns[WIDE] = {0, CHUNK, 2 * CHUNK, 3 * CHUNK};
    const long size = p->is_complex ? 2 : 1, in_run[3] = {steps[0], steps[1], 1};
    /* entries of the operands for a chunk, which are read for each row, stay in L2 */
    const long n_of_entry = size * o->n_terms * (o->n_rows + o->n_columns);
    const long most = BLOCK_ENTRIES / n_of_entry / 32 * 32;
    const long chunk = min(CHUNK, max(32, most));
    T run[2 * CHUNK * WIDE];
    Offsets one = *o;
    one.n_rows = 1, one.rows_c = &zero, one.columns_c = columns;
    for (long e0 = 0; e0 < n; e0 += chunk)
        for (long i = 0; i < o->n_rows; ++i)
            for (long j = 0; j < o->n_columns; j += WIDE) {
                const long m = min(chunk, n - e0);
                one.n_columns = min(WIDE, o->n_columns - j);
                one.rows_a = o->rows_a + i, one.columns_b = o->columns_b + j;
                NAME(along_batch)(p, a + size * e0 * steps[0], b + size * e0 * steps[1],
                                  run, &one, m, in_run);
                for (long k = 0; k < one.n_columns; ++k) {
                    T *to = c + size * (o->rows_c[i] + o->columns_c[j + k] + e0 * steps[2]);
                    const T *from = run + size * columns[k];
                    for (long e = 0; e < m; ++e)
                        for (long x = 0; x < size; ++x)
                            to[size * e * steps[2] + x] = from[size * e + x];
                }
            }
}

/* Rows, columns and terms of all entries of a part of the batch; of a part of its last
   index where many are computed at once. */
static int NAME(run)(const Problem *p, const Part *part)
{
    static const long none[3] = {0, 0, 0};
    const long size = p->is_complex ? 2 : 1;
    const T *a = p->a, *b = p->b;
    T *c = p->c;
    Offsets o;
    if (p->method == TILED) {
        NAME(tiled)(p, part);
        return 0;
    }
    if (p->method != PACKED && find_offsets(p, part, &o))
        return -1;
    Place at;
    int failed = 0;
    if (is_along_batch(p)) {
        Group outer = p->batch;
        const long *steps = outer.rank ? outer.strides[--outer.rank] : none;
        a += size * steps[0] * part->first_batch, b += size * steps[1] * part->first_batch;
        c += size * steps[2] * part->first_batch;
        const int is_run = p->method == SCALAR || steps[2] == 1;
        const Group terms = get_listed_terms(p);
        const long n_terms = count(&terms), n_listed = o.n_terms;
        for (long k = 0; k < n_terms; k += n_listed) {
            if (k) {
                o.n_terms = min(n_listed, n_terms - k), o.is_added = 1;
                list_terms(&terms, k, &o);
            }
            start(&outer, part->first_outer, &at);
            for (long e = part->n_outer; e > 0; --e, step(&outer, 1, &at))
                (is_run ? NAME(along_batch) : NAME(spread))(
                    p, a + size * at.a, b + size * at.b, c + size * at.c, &o,
                    part->n_batch, steps);
        }
        free(o.memory);
        return 0;
    }
    if (p->method == DIRECT) {
        failed = NAME(by_rows)(p, part, &o);
        free(o.memory);
        return failed;
    }
    start(&p->batch, part->first_batch, &at);
    if (p->method == PACKED) {
        for (long e = 0; e < part->n_batch && !failed; ++e, step(&p->batch, 1, &at))
            failed = NAME(packed)(
                p, part, a + size * at.a, b + size * at.b, c + size * at.c);
        return failed;
    }
    const int last = p->batch.rank - 1;
    const long *steps = last < 0 ? none : p->batch.strides[last];
    for (long e = 0, n; e < part->n_batch; e += n, step(&p->batch, n, &at)) {
        n = last < 0 ? 1 : min(p->batch.n[last] - at.at[last], part->n_batch - e);
        (p->is_complex ? NAME(complex_dots) : NAME(dots))(
            p, a + size * at.a, b + size * at.b, c + size * at.c, &o, n, steps);
    }
    free(o.memory);
    return failed;
}

#undef V
#undef LANES
#undef ROWS
#undef DIRECT_VECTORS
