/* Networks of some operands, contracted pair by pair: see network.c. */

#ifndef FEINSUM_NETWORK_H
#define FEINSUM_NETWORK_H

#include <stdint.h>

#define MAX_OPERANDS 32
#define MAX_LETTERS 52

/* Strided numbers; bit k of `has` says whether they have index k, which step[k] is the
   stride of, in entries. */
typedef struct {
    void *data;
    uint64_t has;
    long steps[MAX_LETTERS];
} Tensor;

/* Two operands become one, with these indices. The product of step k has the number
   n_operands + k. */
typedef struct {
    int operands[2];
    uint64_t has;
} Step;

typedef struct {
    int n_operands, n_indices, is_single, is_complex, n_bytes_of_entry;
    long extents[MAX_LETTERS];
    Tensor operands[MAX_OPERANDS], result;
    /* found by find_order */
    Step steps[MAX_OPERANDS];
    double n_points;         /* multiplications of all steps */
    double max_intermediate; /* entries of the largest intermediate */
} Network;

/* The number of entries of a tensor with these indices. */
double count_entries(const Network *network, uint64_t has);

/* Find an order of the steps. Returns 0, or -1 if there is no memory. */
int find_order(Network *network);

/* Contract the operands in that order; sums may take the place of operands. Returns 0, or
   -1 if there is no memory. */
int contract_network(Network *network, int n_threads);

#endif
