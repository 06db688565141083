/* Products without a sum: in lines, or in tiles that turn rows to columns. Included by
   pairwise_kernel.h, once for each type and length of vectors.

   For ab,ba->ab, whose second operand lies across the result, a tile of TILE x TILE
   entries of it is read along a, turned, and multiplied along b:

       second operand        tile            result
       b |||||||||      a ---------       a ---------
         |||||||||  ->    ---------   *     ---------
             a                b                 b
*/

/* Products along one index; gcc makes vectors of the first three loops, also where the
   result is computed in place: then an operand and the result are the same entries. */
static inline __attribute__((always_inline)) void NAME(line)(
    const T *a, const T *b, T *c, const long *steps, long n, const long size)
{
    const long step_a = size * steps[0], step_b = size * steps[1];
    const long step_c = size * steps[2];
    const T x = n ? *a : 0, y = n ? *b : 0; /* parts may be empty */
    if (size == 2)
        for (long k = 0; k < n; ++k, a += step_a, b += step_b, c += step_c) {
            const T re = a[0] * b[0] - a[1] * b[1], im = a[0] * b[1] + a[1] * b[0];
            c[0] = re, c[1] = im;
        }
    else if (step_c == 1 && step_a == 1 && step_b == 1)
#pragma GCC ivdep
        for (long k = 0; k < n; ++k)
            c[k] = a[k] * b[k];
    else if (step_c == 1 && step_a == 1 && step_b == 0)
#pragma GCC ivdep
        for (long k = 0; k < n; ++k)
            c[k] = a[k] * y;
    else if (step_c == 1 && step_a == 0 && step_b == 1)
#pragma GCC ivdep
        for (long k = 0; k < n; ++k)
            c[k] = x * b[k];
    else
        for (long k = 0; k < n; ++k)
            c[k * step_c] = a[k * step_a] * b[k * step_b];
}

/* Turn one tile of an operand, row by row; b is NULL, or another one to multiply by. */
static inline __attribute__((always_inline)) void NAME(turn_tile)(
    const T *a, const T *b, const long *row, const long *column, T *tile, long n_rows,
    long n_columns, const long size)
{
    const long row_a = size * row[0], column_a = size * column[0];
    const long row_b = size * row[1], column_b = size * column[1];
    if (size == 1 && (b == NULL || row_b == 1) && row_a == 1 && n_rows == TILE)
        for (; n_columns >= 4; n_columns -= 4, a += 4 * column_a, tile += 4) {
            T products[4][TILE];
            for (long k = 0; b != NULL && k < 4; ++k, b += column_b)
                for (long i = 0; i < TILE; ++i)
                    products[k][i] = a[i + k * column_a] * b[i];
            for (long i = 0; i < TILE; i += 4) {
                const T *lines[4];
                for (long k = 0; k < 4; ++k)
                    lines[k] = b == NULL ? a + i + k * column_a : products[k] + i;
                T *columns[4];
                for (int k = 0; k < 4; ++k)
                    columns[k] = tile + (i + k) * TILE;
                NAME(turn_four)(lines, columns);
            }
        }
    for (long j = 0; j < n_columns; ++j, a += column_a, b += b == NULL ? 0 : column_b) {
        const T *x = a, *y = b;
        T *z = tile + size * j;
        for (long i = 0; i < n_rows; ++i, x += row_a, z += size * TILE)
            if (y == NULL) {
                z[0] = x[0];
                if (size == 2)
                    z[1] = x[1];
            } else if (size == 1) {
                z[0] = x[0] * y[0];
                y += row_b;
            } else {
                z[0] = x[0] * y[0] - x[1] * y[1];
                z[1] = x[0] * y[1] + x[1] * y[0];
                y += row_b;
            }
    }
}

/* Products without a sum. A tile of what lies along the rows, one operand or both, is
   turned, and then stored along the columns, which are neighbours in the result: so each
   cache line is loaded once. */
