/* Products of matrices in packed blocks, by register tiles. Included by pairwise_kernel.h,
   once for each type and length of vectors.

   For each term k, a tile multiplies ROWS entries of a strip of the first operand by
   COLUMNS entries of a strip of the second. A packed strip has its entries in that order:

       rows in memory             packed strip of four rows
       a0 | k0 k1 k2 ...          k0: a0 a1 a2 a3
       a1 | k0 k1 k2 ...    ->    k1: a0 a1 a2 a3
       a2 | k0 k1 k2 ...          k2: a0 a1 a2 a3
       a3 | k0 k1 k2 ...          ...
*/

/* The tile of sum_k a[k, rows] * b[k, columns], of the first vectors of rows and columns of
   two strips. Each vector of rows lies in a run in each column, from rows[0], rows[LANES],
   and so on. */
static inline __attribute__((always_inline)) void NAME(multiply)(
    long n_terms, const T *a, const T *b, T *c, const long *rows, const long *columns,
    const int write, const int n_vectors, const int n_columns)
{
    V sums[COLUMNS][VECTORS] = {0};
    for (long k = 0; k < n_terms; ++k, a += ROWS, b += COLUMNS) {
        V x[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < n_vectors; ++i)
            x[i] = *(const V *)(a + i * LANES);
#pragma GCC unroll 16
        for (int j = 0; j < n_columns; ++j)
#pragma GCC unroll 4
            for (int i = 0; i < n_vectors; ++i)
                sums[j][i] += x[i] * b[j];
    }
#pragma GCC unroll 16
    for (int j = 0; j < n_columns; ++j)
#pragma GCC unroll 4
        for (int i = 0; i < n_vectors; ++i) {
            V *to = (V *)(c + columns[j] + rows[i * LANES]);
            if (write == STREAM)
                STORE_PAST_CACHES(to, sums[j][i]);
            else
                *to = write == STORE ? sums[j][i] : *to + sums[j][i];
        }
}

/* The same for some of the columns: at the edge of a result, a third or two may do. */
static inline __attribute__((always_inline)) void NAME(multiply_some)(
    long n_terms, const T *a, const T *b, T *c, const long *rows, const long *columns,
    const int n_vectors, long n_columns)
{
    if (n_columns > 2 * COLUMNS / 3)
        NAME(multiply)(n_terms, a, b, c, rows, columns, STORE, n_vectors, COLUMNS);
    else if (n_columns > COLUMNS / 3)
        NAME(multiply)(n_terms, a, b, c, rows, columns, STORE, n_vectors, 2 * COLUMNS / 3);
    else
        NAME(multiply)(n_terms, a, b, c, rows, columns, STORE, n_vectors, COLUMNS / 3);
}

/* Add or store a part of a tile where the offsets of its rows and columns say. */
static inline void NAME(store)(
    const T *tile, T *c, const long *rows, long n_rows, const long *columns,
    long n_columns, int is_first)
{
    for (long i = 0, n; i < n_rows; i += n) {
        const int is_run = i + LANES <= n_rows && are_adjacent(rows + i, LANES);
        n = is_run ? LANES : 1;
        for (long j = 0; j < n_columns; ++j) {
            T *to = c + columns[j] + rows[i];
            const T *from = tile + j * ROWS + i;
            if (is_run)
                *(V *)to = is_first ? *(const V *)from : *(V *)to + *(const V *)from;
            else
                *to = is_first ? *from : *to + *from;
        }
    }
}

/* How a strip of rows lies in the result. */
static RowLayout NAME(find_layout)(const long *rows, long n_rows)
{
    if (n_rows < ROWS)
        return SCATTERED;
    int is_line = BYTES == 64 || are_adjacent(rows, ROWS);
    for (long i = 0; i < ROWS; i += LANES) {
        if (!are_adjacent(rows + i, LANES))
            return SCATTERED;
        is_line = is_line && (rows[i] - i) * (long)sizeof(T) % 64 == 0;
    }
    return is_line ? IN_LINES : IN_VECTORS;
}

/* One tile of a result. Where its vectors do not lie in runs, or are not full, it is
   computed in a buffer. */
