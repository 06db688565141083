/* What calls of a few arrays and of large networks have in common: see einsum.c. */

#ifndef FEINSUM_CALLS_H
#define FEINSUM_CALLS_H

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL feinsum_contraction_array_api
#include <Python.h>
#include <numpy/arrayobject.h>

/* Larger results are in memory that is used again, see feinsum/result_memory.py. */
#define LARGE_BYTES (1 << 17)
/* Before results of this size, Python checks that there is memory for them. */
#define CHECKED_BYTES (1 << 28)
#define MAX_RANK 32

/* Whether the kernel has entries of a type of numpy. */
int is_known(int type);
int is_single(int type);
int is_complex(int type);
/* Whether the kernel reads an array where it is: aligned entries of that type. */
int is_readable(PyArrayObject *array, int type);

/* The threads of a call that may keep two of them busy; -1 with an exception. */
int find_n_threads(double n_points);

/* The time that calls have taken together; see BUDGET_NS. */
void spend_ns(double start_ns);
int is_budget_spent(void);

/* The result of many arrays or of indices beyond the alphabet, or NotImplemented. */
PyObject *compute_large(PyObject *subscripts, PyObject *operands, int is_chosen);

#endif
