/* What pairwise.c chooses and pairwise_run.c computes: groups of indices, and methods. */

#ifndef FEINSUM_PAIRWISE_PROBLEM_H
#define FEINSUM_PAIRWISE_PROBLEM_H

#include <stdlib.h>
#include <string.h>

#include "pairwise.h"

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE_VECTOR 1
#endif
#endif

/* Tiles, in entries, that are read in one order and written in another. */
#define TILE 16
/* Entries of a row that is repeated to make longer ones. */
#define MAX_PERIOD 12

/* Terms that are added up in registers, by rounding as coarse as the type's. */
#define DIRECT_TERMS 512
/* Columns that are computed for all rows, before others: so many stay in L2. */
#define DIRECT_COLUMNS 48
#define BLOCK_OF_DOT 1024

/* Bytes of results that packed products write past the caches. */
#define STREAMED_BYTES (1 << 25)

/* Entries of an operand that is read by lines, if it is not much smaller than the result;
   of the lists of rows, columns and terms, those that stay together then. */
#define MIN_ORDERED (1L << 16)
#define LINE_OF_ROWS 8
#define RUN_OF_COLUMNS 240
#define RUN_OF_TERMS 32

/* Blocks of PACKED: terms, and fewer if lines of rows lie on different pages for each term;
   entries of a block of the first operand, which take half of L2 in double precision;
   columns of the second one, in L3. Measured on Zen 3 to 5. */
#define BLOCK_TERMS 256
#define FAR_TERMS 96
#define BLOCK_ENTRIES (144 * BLOCK_TERMS)
#define BLOCK_COLUMNS 1024

/* Products of an entry of a small operand from which on a copy of it is worth it. */
#define MIN_SHARED_ENTRY 4

/* Work that is worth waking another thread for; in virtual machines that takes 30 µs. */
#define PER_THREAD_NS 60000

/* Terms in a run that are worth a dot product of their own. */
#define MIN_RUN_OF_DOT 4

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

/* The strides of a batch are those of a, b and c. Rows have those of a and c, columns of b
   and c, terms of a and b, in the first two places. TILED has one row and one column index
   with all three. */
typedef struct {
    Group batch, rows, columns, terms;
    const void *a, *b;
    void *c;
    int is_complex, method, is_copied, is_turned;
    int is_added; /* to the result, by PACKED and SCALAR */
    Affine functions[2]; /* of the entries of a and b, for PACKED */
} Problem;

typedef struct {
    long at[MAX_INDICES], a, b, c;
} Place;

static inline long min(long x, long y) { return x < y ? x : y; }

static inline long max(long x, long y) { return x > y ? x : y; }

static inline long round_up(long n, long unit) { return (n + unit - 1) / unit * unit; }

/* Terms of blocks of about equal depth, in multiples of a unit. */
static inline long choose_depth(long n_terms, long most, long unit)
{
    const long n_blocks = (n_terms + most - 1) / most;
    const long n = (n_terms + n_blocks - 1) / n_blocks;
    return min(most / unit, (n + unit - 1) / unit) * unit;
}

static inline long count(const Group *group)
{
    long n = 1;
    for (int k = 0; k < group->rank; ++k)
        n *= group->n[k];
    return n;
}

static inline long count_last(const Group *group)
{
    return group->rank ? group->n[group->rank - 1] : 1;
}

static inline void move(const Group *group, int k, long by, Place *place)
{
    place->at[k] += by;
    place->a += by * group->strides[k][0];
    place->b += by * group->strides[k][1];
    place->c += by * group->strides[k][2];
}

static inline void start(const Group *group, long first, Place *place)
{
    memset(place, 0, sizeof(Place));
    for (int k = group->rank - 1; k >= 0; --k) {
        move(group, k, first % group->n[k], place);
        first /= group->n[k];
    }
}

/* Go on by n along the last index, at most to its end, from where the next one steps. */
static inline void step(const Group *group, long n, Place *place)
{
    for (int k = group->rank - 1; k >= 0; --k, n = 1) {
        move(group, k, n, place);
        if (place->at[k] < group->n[k])
            return;
        move(group, k, -group->n[k], place);
    }
}

/* Whether the neighbours of an operand lie along the rows, rather than the columns. */
static inline int lies_along(const long *row, const long *column, int operand)
{
    return row[operand] && column[operand] && labs(row[operand]) < labs(column[operand]);
}

/* An index behind those of a group that have longer strides in the array `by`. */
void insert_index(Group *group, long n, const long *strides, int by);

/* Join indices that all arrays have one behind the other. */
void merge_indices(Group *group);

void move_to_end(Group *group, int k);
int is_contiguous(const Group *group, int x);

/* The position in a list of the neighbour in memory of its first entry; 0 if there is
   none. */
long find_period(const Group *group, int which);

/* Order the rows, columns and terms of a large operand so that whole cache lines are read.
   Returns 1 if an index was cut: the problem then lacks its last values, which are in
   `rest`. */
int order_by_lines(Problem *p, Problem *rest, int entry_bytes);

/* The operand that has the same short row for all rows of TILED, which lie one behind the
   other in the other one and the result; else -1. */
int find_periodic(const Problem *p);

/* Without a sum, such rows; 0 if there are none. */
int set_periodic(const Index *indices, long n_indices, Problem *p);

/* Let the last two terms be those with neighbours in each of the operands. */
void pair_terms(Group *terms);

/* Whether the rows are indices of the second operand; sort the indices into groups. */
int are_swapped(const Index *indices, long n_indices);
void fill_groups(const Index *indices, long n_indices, int is_swapped, Problem *p);

/* The entries of an array. */
long count_entries_of(const Index *indices, long n_indices, int array);

/* Without a sum: see pairwise_groups.c. */
int has_sum(const Index *indices, long n_indices);
int find_small_across(const Index *indices, long n_indices);
int find_tiles(const Index *indices, long n_indices, Problem *p);
void set_lines(const Index *indices, long n_indices, Problem *p);

/* The same as contract_strided, with at most so many copies: 2 where an operand may be
   copied, and then the result; 1 where the result may; else 0. */
int contract_copying(int is_single, int is_complex, const Index *indices, long n_indices,
                     const void *a, const void *b, void *c, int n_threads, int n_copies);

/* Whether a pass of its own is worth it, and contractions in two passes: see
   pairwise_passes.c. */
int find_lone_sum(const Index *indices, long n_indices);
int is_turned(const Index *indices, long n_indices, int operand);
int is_scattered(const Index *indices, long n_indices, int large);
int contract_sums(int is_single, int is_complex, const Index *indices, long n_indices,
                  const void *a, const void *b, void *c, int n_threads, int operand);
int contract_turned(int is_single, int is_complex, const Index *indices, long n_indices,
                    const void *a, const void *b, void *c, int n_threads, int operand);
int contract_copied(int is_single, int is_complex, const Index *indices, long n_indices,
                    const void *a, const void *b, void *c, int n_threads, int small,
                    int other, int n_copies);
int has_inner_batch(const Index *indices, long n_indices);
int contract_in_blocks(int is_single, int is_complex, const Index *indices, long n_indices,
                       const void *a, const void *b, void *c, int n_threads);

/* Roughly, the time of one thread with data in L2; measured on Zen 5. */
double estimate_ns(const Problem *p);

/* The longest vectors of this processor: 16 bytes, shifted by that. */
int get_longest_vector(void);

/* Compute the entries with vectors of 16 bytes, shifted by `length`. Returns 0, or -1 if
   there is no memory for scratch. */
int run_problem(int length, int is_single, const Problem *p, int n_threads);

#endif