static void NAME(multiply_tile)(
    long n_terms, const T *a, const T *b, T *c, const long *rows, long n_rows,
    const long *columns, long n_columns, int write, RowLayout layout)
{
    if (layout != SCATTERED && n_columns == COLUMNS) {
        if (write == STREAM && layout == IN_LINES) {
            NAME(multiply)(n_terms, a, b, c, rows, columns, STREAM, VECTORS, COLUMNS);
            return;
        }
        /* the entries are needed only after a sum of hundreds of terms */
        for (int j = 0; j < COLUMNS; ++j)
            for (int i = 0; i < VECTORS; ++i)
                __builtin_prefetch(c + rows[i * LANES] + columns[j], 1);
        if (write == ADD)
            NAME(multiply)(n_terms, a, b, c, rows, columns, ADD, VECTORS, COLUMNS);
        else
            NAME(multiply)(n_terms, a, b, c, rows, columns, STORE, VECTORS, COLUMNS);
        return;
    }
    T tile[COLUMNS * ROWS] __attribute__((aligned(64)));
    long rows_of_tile[ROWS], columns_of_tile[COLUMNS];
    for (int i = 0; i < ROWS; i += LANES)
        rows_of_tile[i] = i;
    for (int j = 0; j < COLUMNS; ++j)
        columns_of_tile[j] = j * ROWS;
#define TILE_OF(n)                                                                     \
    NAME(multiply_some)(n_terms, a, b, tile, rows_of_tile, columns_of_tile, n, n_columns)
    if (VECTORS == 3 && n_rows > 2 * LANES)
        TILE_OF(3);
    else if (n_rows > LANES)
        TILE_OF(2);
    else
        TILE_OF(1);
#undef TILE_OF
    NAME(store)(tile, c, rows, n_rows, columns, n_columns, write != ADD);
}

/* Turn four entries each of four lines into four columns. */
static inline __attribute__((always_inline)) void NAME(turn_four)(
    const T *const *lines, T *const *columns)
{
#ifdef HAS_SHUFFLE_VECTOR
    NAME(four) x[4], y[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
        x[k] = *(const NAME(four) *)lines[k];
#pragma GCC unroll 2
    for (int k = 0; k < 4; k += 2) {
        y[k] = __builtin_shufflevector(x[k], x[k + 1], 0, 4, 2, 6);
        y[k + 1] = __builtin_shufflevector(x[k], x[k + 1], 1, 5, 3, 7);
    }
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
        x[k] = __builtin_shufflevector(y[k], y[k + 2], 0, 1, 4, 5);
        x[k + 2] = __builtin_shufflevector(y[k], y[k + 2], 2, 3, 6, 7);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
        *(NAME(four) *)columns[k] = x[k];
#else
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 4; ++k)
            columns[i][k] = lines[k][i];
#endif
}

/* Whether four offsets that lie that far apart in a list are those of neighbours. */
static inline int NAME(are_neighbours)(const long *offsets, long period)
{
    return offsets[period] - offsets[0] == 1 && offsets[2 * period] - offsets[0] == 2 &&
           offsets[3 * period] - offsets[0] == 3;
}

/* Full strips of entries that lie in a run, all of them: of each term, the lines are read
   one behind the other. */
static inline __attribute__((always_inline)) void NAME(pack_runs)(
    const T *from, const long *terms, long n_terms, T *to, const int width,
    const int n_strips)
{
    for (long k = 0; k < n_terms; ++k)
#pragma GCC unroll 8
        for (int strip = 0; strip < n_strips; ++strip)
            memcpy(to + (strip * n_terms + k) * width, from + terms[k] + strip * width,
                   width * sizeof(T));
}

/* One full strip, of entries that lie in a run, or of terms that do, each that far behind
   the other in the list of terms, or of others. Lines of eight terms are read at once. */
static inline __attribute__((always_inline)) void NAME(pack_strip)(
    const T *from, const long *along, const long *terms, long n_terms, int is_run,
    int are_terms_run, long period, T *to, const int width)
{
    if (is_run) {
        NAME(pack_runs)(from + along[0], terms, n_terms, to, width, 1);
        return;
    }
    for (int r = 0, n; r < width; r += n) {
        n = width - r < 4 ? width - r : 4;
        long first = 0;
        if (n == 4 && are_terms_run) {
            const T *lines[4];
            for (int line = 0; line < 4; ++line)
                lines[line] = from + along[r + line] + terms[0];
            for (; first + 4 <= n_terms; first += 4) {
                T *y = to + first * width + r;
                T *columns[4] = {y, y + width, y + 2 * width, y + 3 * width};
                NAME(turn_four)(lines, columns);
                for (int line = 0; line < 4; ++line)
                    lines[line] += 4;
            }
        }
        for (; period == 0 && first < n_terms; ++first)
            for (int line = r; line < r + n; ++line)
                to[first * width + line] = from[along[line] + terms[first]];
        for (; first < n_terms; first += 2 * 4 * period)
            for (long k = first; k < min(first + period, n_terms); ++k)
                for (long m = k; m < min(k + 2 * 4 * period, n_terms); m += 4 * period) {
                    const T *x = from + terms[m];
                    T *y = to + m * width + r;
                    if (n == 4 && m + 3 * period < n_terms &&
                        NAME(are_neighbours)(terms + m, period)) {
                        const T *lines[4] = {x + along[r], x + along[r + 1],
                                             x + along[r + 2], x + along[r + 3]};
                        T *columns[4] = {y, y + period * width, y + 2 * period * width,
                                         y + 3 * period * width};
                        NAME(turn_four)(lines, columns);
                        continue;
                    }
                    for (long t = m; t < min(m + 4 * period, n_terms); t += period)
                        for (int line = r; line < r + n; ++line)
                            to[t * width + line] = from[along[line] + terms[t]];
                }
    }
}

