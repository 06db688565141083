/* A contraction of two operands of any ranks, without a copy of a large one.

   The indices form four groups: the batch, which both operands and the result have; the
   rows, of the first operand and the result; the columns, of the second and the result;
   and the terms of the sum, of both operands alone. With a vector of offsets for each
   group and array, entry (row, term) of the first operand lies at rows[row] +
   terms[term]: any contraction is a batch of products of matrices whose entries lie
   anywhere (the block-scatter layout of Matthews 2018, section 4). So packing, which a
   fast product of matrices does anyway, reads by offsets, and tiles are stored by them.

   pairwise_groups.c sorts the indices; this file chooses the method by the strides;
   pairwise_run.c has the loops. pairwise_passes.c has what two passes compute faster: an
   operand is summed first, or a small operand or the result is copied where no order of
   the loops has vectors otherwise.

   All know strides and pointers; arrays of Python are those of einsum.c.
*/

#include "pairwise_problem.h"

#include <stdlib.h>

/* Sums that threads share: terms of each part; the largest number of parts, which one
   thread adds up, and of results; rows or columns from which on threads share these, unless
   there are so many times more terms. */
#define MIN_SHARE 512
#define MAX_PARTS 32
#define MAX_SHARED (1 << 17)
#define SHARED_ROWS 128
#define LONG_SUM 64

/* Entries of a batch that are worth a vector, with a sum and without one. */
#define MIN_LANES(n_terms) ((n_terms) > 1 ? 4 : 8)

/* Results of an entry of the batch up to which lanes of it are faster where they lie in
   runs in one operand, or in both: packing would read the lines of each again and again. */
#define MAX_LANES_OF_ONE 4
#define MAX_LANES_OF_BOTH 1024

/* Multiply-adds of a product in a batch up to which lanes of the batch are faster, even
   if an operand has to be copied for them. */
#define MAX_SMALL_PRODUCT 128
/* Terms of larger ones up to which that holds: tiles would be stored entry by entry. */
#define FEW_TERMS 8

/* Rows of a register tile below which it is mostly empty. */
#define MIN_PACKED_ROWS 8

/* Entries of the first operand up to which packing them takes longer than it saves: so
   they stay in L2, if their columns are not far apart, and the result is not written past
   the caches; and fewer, where they are copied to lie in runs. Measured on Sapphire
   Rapids, with vectors of 64 and 32 bytes. */
#define MAX_DIRECT 32768
#define MAX_COPIED 4096

/* Terms in runs up to which dot products are worth a copy of an operand that has this share
   of the entries of the other one at most: it joins the runs. */
#define MAX_COPIED_RUN 16
#define COPIED_SHARE 16

/* Terms of sums from which on a result may be written twice, for vectors of it. */
#define MIN_TURNED 2

/* Whether the last index of the batch has all entries of the result, and those of the
   operands that have it, one behind the other. */
static int has_lanes(const Group *batch, long n_terms)
{
    if (batch->rank == 0)
        return 0;
    const long *strides = batch->strides[batch->rank - 1];
    const int is_unit = (strides[0] == 1 || strides[0] == 0) &&
                        (strides[1] == 1 || strides[1] == 0) && strides[2] == 1 &&
                        (strides[0] || strides[1]); /* not both are broadcast */
    return is_unit && batch->n[batch->rank - 1] >= MIN_LANES(n_terms);
}

