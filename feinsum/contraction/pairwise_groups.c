/* Which group an index belongs to: batch, rows, columns or terms of the sum; and, without a
   sum, the index of the lines or the two of the tiles.

   For abk,kcb->bac, the rows are those of the operand with neighbours along the last index
   of the result: c of the second one. b is the batch, a are the columns, k the terms:

       batch b: for each entry,  rows c --+
                                          |  terms k
                                 columns a
*/

#include "pairwise_problem.h"

/* Rows of a run that are computed apart from other runs. */
#define MIN_RUN 8

/* Entries of the shorter side of a tile. */
#define MIN_TILE 4

/* An index behind those of a group that have longer strides in the array `by`. */
void insert_index(Group *group, long n, const long *strides, int by)
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
void merge_indices(Group *group)
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

int is_contiguous(const Group *group, int x)
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

/* Move an index of a group to its end. */
void move_to_end(Group *group, int k)
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

int has_sum(const Index *indices, long n_indices)
{
    for (long k = 0; k < n_indices; ++k)
        if (!indices[k].is_in[2] && indices[k].extent > 1)
            return 1;
    return 0;
}

/* The index with neighbours in an operand, if the operand also has that with neighbours in
   the result, which is another one; else NULL. */
static const Index *find_across(const Index *indices, long n_indices, int operand)
{
    const Index *column = find_nearest(indices, n_indices, 2);
    const Index *own = find_nearest(indices, n_indices, operand);
    return column != NULL && column->is_in[operand] && own != column ? own : NULL;
}

long count_entries_of(const Index *indices, long n_indices, int array)
{
    long n = 1;
    for (long k = 0; k < n_indices; ++k)
        n *= indices[k].is_in[array] ? indices[k].extent : 1;
    return n;
}

/* Without a sum, the operand that is small beside the result and lies across it; else -1.
   With a copy in the order of the result, vectors are read and written as they lie. */
int find_small_across(const Index *indices, long n_indices)
{
    const long n_results = count_entries_of(indices, n_indices, 2);
    for (int operand = 0; operand < 2; ++operand)
        if (find_across(indices, n_indices, operand) != NULL &&
            count_entries_of(indices, n_indices, operand) * MIN_SHARED_ENTRY <= n_results)
            return operand;
    return -1;
}

/* Move the last index of the batch, or one value of none, to another group. */
static void take_last(Group *batch, Group *group)
{
    static const long none[3] = {0, 0, 0};
    const int last = batch->rank - 1;
    group->rank = 0;
    insert_index(group, last < 0 ? 1 : batch->n[last],
                 last < 0 ? none : batch->strides[last], 2);
    batch->rank -= last >= 0;
}

/* Without a sum, the tiles of the index with neighbours in the result, and of another one
   that has them in an operand; otherwise there are none. */
int find_tiles(const Index *indices, long n_indices, Problem *p)
{
    const Index *column = find_nearest(indices, n_indices, 2), *row = NULL;
    for (int operand = 0; operand < 2; ++operand) {
        const Index *own = find_across(indices, n_indices, operand);
        row = own == NULL ? row : own;
    }
    if (row == NULL)
        return 0;
    for (long k = 0; k < n_indices; ++k)
        if (indices[k].extent > 1)
            insert_index(&indices[k] == row ? &p->rows : &p->batch, indices[k].extent,
                         indices[k].strides, 2);
    merge_indices(&p->batch);
    /* the column, and what was joined with it */
    int of_column = 0;
    for (int k = 1; k < p->batch.rank; ++k)
        if (labs(p->batch.strides[k - 1][2]) > labs(column->strides[2]))
            of_column = k;
    move_to_end(&p->batch, of_column);
    take_last(&p->batch, &p->columns);
    p->method = TILED, p->is_turned = 1;
    return 1;
}

int find_periodic(const Problem *p)
{
    const long *row = p->rows.strides[0], *column = p->columns.strides[0];
    const long length = p->columns.n[0];
    if (length < 2 || length > MAX_PERIOD || p->rows.n[0] < TILE || row[2] != length ||
        column[2] != 1)
        return -1;
    for (int x = 0; x < 2; ++x)
        if (row[x] == 0 && column[x] == 1 && row[!x] == length && column[!x] == 1)
            return x;
    return -1;
}

