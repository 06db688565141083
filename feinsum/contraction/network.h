/* Networks of a few operands, contracted in the best order: see network.c. */

#ifndef FEINSUM_NETWORK_H
#define FEINSUM_NETWORK_H

#include <stdint.h>

/* The search looks at every way to split every set of operands. */
#define MAX_OPERANDS 8
#define MAX_LETTERS 52

/* Strided numbers; bit k of `has` says whether they have index k, which step[k] is the
   stride of, in entries. */
typedef struct {
    void *data;
    uint64_t has;
    long steps[MAX_LETTERS];
} Tensor;

typedef struct {
    int n_operands, n_indices, is_single, is_complex, n_bytes_of_entry;
    long extents[MAX_LETTERS];
    Tensor operands[MAX_OPERANDS], result;
    /* found by find_order: for each set of operands, the part that is contracted apart
       from the rest, and the indices of its product */
    uint8_t parts[1 << MAX_OPERANDS];
    uint64_t products[1 << MAX_OPERANDS];
    double n_points;         /* multiplications of all steps */
    double max_intermediate; /* entries of the largest intermediate */
} Network;

/* The number of entries of a tensor with these indices. */
double count_entries(const Network *network, uint64_t has);

/* Find the order with the least work. */
void find_order(Network *network);

/* Contract the operands in that order. Returns 0, or -1 if there is no memory. */
int contract_network(const Network *network, int n_threads);

#endif
