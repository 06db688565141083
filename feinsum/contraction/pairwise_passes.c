/* Contractions in two passes: through sums of an operand, or through a copy of a small
   operand or of the result, or of blocks of it, in the order of another array.

       abc,badecf->bea    first badecf->baec, then abc,baec->bea
       da,acd->ca         first da->ad, then ad,acd->ca: sums along runs of d
       bac->ca            first bac->ac, by vectors, then ac->ca, by tiles
       bik,bkj->ijb       some b at a time: products bij, then bij->ijb, by tiles
*/

#include "pairwise_problem.h"

#include <limits.h>

/* Terms in a run of a sum over others, too, up to which vectors go along the runs first. */
#define MAX_SHORT_RUN 24

/* Rows of a sum that are joined until they fill two vectors, and entries of a row that
   fills one. */
#define MAX_ROWS_AT_ONCE 16
#define MIN_ROW 8

/* Entries of an operand from which on it may be summed first. */
#define MIN_LONE 1024

/* Entries of the batch that share a line of the result, from which on blocks of the result
   are copied; and entries of a result that are. */
#define MIN_INNER_BATCH 3
#define MIN_BLOCKED 2048
/* Bytes of a block, which stays in L2, if it has whole lines then; bytes from which on it
   has not all rows or columns, and how many of these at least. */
#define BLOCK_BYTES (1 << 19)
#define MAX_BLOCK_BYTES (1 << 25)
#define MIN_OUTER 96

/* The indices with the strides of a compact copy of an array, in which an index comes
   before those with smaller places. Those of the copy itself, between the array and it, are
   in `of_copy`. Returns the number of entries. */
static long lay_out(const Index *indices, long n_indices, int array, const long *places,
                    Index *copied, Index *of_copy)
{
    long n_entries = 1;
    Group order = {.rank = 0};
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        const long place[3] = {k, 0, places[k]};
        of_copy[k] = (Index){x->extent, {x->strides[array], 0, 0}, {x->is_in[array], 0,
                                                                    x->is_in[array]}};
        if (x->is_in[array] && x->extent > 1)
            insert_index(&order, x->extent, place, 2);
        copied[k] = *x;
    }
    for (int k = order.rank - 1; k >= 0; --k) {
        const long at = order.strides[k][0];
        copied[at].strides[array] = of_copy[at].strides[2] = n_entries;
        n_entries *= order.n[k];
    }
    return n_entries;
}

/* The same in the order of another array; what that lacks comes first, so that runs
   remain. */
static long order_like(const Index *indices, long n_indices, int array, int other,
                       Index *copied, Index *of_copy)
{
    long places[MAX_INDICES] = {0};
    for (long k = 0; k < n_indices; ++k)
        places[k] = indices[k].is_in[other] ? indices[k].strides[other] : LONG_MAX;
    return lay_out(indices, n_indices, array, places, copied, of_copy);
}

/* Copy back, to the array. */
static void turn_back(Index *of_copy, long n_indices)
{
    for (long k = 0; k < n_indices; ++k) {
        const long stride = of_copy[k].strides[0];
        of_copy[k].strides[0] = of_copy[k].strides[2], of_copy[k].strides[2] = stride;
    }
}

/* An index of short runs that are summed, if others are summed, too, which are no runs:
   vectors go along the runs then, before these are summed. Else -1. */
static int find_short_run(const Index *indices, long n_indices)
{
    int run = -1;
    long n_others = 1;
    for (long k = 0; k < n_indices; ++k)
        if (!indices[k].is_in[2] && indices[k].strides[0] == 1 && indices[k].extent > 1)
            run = (int)k;
        else if (!indices[k].is_in[2])
            n_others *= indices[k].extent;
    if (run < 0 || indices[run].extent > MAX_SHORT_RUN || n_others < 8)
        return -1;
    for (long k = 0; k < n_indices; ++k) /* it continues the run */
        if (!indices[k].is_in[2] && indices[k].strides[0] == indices[run].extent)
            return -1;
    return run;
}

/* Of rows that are shorter than a vector and lie one behind the other, let some be summed
   apart: abc->c becomes ab'sc, rows s,c of which are summed first, where b has s times as
   many values as b'. Returns the index s, which is added, or -1. */
