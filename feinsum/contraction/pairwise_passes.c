/* Contractions in two passes: through sums of an operand, or through a copy of a small
   operand or of the result in the order of another array.

       abc,badecf->bea    first badecf->baec, then abc,baec->bea
       da,acd->ca         first da->ad, then ad,acd->ca: sums along runs of d
       bac->ca            first bac->ac, by vectors, then ac->ca, by tiles
*/

#include "pairwise_problem.h"

#include <limits.h>

/* Terms in a run of a sum over others, too, up to which vectors go along the runs first. */
#define MAX_SHORT_RUN 24

/* Entries of an operand from which on it may be summed first. */
#define MIN_LONE 1024

/* The indices with the strides of a compact copy of an array, whose indices are in the
   order that another array has them, the longest stride of that first. Those of the copy
   itself, between the array and it, are in `of_copy`. Returns the number of entries. */
static long order_like(const Index *indices, long n_indices, int array, int other,
                       Index *copied, Index *of_copy)
{
    long n_entries = 1;
    Group order = {.rank = 0};
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        /* what the other array lacks comes first, so that runs remain */
        const long place = x->is_in[other] ? x->strides[other] : LONG_MAX;
        const long strides[3] = {x->strides[array], k, place};
        copied[k] = *x;
        of_copy[k] = (Index){x->extent, {x->strides[array], 0, 0}, {x->is_in[array], 0,
                                                                    x->is_in[array]}};
        if (x->is_in[array] && x->extent > 1)
            insert_index(&order, x->extent, strides, 2);
    }
    for (int k = order.rank - 1; k >= 0; --k) {
        const long at = order.strides[k][1];
        copied[at].strides[array] = of_copy[at].strides[2] = n_entries;
        n_entries *= order.n[k];
    }
    return n_entries;
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

/* Sum over all indices but those of short runs, and then over these. */
static int sum_twice(int is_single, const Index *indices, long n_indices, int run,
                     const void *a, void *c, int n_threads)
{
    Index first[MAX_INDICES], second[MAX_INDICES];
    long n_entries = 1, n = 0;
    for (long k = n_indices - 1; k >= -1; --k) { /* the run is the last index */
        const Index *x = &indices[k < 0 ? run : n_indices - 1 - k];
        if (k >= 0 && (x == &indices[run] || !x->is_in[2]))
            continue;
        second[n++] = *x;
    }
    for (long k = n - 1; k >= 0; --k) {
        second[k].strides[0] = n_entries;
        n_entries *= second[k].extent;
    }
    memcpy(first, indices, n_indices * sizeof(Index));
    for (long k = 0, kept = 0; k < n_indices; ++k) {
        first[k].strides[2] = 0;
        if (k == run)
            first[k].is_in[2] = 1, first[k].strides[2] = 1;
        else if (first[k].is_in[2])
            first[k].strides[2] = second[kept++].strides[0];
    }
    char *sums = malloc(n_entries * (is_single ? 4 : 8));
    const int failed = sums == NULL ||
                       sum_strided(is_single, 0, first, n_indices, a, sums, n_threads) ||
                       sum_strided(is_single, 0, second, n, sums, c, n_threads);
    free(sums);
    return failed ? -1 : 0;
}

int sum_strided(int is_single, int is_complex, const Index *indices, long n_indices,
                const void *a, void *c, int n_threads)
{
    static const double one = 1;
    static const float single_one = 1;
    Index numbers[MAX_INDICES];
    long n = 0;
    int has_run = 0; /* of complex numbers to add up, by DOT */
    for (long k = 0; k < n_indices; ++k) {
        if (!indices[k].is_in[0])
            continue;
        numbers[n] = indices[k];
        numbers[n].is_in[1] = numbers[n].strides[1] = 0;
        has_run |= !numbers[n].is_in[2] && numbers[n].strides[0] == 1 &&
                   numbers[n].extent >= MIN_RUN_OF_DOT;
        ++n;
    }
    const int inner = find_short_run(numbers, n);
    if (!is_complex && inner >= 0)
        return sum_twice(is_single, numbers, n, inner, a, c, n_threads);
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

/* Contract a large operand into a result whose indices are in the order of the operand,
   and copy that: so vectors are read and written as they lie. */
int contract_turned(int is_single, int is_complex, const Index *indices, long n_indices,
                    const void *a, const void *b, void *c, int n_threads, int operand)
{
    const long entry_bytes = (is_single ? 4 : 8) * (is_complex ? 2 : 1);
    Index turned[MAX_INDICES], back[MAX_INDICES];
    const long n_entries = order_like(indices, n_indices, 2, operand, turned, back);
    for (long k = 0; k < n_indices; ++k) {
        const long stride = back[k].strides[0];
        back[k].strides[0] = back[k].strides[2], back[k].strides[2] = stride;
    }
    char *result = malloc(n_entries * entry_bytes);
    const int failed =
        result == NULL ||
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
    const int failed =
        copy == NULL ||
        sum_strided(is_single, is_complex, of_copy, n_indices, small ? b : a, copy, 1) ||
        contract_copying(is_single, is_complex, copied, n_indices, small ? a : copy,
                 small ? copy : b, c, n_threads, n_copies);
    free(copy);
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