/* Up to four entries of strips, and those that lie beside them in memory: eight times as
   many, each that far behind the other in the list. */
static inline __attribute__((always_inline)) void NAME(pack_lines)(
    const T *from, const long *along, long n_along, long period, long first, long n,
    const long *terms, long n_terms, T *to, const int width)
{
    int is_whole = n == 4 && first + 7 * period + 3 < n_along;
    T *columns[8];
    for (int c = 0; is_whole && c < 8; ++c) {
        const long r = first + c * period;
        columns[c] = to + r / width * width * n_terms + r % width;
        is_whole = r % width + 4 <= width;
        for (int i = 0; i < 4; ++i)
            is_whole = is_whole && along[r + i] - along[first + i] == c;
    }
    if (is_whole) {
        const T *starts[4];
        for (int i = 0; i < 4; ++i)
            starts[i] = from + along[first + i];
        for (long k = 0; k < n_terms; ++k) {
            const T *lines[4], *halves[4];
            for (int i = 0; i < 4; ++i) {
                lines[i] = starts[i] + terms[k];
                halves[i] = lines[i] + 4;
            }
            NAME(turn_four)(lines, columns);
            NAME(turn_four)(halves, columns + 4);
            for (int c = 0; c < 8; ++c)
                columns[c] += width;
        }
        return;
    }
    for (long c = first; c < min(first + 8 * period, n_along); c += period)
        for (long r = c; r < min(c + n, n_along); ++r) {
            T *column = to + r / width * width * n_terms + r % width;
            for (long k = 0; k < n_terms; ++k)
                column[k * width] = from[along[r] + terms[k]];
        }
}

/* Strips of `width` entries for each term: to[strip][k][width], the last one filled up
   with zeros. `along` are the offsets within a strip, `terms` those of the terms; the
   periods are the distances in these lists from one entry to its neighbour in memory, or
   0. */
static inline __attribute__((always_inline)) void NAME(pack)(
    const T *from, const long *along, long n_along, long period, const long *terms,
    long n_terms, long period_of_terms, T *to, const int width)
{
    const long n_full = n_along / width * width;
    if (n_full < n_along)
        memset(to + n_full * n_terms, 0, width * n_terms * sizeof(T));
    if (period > 1 && 4 * period <= n_along) {
        for (long i = 0; i < period; i += 4)
            for (long line = i; line < n_along; line += 8 * period)
                NAME(pack_lines)(from, along, n_along, period, line, min(4, period - i),
                                 terms, n_terms, to, width);
        return;
    }
    const int is_run = are_adjacent(along, n_along);
    const int are_terms_run = are_adjacent(terms, n_terms);
    long i = 0;
    for (long n; i < n_full; i += n, to += n * n_terms) {
        const int n_strips = RUN_BYTES / (width * sizeof(T));
        n = n_strips * width;
        if (i + n <= n_full && (is_run || are_adjacent(along + i, n))) {
            NAME(pack_runs)(from + along[i], terms, n_terms, to, width,
                            n_strips);
            continue;
        }
        n = width;
        NAME(pack_strip)(from, along + i, terms, n_terms,
                         is_run || are_adjacent(along + i, width), are_terms_run,
                         4 * period_of_terms <= n_terms ? period_of_terms : 0, to, width);
    }
    for (long k = 0; k < n_terms; ++k)
        for (long r = i; r < n_along; ++r)
            to[k * width + r - i] = from[along[r] + terms[k]];
}

static void NAME(pack_rows)(
    const Problem *p, const T *from, const long *along, long n_along, const long *terms,
    long n_terms, T *to)
{
    NAME(pack)(from, along, n_along, find_period(&p->rows, 0), terms, n_terms,
               find_period(&p->terms, 0), to, ROWS);
}