/* All indices in the order of the result, as the batch. */
static void order_by_result(const Index *indices, long n_indices, Problem *p)
{
    p->batch.rank = 0;
    for (long k = 0; k < n_indices; ++k)
        if (indices[k].extent > 1)
            insert_index(&p->batch, indices[k].extent, indices[k].strides, 2);
    merge_indices(&p->batch);
}

int set_periodic(const Index *indices, long n_indices, Problem *p)
{
    order_by_result(indices, n_indices, p);
    if (p->batch.rank >= 2) {
        take_last(&p->batch, &p->columns);
        take_last(&p->batch, &p->rows);
        p->method = TILED, p->is_turned = 0;
        if (find_periodic(p) >= 0)
            return 1;
    }
    p->batch.rank = p->rows.rank = p->columns.rank = 0;
    return 0;
}

/* Without a sum, lines of the index with the nearest neighbours in the result, of those
   that are long. */
void set_lines(const Index *indices, long n_indices, Problem *p)
{
    order_by_result(indices, n_indices, p);
    int long_line = p->batch.rank - 1;
    while (long_line >= 0 && p->batch.n[long_line] < MIN_TILE)
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
        insert_index(&p->batch, rows->n[k], rows->strides[k], 2);
    merge_indices(&p->batch);
    rows->n[0] = rows->n[last];
    memcpy(rows->strides[0], rows->strides[last], sizeof(rows->strides[0]));
    rows->rank = 1;
}

/* Whether the rows are indices of the second operand. Vectors go along them: they are
   those of the operand that has the index of the result with unit stride. */
int are_swapped(const Index *indices, long n_indices)
{
    int is_swapped = 0;
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        if (x->extent > 1 && x->is_in[1] && !x->is_in[0] && x->strides[2] == 1)
            is_swapped = 1;
    }
    return is_swapped;
}

/* Sort the indices into groups. */
void fill_groups(const Index *indices, long n_indices, int is_swapped, Problem *p)
{
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        const long strides[3] = {x->strides[is_swapped], x->strides[!is_swapped],
                                 x->strides[2]};
        if (x->extent == 1)
            continue;
        if (!x->is_in[2])
            insert_index(&p->terms, x->extent, strides, 0);
        else if (x->is_in[0] && x->is_in[1])
            insert_index(&p->batch, x->extent, strides, 2);
        else
            insert_index(x->is_in[is_swapped] ? &p->rows : &p->columns, x->extent,
                         strides, 2);
    }
    merge_indices(&p->batch);
    merge_indices(&p->rows);
    merge_indices(&p->columns);
    merge_indices(&p->terms);
    split_rows(p);
    keep(&p->rows, 0, 2);
    keep(&p->columns, 1, 2);
    keep(&p->terms, 0, 1);
}

/* The index with neighbours in memory; -1 if there is none. */
static int find_unit(const Group *group, int which)
{
    int k = group->rank - 1;
    while (k >= 0 && group->strides[k][which] != 1)
        --k;
    return k;
}

long find_period(const Group *group, int which)
{
    const int unit = find_unit(group, which);
    long period = unit >= 0;
    for (int k = unit + 1; unit >= 0 && k < group->rank; ++k)
        period *= group->n[k];
    return period;
}

/* Move an index to another place. */
static void move_index(Group *group, int from, int to)
{
    const int direction = from < to ? 1 : -1;
    const long n = group->n[from];
    long strides[3];
    memcpy(strides, group->strides[from], sizeof(strides));
    for (int k = from; k != to; k += direction) {
        group->n[k] = group->n[k + direction];
        memcpy(group->strides[k], group->strides[k + direction], sizeof(strides));
    }
    group->n[to] = n;
    memcpy(group->strides[to], strides, sizeof(strides));
}

void pair_terms(Group *terms)
{
    const int last = terms->rank - 1, other = find_unit(terms, 1);
    if (last > 1 && other >= 0 && other < last && terms->strides[last][0] == 1)
        move_index(terms, other, last - 1);
}

/* Cut an index in runs, which become the index behind it. Its last values, if they fill no
   run, are left to `rest`. */