static inline __attribute__((always_inline)) void NAME(tiles)(
    const Problem *p, const Part *part, const long size)
{
    const long *row = p->rows.strides[0], *column = p->columns.strides[0];
    const long last_row = part->first_row + part->n_rows;
    const long last_column = part->first_column + part->n_columns;
    /* where a shorter index has the neighbours in the result, it is looped over first */
    const long n_inner = column[2] == 1 ? 1 : part->n_batch;
    const int is_a = lies_along(row, column, 0), is_b = lies_along(row, column, 1);
    /* the turned operand, and the strides of it and of the other one */
    const int x = is_a ? 0 : 1;
    const long row_of[2] = {row[x], row[!x]}, column_of[2] = {column[x], column[!x]};
    const long steps[3] = {1, is_a && is_b ? 0 : column[!x], column[2]};
    enum { LINE = 64 / sizeof(T) };
    const T one = 1;
    T tile[2 * TILE * TILE];
    Place outer, at;
    start(&p->batch, part->first_batch, &outer);
    for (long e = 0; e < part->n_batch; e += n_inner, step(&p->batch, 1, &outer))
        for (Corner t = first_corner(part); t.i < last_row; next_corner(&t, part)) {
                const long i0 = t.i, j0 = t.j;
                const long n_rows = min(TILE, last_row - i0);
                const long n_columns = min(TILE, last_column - j0);
                at = outer;
                for (long k = 0; k < n_inner; ++k, step(&p->batch, 1, &at)) {
                    const T *a = p->a, *b = p->b;
                    T *c = p->c;
                    a += size * (at.a + i0 * row[0] + j0 * column[0]);
                    b += size * (at.b + i0 * row[1] + j0 * column[1]);
                    c += size * (at.c + i0 * row[2] + j0 * column[2]);
                    const T *turned = is_a ? a : b, *other = is_a ? b : a;
                    const T *factor = is_a && is_b ? b : NULL;
                    /* the lines to be written, and those that the next tile reads: each is
                       on another page, where processors do not look ahead */
                    for (long i = 0; i < n_rows; ++i)
                        for (long j = 0; j < n_columns + LINE - 1; j += LINE)
                            __builtin_prefetch(
                                c + size * (i * row[2] + min(j, n_columns - 1) * column[2]),
                                1);
                    for (long j = 0; j < n_columns; ++j)
                        for (long i = TILE; i < 2 * TILE; i += LINE)
                            __builtin_prefetch(
                                turned + size * (i * row_of[0] + j * column_of[0]));
                    if (n_rows == TILE)
                        NAME(turn_tile)(turned, factor, row_of, column_of, tile, TILE,
                                        n_columns, size);
                    else
                        NAME(turn_tile)(turned, factor, row_of, column_of, tile, n_rows,
                                        n_columns, size);
                    /* an infinite number times (1, 0) is not a number */
                    for (long i = 0; size == 2 && factor && i < n_rows; ++i)
                        for (long j = 0; j < n_columns; ++j)
                            for (long x = 0; x < 2; ++x)
                                c[2 * (i * row[2] + j * column[2]) + x] =
                                    tile[2 * (i * TILE + j) + x];
                    for (long i = 0; (size == 1 || !factor) && i < n_rows; ++i)
                        NAME(line)(tile + size * i * TILE,
                                   factor ? &one : other + size * i * row_of[1],
                                   c + size * i * row[2], steps, n_columns, size);
                }
            }
}

/* The same for rows that lie one behind the other in an operand and the result, while the
   other operand has the same short row for all: some copies of it make long rows. */
static inline void NAME(periodic_lines)(
    const T *same, const T *other, T *c, const Part *part)
{
    enum { MOST = 8 * TILE };
    const long length = part->n_columns, n_copies = min(MOST / length, part->n_rows);
    const long steps[3] = {1, 1, 1}, n = part->n_rows * length;
    T row[MOST];
    for (long k = 0; k < n_copies; ++k)
        memcpy(row + k * length, same, length * sizeof(T));
    for (long k = 0; k < n; k += n_copies * length)
        NAME(line)(row, other + k, c + k, steps, min(n_copies * length, n - k), 1);
}

/* Products without a sum, whose neighbours in the result are neighbours in the operands:
   along the columns or, if these are few, along some rows. */
static inline __attribute__((always_inline)) void NAME(lines)(
    const Problem *p, const Part *part, const long size)
{
    const long *row = p->rows.strides[0], *column = p->columns.strides[0];
    const int is_short = part->n_columns < 8 && part->n_rows > part->n_columns;
    const int periodic = part->n_columns == p->columns.n[0] ? find_periodic(p) : -1;
    Place at;
    start(&p->batch, part->first_batch, &at);
    for (long e = 0; e < part->n_batch; ++e, step(&p->batch, 1, &at)) {
        const T *a = p->a, *b = p->b;
        T *c = p->c;
        a += size * (at.a + part->first_row * row[0] + part->first_column * column[0]);
        b += size * (at.b + part->first_row * row[1] + part->first_column * column[1]);
        c += size * (at.c + part->first_row * row[2] + part->first_column * column[2]);
        if (periodic >= 0 && size == 1) {
            NAME(periodic_lines)(periodic ? b : a, periodic ? a : b, c, part);
            continue;
        }
        if (!is_short)
            for (long i = 0; i < part->n_rows; ++i)
                NAME(line)(a + size * i * row[0], b + size * i * row[1],
                           c + size * i * row[2], column, part->n_columns, size);
        for (long i = 0; is_short && i < part->n_rows; i += 4 * TILE)
            for (long j = 0; j < part->n_columns; ++j)
                NAME(line)(a + size * (i * row[0] + j * column[0]),
                           b + size * (i * row[1] + j * column[1]),
                           c + size * (i * row[2] + j * column[2]), row,
                           min(4 * TILE, part->n_rows - i), size);
    }
}

static void NAME(tiled)(const Problem *p, const Part *part)
{
    if (!p->is_turned && p->is_complex)
        NAME(lines)(p, part, 2);
    else if (!p->is_turned)
        NAME(lines)(p, part, 1);
    else if (p->is_complex)
        NAME(tiles)(p, part, 2);
    else
        NAME(tiles)(p, part, 1);
}