static void NAME(pack_columns)(
    const Problem *p, const T *from, const long *along, long n_along, const long *terms,
    long n_terms, T *to)
{
    NAME(pack)(from, along, n_along, find_period(&p->columns, 0), terms, n_terms,
               find_period(&p->terms, 1), to, COLUMNS);
}

/* Apply a function to the entries of packed strips, also to zeros that fill the last one:
   their products are not stored. */
static void NAME(apply)(const Affine *function, T *entries, long n)
{
    const T scale = (T)function->scale, shift = (T)function->shift;
    if (scale == 1 && shift == 0)
        return;
    for (long k = 0; k < n; ++k)
        entries[k] = scale * entries[k] + shift;
}

/* The same for complex numbers, with the real numbers that the 1m method multiplies
   (Van Zee and Smith 2017): x of the first operand becomes two rows and two terms,
   (re, im) times the real part of the second operand and (-im, re) times its imaginary
   part. Offsets count complex numbers, `to` real ones. */
static void NAME(pack_rows_1m)(
    const Problem *p, const T *from, const long *along, long n_along, const long *terms,
    long n_terms, T *to)
{
    (void)p;
    enum { WIDTH = ROWS / 2 };
    for (long i = 0; i < n_along; i += WIDTH, to += 2 * ROWS * n_terms) {
        const long n = min(WIDTH, n_along - i);
        if (n < WIDTH)
            memset(to, 0, 2 * ROWS * n_terms * sizeof(T));
        const int is_run = n == WIDTH && are_adjacent(along + i, WIDTH);
        for (long k = 0; is_run && k < n_terms; ++k) {
            const T *x = from + 2 * (along[i] + terms[k]);
            T *y = to + 2 * k * ROWS;
            for (int r = 0; r < ROWS; r += 2) {
                y[r] = x[r], y[r + 1] = x[r + 1];
                y[ROWS + r] = -x[r + 1], y[ROWS + r + 1] = x[r];
            }
        }
        for (long k0 = 0; !is_run && k0 < n_terms; k0 += TILE)
            for (long r = 0; r < n; ++r)
                for (long k = k0; k < min(k0 + TILE, n_terms); ++k) {
                    const T *x = from + 2 * (along[i + r] + terms[k]);
                    T *y = to + 2 * k * ROWS + 2 * r;
                    y[0] = x[0], y[1] = x[1];
                    y[ROWS] = -x[1], y[ROWS + 1] = x[0];
                }
    }
}

static void NAME(pack_columns_1m)(
    const Problem *p, const T *from, const long *along, long n_along, const long *terms,
    long n_terms, T *to)
{
    for (long i = 0; i < n_along; i += COLUMNS, to += 2 * COLUMNS * n_terms) {
        const long n = min(COLUMNS, n_along - i);
        if (n < COLUMNS)
            memset(to, 0, 2 * COLUMNS * n_terms * sizeof(T));
        for (long k0 = 0; k0 < n_terms; k0 += TILE)
            for (long r = 0; r < n; ++r)
                for (long k = k0; k < min(k0 + TILE, n_terms); ++k) {
                    const T *x = from + 2 * (along[i + r] + terms[k]);
                    to[2 * k * COLUMNS + r] = x[0];
                    to[(2 * k + 1) * COLUMNS + r] = x[1];
                }
    }
}

/* Rows of a block that stays in L2: whole lines of rows that are packed in squares, and
   more of these if there are few terms. */
static long NAME(choose_height)(const Problem *p, long n_terms)
{
    const long usual = BLOCK_ENTRIES / BLOCK_TERMS / ROWS * ROWS;
    const long most = min(MAX_BLOCK_ROWS, BLOCK_ENTRIES / n_terms);
    const long unit = LINE_OF_ROWS * find_period(&p->rows, 0);
    const long whole = unit ? most / unit * unit : 0;
    if (p->is_complex || unit <= LINE_OF_ROWS || whole == 0)
        return p->is_complex ? usual / 2 : usual;
    for (long n = whole; n > whole / 2; n -= unit)
        if (n % ROWS == 0)
            return n;
    return whole;
}

/* Some rows and columns of one entry of the batch, in blocks that fit the caches (Goto
   and van de Geijn 2008): a panel of the second operand stays in L3, a block of the
   first in L2, a strip of the panel in L1. Offsets are computed block by block. */
