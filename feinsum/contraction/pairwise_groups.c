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

static long count_entries(const Index *indices, long n_indices, int array)
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
    const long n_results = count_entries(indices, n_indices, 2);
    for (int operand = 0; operand < 2; ++operand)
        if (find_across(indices, n_indices, operand) != NULL &&
            count_entries(indices, n_indices, operand) * MIN_SHARED_ENTRY <= n_results)
            return operand;
    return -1;
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
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        Group *group = x == row ? &p->rows : x == column ? &p->columns : &p->batch;
        if (x->extent > 1)
            insert_index(group, x->extent, x->strides, 2);
    }
    merge_indices(&p->batch);
    p->method = TILED, p->is_turned = 1;
    return 1;
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

/* Without a sum, lines of the index with the nearest neighbours in the result, of those
   that are long. */
void set_lines(const Index *indices, long n_indices, Problem *p)
{
    p->batch.rank = 0;
    for (long k = 0; k < n_indices; ++k)
        if (indices[k].extent > 1)
            insert_index(&p->batch, indices[k].extent, indices[k].strides, 2);
    merge_indices(&p->batch);
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
