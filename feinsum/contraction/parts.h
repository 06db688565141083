/* Parts of a problem, which several threads compute: see parts.c. */

#ifndef FEINSUM_PARTS_H
#define FEINSUM_PARTS_H

#define MAX_THREADS 256

typedef struct {
    long first_batch, n_batch, first_row, n_rows, first_column, n_columns;
} Part;

/* Computes a part of a problem. Returns 0, or another number if it fails. */
typedef int (*Run)(const void *problem, const Part *);

/* Compute all parts. Returns 0, or another number if one of them failed. */
int run_parts(Run run, const void *problem, Part *parts, int n_parts);

/* Prepare for forks. Returns 0, or another number if the system refuses. */
int start_parts(void);

#endif
