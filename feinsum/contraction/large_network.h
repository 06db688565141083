/* Networks of hundreds of operands, contracted pair by pair: see large_network.c. */

#ifndef FEINSUM_LARGE_NETWORK_H
#define FEINSUM_LARGE_NETWORK_H

/* An axis of a node; the stride is in entries. */
typedef struct {
    int index;
    long stride;
} Axis;

/* An operand, a product or the result. */
typedef struct {
    void *data;
    int rank;
    Axis *axes;
    double n_entries;
} Node;

typedef struct {
    int n_operands, n_indices, is_single, is_complex, n_bytes_of_entry;
    long *extents;
    /* The operands, then the products in the order of the steps; the last is the result,
       whose axes are given. */
    Node *nodes;
    /* found by find_large_order */
    int (*steps)[2];         /* the numbers of two nodes */
    double n_points;         /* multiplications of all steps */
    double max_intermediate; /* entries of the largest intermediate */
    int max_step;            /* indices of the step with the most */
} LargeNetwork;

/* Find an order of the steps. Returns 0, or -1 if there is no memory. */
int find_large_order(LargeNetwork *network);

/* Contract the operands in that order. Returns 0, or -1 if there is no memory. */
int contract_large_network(const LargeNetwork *network, int n_threads);

/* Free what was found. */
void free_large_order(LargeNetwork *network);

#endif