/* Entries from the first one of a group to the last. */
static long find_span(const Group *group, int operand)
{
    long span = 0;
    for (int k = 0; k < group->rank; ++k)
        span += (group->n[k] - 1) * labs(group->strides[k][operand]);
    return span;
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
static int find_lanes(Group *batch, long n_products, long n_terms)
{
    const int last = batch->rank - 1;
    if (n_terms < 4 || n_terms > 4096 || n_products > MAX_LANES_OF_BOTH)
        return 0;
    for (int k = last; k >= 0; --k) {
        const long *own = batch->strides[k];
        if (batch->n[k] < 16 || (own[0] & ~1L) || (own[1] & ~1L) || !(own[0] | own[1]))
            continue;
        if (n_products > MAX_LANES_OF_ONE && !(own[0] & own[1]))
            continue;
        move_to_end(batch, k);
        return 1;
    }
    return 0;
}

/* Sums of products of entries whose neighbours in both operands are none in the result. */
static int has_lanes_across(const Problem *p)
{
    const Group *batch = &p->batch;
    int has = count(&p->rows) == 1 && count(&p->columns) == 1;
    for (int k = 0; has && k < batch->rank; ++k) {
        const long *strides = batch->strides[k];
        if (strides[0] == 1 && strides[1] == 1 && strides[2] != 1 && batch->n[k] >= 4)
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
    /* long sums in single precision are added up in blocks */
    if (has_lanes(&p->batch, n_terms) && (n_terms <= 4096 || !is_single) &&
        (n_terms <= FEW_TERMS || n_rows == 1 || n_columns == 1 ||
         n_rows * n_columns <= 4096))
        return LANES_OF_BATCH;
    /* for few of each, preparing a vector takes longer than the products */
    if (n_terms == 1 && (n_rows == 1 || n_columns == 1) && n_products < 16)
        return SCALAR;
    const int run = find_runs(&p->terms);
    if (run >= 0 && p->terms.n[run] >= MIN_RUN_OF_DOT &&
        (n_columns <= 2 || n_rows <= 2 ||
         (n_rows <= 8 && n_columns <= 8 && p->terms.n[run] >= 64))) {
        move_to_end(&p->terms, run);
        return DOT;
    }
    const int are_rows = is_contiguous(&p->rows, 0);
    const int is_small = n_rows * n_terms <= MAX_COPIED && n_columns >= 8;
    const int is_streamed = n_rows * n_columns * (is_single ? 4 : 8) >= STREAMED_BYTES;
    const int is_close = are_rows && find_span(&p->terms, 0) <= 2 * MAX_DIRECT;
    const int is_in_cache =
        n_rows * n_terms <= (is_close && !is_streamed ? MAX_DIRECT : MAX_COPIED);
    /* rows of less than a vector */
    const int is_narrow = (p->is_complex ? 2 : 1) * n_rows < (is_single ? 4 : 2);
    /* packing reads ahead more where columns of a large operand lie across its lines */
    const int is_across =
        find_period(&p->columns, 0) > 1 && n_columns * n_terms >= 2 * MIN_ORDERED;
    if (!is_across && !is_narrow && is_contiguous(&p->rows, 1) && (are_rows || is_small) &&
        (n_terms <= DIRECT_TERMS || !is_single || !p->is_complex) &&
        (n_columns <= 4 || is_in_cache || n_terms <= 4 ||
         (n_rows <= 8 && n_columns <= 64)))
        return DIRECT;
    if (find_lanes(&p->batch, n_rows * n_columns, n_terms))
        return LANES_OF_BATCH;
    if (p->is_complex && (n_rows <= 2 || n_columns <= 2 || n_terms == 1))
        return SCALAR;
    /* a register tile would be all but empty */
    return n_products <= 64 || n_rows * n_columns <= 4 ? SCALAR : PACKED;
}

static void swap_strides(Group *group)
{
    for (int k = 0; k < group->rank; ++k) {
        const long stride = group->strides[k][0];
        group->strides[k][0] = group->strides[k][1], group->strides[k][1] = stride;
    }
}

/* Let the rows, which fill the vectors of a register tile, be the columns. */
static void swap_sides(Problem *p)
{
    const Group rows = p->rows;
    const void *a = p->a;
    const Affine function = p->functions[0];
    p->rows = p->columns, p->columns = rows;
    p->a = p->b, p->b = a;
    p->functions[0] = p->functions[1], p->functions[1] = function;
    swap_strides(&p->batch);
    swap_strides(&p->terms);
}

/* Loop over the results of dot products in the order of an operand that is read once: its
   rows, or columns, become entries of the batch. */
static void loop_in_order(Problem *p)
{
    const int is_first = count(&p->columns) == 1;
    const Group *own = is_first ? &p->rows : &p->columns;
    Group batch = {.rank = 0};
    for (int k = 0; k < p->batch.rank; ++k)
        insert_index(&batch, p->batch.n[k], p->batch.strides[k], !is_first);
    for (int k = 0; k < own->rank; ++k) {
        const long stride = own->strides[k][0];
        const long strides[3] = {is_first ? stride : 0, is_first ? 0 : stride,
                                 own->strides[k][1]};
        insert_index(&batch, own->n[k], strides, !is_first);
    }
    merge_indices(&batch);
    p->batch = batch;
    p->rows.rank = p->columns.rank = 0;
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
    const long n_columns = count(&p->columns), longer = max(n_rows, n_columns);
    return n_threads > 1 && p->terms.rank > 0 && p->method != LANES_OF_BATCH &&
           p->batch.rank < MAX_INDICES && n_batch < 2 * n_threads &&
           (longer < SHARED_ROWS || LONG_SUM * longer <= count(&p->terms)) &&
           n_batch * n_rows * n_columns <= MAX_SHARED &&
           count(&p->terms) >= 2 * MIN_SHARE &&
           p->terms.n[find_longest(&p->terms)] >= 8 * n_threads &&
           estimate_ns(p) > 2 * PER_THREAD_NS && is_compact(p);
}

/* Run a problem, with the indices of large operands in the order of their lines. */
static int run_by_lines(int length, int is_single, Problem *p, int n_threads)
{
    /* a batch of short sums has no such operand */
    const long n_batch = p->method == SCALAR ? count(&p->batch) : 1;
    const long n_entries =
        n_batch * (count(&p->rows) + count(&p->columns)) * count(&p->terms);
    const int may_order =
        p->method == PACKED || p->method == DIRECT || p->method == SCALAR;
    if (p->is_complex || !may_order || n_entries < MIN_ORDERED)
        return run_problem(length, is_single, p, n_threads);
    Problem *rest = malloc(sizeof(Problem));
    if (rest == NULL)
        return -1;
    const int has_rest = order_by_lines(p, rest, is_single ? 4 : 8);
    const int failed = has_rest ? run_by_lines(length, is_single, p, n_threads) ||
                                      run_by_lines(length, is_single, rest, n_threads)
                                : run_problem(length, is_single, p, n_threads);
    free(rest);
    return failed ? -1 : 0;
}

/* The parts of an index of the terms, with few values that are in none of them. */
static long count_parts(long n_values, long n_terms, int n_threads)
{
    const long most = min(min(4 * n_threads, MAX_PARTS), n_terms / MIN_SHARE);
    long best = most;
    for (long n = most; n >= n_threads; --n)
        if (n_values % n < n_values % best)
            best = n;
    return best;
}

/* Sums by several threads: a batch of parts of the longest index of the terms, each with
   results of its own, which are added up in double precision. */
static int sum_in_parts(int length, const Problem *p, int is_single, int n_threads)
{
    const int split = find_longest(&p->terms);
    const long n_terms = p->terms.n[split], *steps = p->terms.strides[split];
    const long n_parts = count_parts(n_terms, count(&p->terms), n_threads);
    const long n = n_terms / n_parts, rest = n_terms - n * n_parts;
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
    Problem ordered = part;
    int failed = run_by_lines(length, is_single, &ordered, n_threads);
    if (rest && !failed) {
        part.a = (const char *)p->a + n * n_parts * steps[0] * n_numbers * (long)n_bytes;
        part.b = (const char *)p->b + n * n_parts * steps[1] * n_numbers * (long)n_bytes;
        part.c = parts + n_parts * n_results * n_bytes;
        part.terms.n[split] = rest;
        --part.batch.rank;
        failed = run_by_lines(length, is_single, &part, 1);
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

/* A problem without indices; NULL if there is no memory. */
static Problem *make_problem(int is_complex, const void *a, const void *b, void *c)
{
    Problem *p = malloc(sizeof(Problem));
    if (p == NULL)
        return NULL;
    p->is_complex = is_complex;
    p->is_added = 0;
    p->batch.rank = p->rows.rank = p->columns.rank = p->terms.rank = 0;
    p->a = a, p->b = b, p->c = c;
    p->functions[0] = p->functions[1] = (Affine){1, 0};
    return p;
}

int contract_strided(int is_single, int is_complex, const Index *indices, long n_indices,
                     const void *a, const void *b, void *c, int n_threads)
{
    const int operand = find_lone_sum(indices, n_indices);
    if (operand >= 0)
        return contract_sums(is_single, is_complex, indices, n_indices, a, b, c, n_threads,
                             operand);
    return contract_copying(is_single, is_complex, indices, n_indices, a, b, c, n_threads,
                            2);
}

/* The length of vectors that a method fills. */
static int choose_length(const Problem *p, int is_single)
{
    int length = get_longest_vector();
    if (p->method == DIRECT || p->method == LANES_OF_BATCH || p->method == DOT) {
        const long n = count_last(p->method == DIRECT           ? &p->rows
                                  : p->method == LANES_OF_BATCH ? &p->batch
                                                                : &p->terms);
        /* a long vector that is not filled is slower than a short one */
        const long n_numbers = p->is_complex ? 2 * n : n;
        /* of a short sum, the lanes of long vectors take longer to add up than to fill */
        if (p->method == DOT && length > 1 && count(&p->terms) < (is_single ? 64 : 32))
            length = 1;
        while (length > 0 && n_numbers < (is_single ? 4 : 2) << length)
            --length;
    }
    /* gcc 12 permutes vectors of 64 bytes wrongly */
    return p->is_complex && p->method != PACKED && length > 1 ? 1 : length;
}

/* Run a problem whose method is chosen; threads share the terms of few long sums. */
static int run_with_sums(Problem *p, int is_single, int n_threads)
{
    const int length = choose_length(p, is_single);
    return is_shared_sum(p, n_threads) ? sum_in_parts(length, p, is_single, n_threads)
                                       : run_by_lines(length, is_single, p, n_threads);
}

/* Of a batch of small products, the operand that has its entries across those of the result
   and of the other operand; else -1. */
static int find_across_batch(const Problem *p, const Index *indices, long n_indices)
{
    const long n_products = count(&p->rows) * count(&p->columns) * count(&p->terms);
    const int is_small = n_products <= MAX_SMALL_PRODUCT || count(&p->terms) <= FEW_TERMS;
    if (p->method != PACKED || p->is_complex || !is_small)
        return -1;
    for (long k = 0; k < n_indices; ++k) {
        const Index *x = &indices[k];
        if (x->is_in[0] && x->is_in[1] && x->strides[2] == 1 && x->extent >= TILE &&
            (x->strides[0] == 1) != (x->strides[1] == 1))
            return x->strides[0] == 1;
    }
    return -1;
}

int contract_copying(int is_single, int is_complex, const Index *indices, long n_indices,
                     const void *a, const void *b, void *c, int n_threads, int n_copies)
{
    Problem *p = make_problem(is_complex, a, b, c);
    if (p == NULL)
        return -1;
    const int is_by_entry = !has_sum(indices, n_indices);
    const int small = is_by_entry && n_copies ? find_small_across(indices, n_indices) : -1;
    if (small >= 0) {
        free(p);
        return contract_copied(is_single, is_complex, indices, n_indices, a, b, c,
                               n_threads, small, 2, n_copies - 1);
    }
    if (is_by_entry &&
        (find_tiles(indices, n_indices, p) ||
         (!is_complex && set_periodic(indices, n_indices, p)))) {
        const int failed = run_problem(get_longest_vector(), is_single, p, n_threads);
        free(p);
        return failed;
    }
    const int is_swapped = are_swapped(indices, n_indices);
    if (is_swapped)
        p->a = b, p->b = a;
    fill_groups(indices, n_indices, is_swapped, p);
    p->method = choose_method(p, is_single);
    /* register tiles and lanes of a batch are for sums */
    const int is_for_sums =
        !is_complex && (p->method == LANES_OF_BATCH || p->method == PACKED);
    if ((p->method != LANES_OF_BATCH || !is_complex) && p->method != DOT &&
        count(&p->terms) == 1 &&
        (count(&p->rows) == 1 || count(&p->columns) == 1 || is_for_sums)) {
        p->a = a, p->b = b;
        set_lines(indices, n_indices, p);
    }
    const int across = n_copies > 1 ? find_across_batch(p, indices, n_indices) : -1;
    if (across >= 0) {
        free(p);
        return contract_copied(is_single, is_complex, indices, n_indices, a, b, c,
                               n_threads, across, 2, 1);
    }
    const int is_vector = (count(&p->rows) == 1) != (count(&p->columns) == 1);
    const int large = is_swapped == (count(&p->columns) == 1);
    if (n_copies > 0 && (p->method == PACKED || p->method == SCALAR) &&
        count(&p->terms) >= MIN_TURNED && (is_vector || has_lanes_across(p)) &&
        (count(&p->terms) >= 4 || is_turned(indices, n_indices, large))) {
        const int is_copied = n_copies > 1 && is_scattered(indices, n_indices, large) &&
                              count(&p->rows) + count(&p->columns) > MIN_SHARED_ENTRY;
        free(p);
        return is_copied ? contract_copied(is_single, is_complex, indices, n_indices, a, b,
                                           c, n_threads, !large, large, 1)
                         : contract_turned(is_single, is_complex, indices, n_indices, a, b,
                                           c, n_threads, large);
    }
    if (n_copies > 1 && p->method == DOT && p->terms.rank > 1 &&
        count_last(&p->terms) < MAX_COPIED_RUN) {
        const long n_first = count_entries_of(indices, n_indices, 0);
        const long n_second = count_entries_of(indices, n_indices, 1);
        const int small_operand = n_second < n_first;
        if (COPIED_SHARE * min(n_first, n_second) <= max(n_first, n_second)) {
            free(p);
            return contract_copied(is_single, is_complex, indices, n_indices, a, b, c,
                                   n_threads, small_operand, !small_operand, 1);
        }
    }
    if (n_copies > 0 && p->method == PACKED && has_inner_batch(indices, n_indices)) {
        free(p);
        return contract_in_blocks(is_single, is_complex, indices, n_indices, a, b, c,
                                  n_threads);
    }
    if (p->method == DOT && (count(&p->rows) == 1 || count(&p->columns) == 1))
        loop_in_order(p);
    if (p->method == SCALAR)
        pair_terms(&p->terms);
    const long n_rows = count(&p->rows);
    if (p->method == PACKED && n_rows < MIN_PACKED_ROWS && n_rows < count(&p->columns))
        swap_sides(p);
    p->is_copied = p->method == DIRECT && !is_contiguous(&p->rows, 0);
    const int failed = run_with_sums(p, is_single, n_threads);
    free(p);
    return failed;
}

int contract_affine(int is_single, const Index *indices, long n_indices, const void *a,
                    const void *b, void *c, int n_threads, const Affine *functions)
{
    const int is_swapped = are_swapped(indices, n_indices);
    Problem *p = make_problem(0, is_swapped ? b : a, is_swapped ? a : b, c);
    if (p == NULL)
        return -1;
    fill_groups(indices, n_indices, is_swapped, p);
    p->functions[0] = functions[is_swapped], p->functions[1] = functions[!is_swapped];
    p->method = PACKED, p->is_copied = 0;
    if (count(&p->rows) < min(MIN_PACKED_ROWS, count(&p->columns)))
        swap_sides(p);
    const int failed = run_with_sums(p, is_single, n_threads);
    free(p);
    return failed;
}