static int split_rows_of_sum(Index *indices, long *n_indices)
{
    long row = -1, summed = -1, n_at_once = MAX_ROWS_AT_ONCE, n_entries = 1;
    for (long k = 0; k < *n_indices; ++k) {
        n_entries *= indices[k].extent;
        if (indices[k].is_in[2] && indices[k].strides[0] == 1 && indices[k].extent > 1)
            row = k;
    }
    for (long k = 0; row >= 0 && k < *n_indices; ++k)
        if (!indices[k].is_in[2] && indices[k].strides[0] == indices[row].extent)
            summed = k;
    if (summed < 0 || indices[row].extent >= MIN_ROW || *n_indices == MAX_INDICES ||
        n_entries < MIN_LONE)
        return -1;
    const long n_rows = indices[summed].extent;
    while (n_at_once > 1 && (n_rows % n_at_once || n_rows < 4 * n_at_once))
        --n_at_once;
    if (n_at_once * indices[row].extent < 2 * MIN_ROW)
        return -1;
    indices[*n_indices] = indices[summed];
    indices[*n_indices].extent = n_at_once;
    indices[summed].extent /= n_at_once;
    indices[summed].strides[0] *= n_at_once;
    return (int)(*n_indices)++;
}

/* Sum in one pass, over numbers that each have an index of the operand. */
static int sum_once(int is_single, int is_complex, Index *numbers, long n, const void *a,
                    void *c, int n_threads)
{
    static const double one = 1;
    static const float single_one = 1;
    int has_run = 0; /* of complex numbers to add up, by DOT */
    for (long k = 0; k < n; ++k)
        has_run |= !numbers[k].is_in[2] && numbers[k].strides[0] == 1 &&
                   numbers[k].extent >= MIN_RUN_OF_DOT;
    if (is_complex && has_run)
        return contract_copying(is_single, 1, numbers, n, a, NULL, c, n_threads, 0);
    for (long k = 0; is_complex && k < n; ++k)
        for (int x = 0; x < 3; ++x)
            numbers[k].strides[x] *= 2;
    if (is_complex) /* pairs of numbers: an infinite one times (1, 0) is not a number */
        numbers[n++] = (Index){2, {1, 0, 1}, {1, 0, 1}};
    return contract_strided(is_single, 0, numbers, n, a,
                            is_single ? (const void *)&single_one : &one, c, n_threads);
}

/* Sum over all indices but one of the summed ones, and then over that. */
static int sum_twice(int is_single, Index *indices, long n_indices, int last, const void *a,
                     void *c, int n_threads)
{
    Index first[MAX_INDICES], second[MAX_INDICES];
    memcpy(first, indices, n_indices * sizeof(Index));
    first[last].is_in[2] = 1;
    const long n_entries = order_like(first, n_indices, 2, 0, first, second);
    turn_back(second, n_indices);
    second[last].is_in[2] = 0;
    long n_second = 0;
    for (long k = 0; k < n_indices; ++k)
        if (second[k].is_in[0])
            second[n_second++] = second[k];
    char *sums = malloc(n_entries * (is_single ? 4 : 8));
    if (sums == NULL)
        return sum_once(is_single, 0, indices, n_indices, a, c, n_threads);
    const int failed = sum_once(is_single, 0, first, n_indices, a, sums, n_threads) ||
                       sum_once(is_single, 0, second, n_second, sums, c, n_threads);
    free(sums);
    return failed ? -1 : 0;
}

int sum_strided(int is_single, int is_complex, const Index *indices, long n_indices,
                const void *a, void *c, int n_threads)
{
    Index numbers[MAX_INDICES];
    long n = 0;
    for (long k = 0; k < n_indices; ++k) {
        if (!indices[k].is_in[0])
            continue;
        numbers[n] = indices[k];
        numbers[n].is_in[1] = numbers[n].strides[1] = 0;
        ++n;
    }
    if (!is_complex) {
        const int run = find_short_run(numbers, n);
        const int last = run >= 0 ? run : split_rows_of_sum(numbers, &n);
        if (last >= 0)
            return sum_twice(is_single, numbers, n, last, a, c, n_threads);
    }
    return sum_once(is_single, is_complex, numbers, n, a, c, n_threads);
}

/* Contract a large operand into a result whose indices are in the order of the operand,
   and copy that: so vectors are read and written as they lie. */
int contract_turned(int is_single, int is_complex, const Index *indices, long n_indices,
                    const void *a, const void *b, void *c, int n_threads, int operand)
{
    const long entry_bytes = (is_single ? 4 : 8) * (is_complex ? 2 : 1);
    Index turned[MAX_INDICES], back[MAX_INDICES];
    const long n_entries = order_like(indices, n_indices, 2, operand, turned, back);
    turn_back(back, n_indices);
    char *result = malloc(n_entries * entry_bytes);
    if (result == NULL)
        return contract_copying(is_single, is_complex, indices, n_indices, a, b, c,
                                n_threads, 0);
    const int failed =
        contract_copying(is_single, is_complex, turned, n_indices, a, b, result, n_threads,
                         0) ||
        sum_strided(is_single, is_complex, back, n_indices, result, c, n_threads);
    free(result);
    return failed ? -1 : 0;
}