static int NAME(packed)(const Problem *p, const Part *part, const T *a, const T *b, T *c)
{
    const long scale = p->is_complex ? 2 : 1;
    const long n_terms = count(&p->terms);
    /* squares of four terms, or lines of terms that lie apart in the list */
    const long most = (find_period(&p->rows, 0) > 1 ? FAR_TERMS : BLOCK_TERMS) / scale;
    const long lines = LINE_OF_ROWS * find_period(&p->terms, 1);
    const int has_lines = lines > LINE_OF_ROWS && lines <= most;
    const long deep = choose_depth(n_terms, most, has_lines ? lines : 4);
    const long high = NAME(choose_height)(p, deep);
    /* columns that are needed for one block of rows only go no further than L2 */
    const int is_panel = part->n_rows <= high && n_terms <= deep;
    const long wide =
        (is_panel ? min(BLOCK_COLUMNS, PANEL_ENTRIES / deep + COLUMNS) : BLOCK_COLUMNS) /
        COLUMNS * COLUMNS;
    const long width_a = min(high, part->n_rows), width_b = min(wide, part->n_columns);
    const long depth = min(deep, n_terms);
    const long n_offsets = (1 + scale) * width_a + 2 * width_b + 2 * depth;
    const long n_a = (width_a * scale + ROWS) * depth * scale;
    const long n_b = (width_b + COLUMNS) * depth * scale;
    long *rows_a = scratch(n_offsets * sizeof(long) + (n_a + n_b) * sizeof(T) + 128);
    if (rows_a == NULL)
        return -1;
    long *rows_c = rows_a + width_a; /* of real numbers */
    long *columns_b = rows_c + scale * width_a, *columns_c = columns_b + width_b;
    long *terms_a = columns_c + width_b, *terms_b = terms_a + depth;
    T *pack_a = (T *)(((uintptr_t)(terms_b + depth) + 63) & ~(uintptr_t)63);
    T *pack_b = (T *)(((uintptr_t)(pack_a + n_a) + 63) & ~(uintptr_t)63);
    /* of a result that fits no cache, and is written once; the processor would otherwise
       read it first */
    const int may_stream = n_terms <= deep && !p->is_added && (uintptr_t)c % 64 == 0 &&
                           count_result(p) * scale * sizeof(T) >= STREAMED_BYTES;
    for (long j0 = 0; j0 < part->n_columns; j0 += wide) {
        long n = min(wide, part->n_columns - j0);
        offsets(&p->columns, part->first_column + j0, n, 0, columns_b);
        offsets(&p->columns, part->first_column + j0, n, 1, columns_c);
        for (long j = 0; scale == 2 && j < n; ++j)
            columns_c[j] *= 2;
        int are_lines = 1;
        for (long j = 0; j < n; ++j)
            are_lines = are_lines && columns_c[j] * (long)sizeof(T) % 64 == 0;
        for (long k0 = 0; k0 < n_terms; k0 += deep) {
            long k = min(deep, n_terms - k0), real_k = k * scale;
            offsets(&p->terms, k0, k, 0, terms_a);
            offsets(&p->terms, k0, k, 1, terms_b);
            (scale == 2 ? NAME(pack_columns_1m) : NAME(pack_columns))(
                p, b, columns_b, n, terms_b, k, pack_b);
            NAME(apply)(&p->functions[1], pack_b, round_up(n, COLUMNS) * real_k);
            const int write = k0 > 0 || p->is_added    ? ADD
                              : may_stream && are_lines ? STREAM
                                                        : STORE;
            for (long i0 = 0; i0 < part->n_rows; i0 += high) {
                long m = min(high, part->n_rows - i0), real_m = m * scale;
                offsets(&p->rows, part->first_row + i0, m, 0, rows_a);
                offsets(&p->rows, part->first_row + i0, m, 1, rows_c);
                for (long i = m - 1; scale == 2 && i >= 0; --i) {
                    rows_c[2 * i + 1] = 2 * rows_c[i] + 1;
                    rows_c[2 * i] = 2 * rows_c[i];
                }
                if (j0 == 0 || !is_panel) {
                    (scale == 2 ? NAME(pack_rows_1m) : NAME(pack_rows))(
                        p, a, rows_a, m, terms_a, k, pack_a);
                    NAME(apply)(&p->functions[0], pack_a, round_up(real_m, ROWS) * real_k);
                }
                RowLayout layouts[MAX_BLOCK_ROWS];
                for (long i = 0; i < real_m; i += ROWS)
                    layouts[i / ROWS] = NAME(find_layout)(rows_c + i, real_m - i);
                for (long j = 0; j < n; j += COLUMNS)
                    for (long i = 0; i < real_m; i += ROWS)
                        NAME(multiply_tile)(
                            real_k, pack_a + i * real_k, pack_b + j * real_k, c, rows_c + i,
                            min(ROWS, real_m - i), columns_c + j, min(COLUMNS, n - j),
                            write, layouts[i / ROWS]);
            }
        }
    }
    if (may_stream)
        FENCE();
    return 0;
}