static int cut_index(Problem *p, Group *group, int k, long run, Problem *rest,
                     long entry_bytes)
{
    const long left = group->n[k] % run, n_whole = group->n[k] - left;
    const long *own = group->strides[k];
    if (left) {
        const long at = (char *)group - (char *)p;
        *rest = *p;
        ((Group *)((char *)rest + at))->n[k] = left;
        const long first = n_whole * own[0] * entry_bytes;
        const long second = n_whole * own[1] * entry_bytes;
        if (group == &p->rows)
            rest->a = (const char *)p->a + first;
        else if (group == &p->columns)
            rest->b = (const char *)p->b + first;
        else
            rest->a = (const char *)p->a + first, rest->b = (const char *)p->b + second;
        if (group == &p->terms)
            rest->is_added = 1;
        else
            rest->c = (char *)p->c + second;
        group->n[k] = n_whole;
    }
    const long inner[3] = {own[0], own[1], own[2]};
    group->n[k] /= run;
    for (int x = 0; x < 3; ++x)
        group->strides[k][x] *= run;
    const int last = group->rank++;
    group->n[last] = run;
    memcpy(group->strides[last], inner, sizeof(inner));
    move_index(group, last, k + 1);
    return left > 0;
}

/* The length of runs of the last index: one that leaves no rest, if there is one. */
static long choose_run(long n, long most)
{
    static const long runs[] = {48, 32, 24, 16};
    for (int k = 0; k < 4; ++k)
        if (runs[k] <= most && n % runs[k] == 0)
            return runs[k];
    return most >= 24 ? 24 : 16;
}

/* Let lines of an index with neighbours in memory be close in a group.

   Rows a and b of A[b,k,a], with neighbours of the result along b, are packed in squares:

       b0: a0 a1 a2 ... a7                  a0: b0 b1 b2 ...
       b1: a0 a1 a2 ... a7        ->        a1: b0 b1 b2 ...
       ...                                  ...

   The group becomes (..., a / line, b / run, line of a, run of b): so few lines stay in
   the cache until all of their entries were read. If most_run is 0, the last index is that
   of the lines. */
static int order_group(Problem *p, Group *group, int which, long most_run, long line,
                       Problem *rest, long entry_bytes)
{
    const int last = group->rank - 1, unit = find_unit(group, which);
    if (unit < 0 || unit == last || group->rank + 2 > MAX_INDICES)
        return 0;
    if (most_run && group->n[last] > most_run) {
        const long run = choose_run(group->n[last], most_run);
        return cut_index(p, group, last, run, rest, entry_bytes) ||
               order_group(p, group, which, most_run, line, rest, entry_bytes);
    }
    const int place = most_run ? last - 1 : last;
    if (group->n[unit] < 2 * line || unit == place) {
        move_index(group, unit, place);
        return 0;
    }
    const int has_rest = cut_index(p, group, unit, line, rest, entry_bytes);
    move_index(group, unit + 1, place + 1);
    return has_rest;
}

int order_by_lines(Problem *p, Problem *rest, int entry_bytes)
{
    const long n_terms =
        count(&p->terms) * (p->method == SCALAR ? count(&p->batch) : 1);
    const long n_rows_all = count(&p->rows), n_columns = count(&p->columns);
    const long n_first = n_rows_all * n_terms, n_second = n_columns * n_terms;
    const long least = p->method == SCALAR ? 0 : n_rows_all * n_columns / 2;
    /* rows of a block, which are shared by the lines and the runs */
    const long n_rows = BLOCK_ENTRIES / choose_depth(n_terms, FAR_TERMS, 4);
    const long line = n_rows >= 16 * LINE_OF_ROWS ? 2 * LINE_OF_ROWS : LINE_OF_ROWS;
    if (n_first >= MIN_ORDERED && n_first >= least &&
        order_group(p, &p->rows, 0, n_rows / line, line, rest, entry_bytes))
        return 1;
    if (n_second < MIN_ORDERED || n_second < least)
        return 0;
    if (order_group(p, &p->columns, 0, 0, RUN_OF_COLUMNS, rest, entry_bytes))
        return 1;
    if (find_unit(&p->terms, 0) < 0)
        return n_second >= n_first &&
               order_group(p, &p->terms, 1, 0, n_terms, rest, entry_bytes);
    const long line_of_terms = p->method == SCALAR ? RUN_OF_TERMS : LINE_OF_ROWS;
    return p->method != DIRECT && order_group(p, &p->terms, 1, RUN_OF_TERMS, line_of_terms,
                                              rest, entry_bytes);
}