/* Whether the result has the indices of an operand in another order. */
int is_turned(const Index *indices, long n_indices, int operand)
{
    Index turned[MAX_INDICES], back[MAX_INDICES];
    order_like(indices, n_indices, 2, operand, turned, back);
    for (long k = 0; k < n_indices; ++k)
        if (indices[k].is_in[2] && indices[k].extent > 1 &&
            turned[k].strides[2] != indices[k].strides[2])
            return 1;
    return 0;
}

/* Whether the neighbours in a large operand, of a product that is no matrix, are none in
   the other one, which is small. */
int is_scattered(const Index *indices, long n_indices, int large)
{
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        if (x->is_in[large] && x->is_in[!large] && x->extent >= MIN_RUN_OF_DOT &&
            x->strides[large] == 1 && x->strides[!large] != 1)
            return 1;
    }
    return 0;
}

/* Contract with a copy of a small operand, whose indices are in the order of another array:
   da,acd->ca becomes ad,acd->ca, a batch of sums along runs. */
int contract_copied(int is_single, int is_complex, const Index *indices, long n_indices,
                    const void *a, const void *b, void *c, int n_threads, int small,
                    int other, int n_copies)
{
    const long entry_bytes = (is_single ? 4 : 8) * (is_complex ? 2 : 1);
    Index copied[MAX_INDICES], of_copy[MAX_INDICES];
    const long n_entries = order_like(indices, n_indices, small, other, copied, of_copy);
    char *copy = malloc(n_entries * entry_bytes);
    if (copy == NULL)
        return contract_copying(is_single, is_complex, indices, n_indices, a, b, c,
                                n_threads, 0);
    const int failed =
        sum_strided(is_single, is_complex, of_copy, n_indices, small ? b : a, copy,
                    n_threads) ||
        contract_copying(is_single, is_complex, copied, n_indices, small ? a : copy,
                         small ? copy : b, c, n_threads, n_copies);
    free(copy);
    return failed ? -1 : 0;
}

/* Whether an index of the batch has closer neighbours in the result than all rows and
   columns. */
static int is_inner_batch(const Index *indices, long n_indices, long k)
{
    const Index *own = &indices[k];
    int is_inner = own->is_in[0] && own->is_in[1] && own->is_in[2] && own->extent > 1;
    for (long m = 0; is_inner && m < n_indices; ++m) {
        const Index *x = &indices[m];
        if (x->is_in[2] && x->extent > 1 && !(x->is_in[0] && x->is_in[1]))
            is_inner = labs(own->strides[2]) < labs(x->strides[2]);
    }
    return is_inner;
}

int has_inner_batch(const Index *indices, long n_indices)
{
    long n_inner = 1, n_results = 1;
    for (long k = 0; k < n_indices; ++k) {
        n_inner *= is_inner_batch(indices, n_indices, k) ? indices[k].extent : 1;
        n_results *= indices[k].is_in[2] ? indices[k].extent : 1;
    }
    return n_inner >= MIN_INNER_BATCH && n_results > n_inner && n_results >= MIN_BLOCKED;
}

/* Compute the products of some entries of the batch at a time, in a block that has the
   batch outside, and copy it to the result, whose lines have the batch inside. If blocks
   are too large then, they have some values of the outermost index of the result. */
