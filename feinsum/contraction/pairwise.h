/* The contraction of two strided arrays: see pairwise.c. */

#ifndef FEINSUM_PAIRWISE_H
#define FEINSUM_PAIRWISE_H

#define MAX_INDICES 128

/* An index, and what one step along it means for the two operands and the result.

   strides are in entries; is_in says which of the arrays have the index at all, since
   one that is broadcast has stride 0, too. */
typedef struct {
    long extent, strides[3];
    char is_in[3];
} Index;

/* Write to c the sum of products of entries of a and b. The extents are positive.

   Returns 0, or -1 if there is no memory for scratch. */
int contract_strided(int is_single, int is_complex, const Index *indices, long n_indices,
                     const void *a, const void *b, void *c, int n_threads);

/* An operand in place of an array: scale * entry + shift. */
typedef struct {
    double scale, shift;
} Affine;

/* The same for affine functions of the entries of a and b, which are real. They are applied
   to packed blocks, so no array is written for them. */
int contract_affine(int is_single, const Index *indices, long n_indices, const void *a,
                    const void *b, void *c, int n_threads, const Affine *functions);

/* Write to c the sums of entries of a over the indices that c lacks: without such, a copy in
   another order. The second operand of the indices is not read. Returns the same. */
int sum_strided(int is_single, int is_complex, const Index *indices, long n_indices,
                const void *a, void *c, int n_threads);

/* Choose the instructions of this processor. Returns 0, or -1 if the system refuses. */
int start_pairwise(void);

/* Bytes of its longest vectors. */
int count_vector_bytes(void);

/* A clock that never goes back. */
double read_clock_ns(void);

#endif