int contract_in_blocks(int is_single, int is_complex, const Index *indices, long n_indices,
                       const void *a, const void *b, void *c, int n_threads)
{
    const long entry_bytes = (is_single ? 4 : 8) * (is_complex ? 2 : 1);
    Index limited[MAX_INDICES], products[MAX_INDICES], back[MAX_INDICES];
    long places[MAX_INDICES] = {0}, cut = -1, outer = -1, n_results = 1;
    memcpy(limited, indices, n_indices * sizeof(Index));
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        const int is_inner = is_inner_batch(indices, n_indices, k);
        places[k] = is_inner ? LONG_MAX - 1 : x->strides[2];
        n_results *= x->is_in[2] ? x->extent : 1;
        if (is_inner && (cut < 0 || x->extent > indices[cut].extent))
            cut = k;
        if (!is_inner && x->is_in[2] && x->extent > 1 &&
            (outer < 0 || labs(x->strides[2]) > labs(indices[outer].strides[2])))
            outer = k;
    }
    places[cut] = LONG_MAX; /* outside of a block, of which the last one has fewer values */
    const long n_cut = indices[cut].extent, n_of_cut = n_results / n_cut;
    limited[cut].extent =
        min(n_cut, max(64 / entry_bytes, BLOCK_BYTES / entry_bytes / n_of_cut));
    const long n_outer = indices[outer].extent;
    const long n_of_outer = n_of_cut / n_outer * limited[cut].extent;
    const long least = indices[outer].is_in[0] && indices[outer].is_in[1] ? 1 : MIN_OUTER;
    limited[outer].extent =
        min(n_outer, max(least, MAX_BLOCK_BYTES / entry_bytes / n_of_outer));
    const long n_entries = lay_out(limited, n_indices, 2, places, products, back);
    turn_back(back, n_indices);
    char *block = malloc(n_entries * entry_bytes);
    if (block == NULL)
        return contract_copying(is_single, is_complex, indices, n_indices, a, b, c,
                                n_threads, 0);
    int failed = 0;
    for (long x = 0; x < n_outer; x += limited[outer].extent)
        for (long y = 0; !failed && y < n_cut; y += limited[cut].extent) {
            const long *of_outer = indices[outer].strides, *of_cut = indices[cut].strides;
            long offsets[3];
            for (int array = 0; array < 3; ++array)
                offsets[array] = (x * of_outer[array] + y * of_cut[array]) * entry_bytes;
            products[outer].extent = back[outer].extent =
                min(limited[outer].extent, n_outer - x);
            products[cut].extent = back[cut].extent = min(limited[cut].extent, n_cut - y);
            failed = contract_copying(is_single, is_complex, products, n_indices,
                                      (const char *)a + offsets[0],
                                      (const char *)b + offsets[1], block, n_threads, 0) ||
                     sum_strided(is_single, is_complex, back, n_indices, block,
                                 (char *)c + offsets[2], n_threads);
        }
    free(block);
    return failed ? -1 : 0;
}

/* The operand of which a sum over indices that no other array has is worth its own pass,
   as products are fewer then; else -1. */
int find_lone_sum(const Index *indices, long n_indices)
{
    long n_lone[2] = {1, 1}, n_entries[2] = {1, 1};
    for (long k = 0; k < n_indices; ++k)
        for (int x = 0; x < 2; ++x) {
            const Index *i = &indices[k];
            n_entries[x] *= i->is_in[x] ? i->extent : 1;
            n_lone[x] *= i->is_in[x] && !i->is_in[!x] && !i->is_in[2] ? i->extent : 1;
        }
    for (int x = 0; x < 2; ++x)
        if (n_lone[x] >= 4 && n_entries[x] >= MIN_LONE && n_entries[!x] > 1)
            return x;
    return -1;
}

/* Sum an operand over the indices that no other array has, and contract its sums. */
int contract_sums(int is_single, int is_complex, const Index *indices, long n_indices,
                  const void *a, const void *b, void *c, int n_threads, int operand)
{
    const long entry_bytes = (is_single ? 4 : 8) * (is_complex ? 2 : 1);
    Index of_sums[MAX_INDICES], summed[MAX_INDICES];
    long n_entries = 1, n = 0, n_summed = 0;
    for (long k = n_indices - 1; k >= 0; --k) {
        const Index *x = &indices[k];
        const int is_own = x->is_in[operand];
        const int is_lone = is_own && !x->is_in[!operand] && !x->is_in[2];
        const int is_kept = is_own && !is_lone;
        if (is_own)
            of_sums[n++] = (Index){x->extent, {x->strides[operand], 0,
                                               is_kept ? n_entries : 0},
                                   {1, 0, is_kept}};
        if (!is_lone) {
            summed[n_summed] = *x;
            if (is_kept)
                summed[n_summed].strides[operand] = n_entries;
            ++n_summed;
        }
        n_entries *= is_kept ? x->extent : 1;
    }
    char *sums = malloc(n_entries * entry_bytes);
    const int failed =
        sums == NULL ||
        sum_strided(is_single, is_complex, of_sums, n, operand ? b : a, sums, n_threads) ||
        contract_strided(is_single, is_complex, summed, n_summed, operand ? a : sums,
                         operand ? sums : b, c, n_threads);
    free(sums);
    return failed ? -1 : 0;
}
