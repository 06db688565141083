/* Calls of hundreds of arrays, whose subscripts have more indices than the alphabet.

   They are as opt_einsum and cotengra write them: any letter of Unicode is an index. All
   else is as in einsum.c: what is not taken here is NotImplemented, and Python's to do.
*/

#define NO_IMPORT_ARRAY
#include "calls.h"

#include <stdlib.h>
#include <string.h>

#include "large_network.h"
#include "pairwise.h"

/* Multiplications for which a longer search, in Python, may find an order that takes less
   than this search saves: 20 ms. */
#define MAX_POINTS 2e7
#define MAX_OPERANDS (1 << 15)

/* Indices by their character: an open hash table, with twice the room that it needs. */
typedef struct {
    Py_UCS4 *characters;
    int *numbers;
    unsigned n_slots;
    int n_indices;
} Names;

/* The slot of a character, which is empty if that is new: it has no character. */
static unsigned find_slot(const Names *names, Py_UCS4 c)
{
    unsigned slot = (c * 2654435761u) & (names->n_slots - 1);
    while (names->characters[slot] && names->characters[slot] != c)
        slot = (slot + 1) & (names->n_slots - 1);
    return slot;
}

static int is_index(Py_UCS4 c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= 0xC0 && !Py_UNICODE_ISSPACE(c));
}

/* Add an axis to a node: a second one along the same index makes a diagonal. */
static void add_axis(Node *node, int index, long stride)
{
    for (int x = 0; x < node->rank; ++x)
        if (node->axes[x].index == index) {
            node->axes[x].stride += stride;
            return;
        }
    node->axes[node->rank++] = (Axis){index, stride};
}

/* Read a term of an operand, from `at` on. Returns where it ends, or -1 if it does not fit
   the array. */
static Py_ssize_t read_term(PyObject *text, Py_ssize_t at, PyArrayObject *array,
                            Names *names, long *extents, Node *node)
{
    const int kind = PyUnicode_KIND(text), rank = PyArray_NDIM(array);
    const void *characters = PyUnicode_DATA(text);
    const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    const long size = PyArray_ITEMSIZE(array);
    int seen[MAX_RANK];
    node->data = PyArray_DATA(array);
    node->rank = 0;
    node->n_entries = 1;
    int axis = 0;
    for (; at < length; ++at) {
        const Py_UCS4 c = PyUnicode_READ(kind, characters, at);
        if (c == ' ')
            continue;
        if (!is_index(c))
            break;
        if (axis == rank || axis == MAX_RANK)
            return -1;
        const unsigned slot = find_slot(names, c);
        if (!names->characters[slot]) {
            names->characters[slot] = c;
            names->numbers[slot] = names->n_indices;
            extents[names->n_indices++] = 1;
        }
        const int index = names->numbers[slot];
        const long extent = PyArray_DIM(array, axis);
        for (int other = 0; other < axis; ++other)
            if (seen[other] == index && PyArray_DIM(array, other) != extent)
                return -1; /* nothing is broadcast along a diagonal */
        seen[axis] = index;
        /* an axis of extent 1 is broadcast: the operand has not got that index */
        if (extent != 1) {
            if (extents[index] != 1 && extents[index] != extent)
                return -1;
            extents[index] = extent;
            add_axis(node, index, PyArray_STRIDE(array, axis) / size);
        }
        ++axis;
    }
    return axis == rank ? at : -1;
}

/* Read all terms and the result "->ab". Returns the rank of the result, or -1 for what is
   written otherwise. */
static int read_call(PyObject *text, PyArrayObject **arrays, Names *names, Axis *axes,
                     LargeNetwork *network, int *result)
{
    const int kind = PyUnicode_KIND(text), n = network->n_operands;
    const void *characters = PyUnicode_DATA(text);
    const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    Py_ssize_t at = 0;
    for (int x = 0; x < n; ++x) {
        network->nodes[x].axes = axes;
        at = read_term(text, at, arrays[x], names, network->extents, &network->nodes[x]);
        if (at < 0 || at == length)
            return -1;
        axes += PyArray_NDIM(arrays[x]);
        const Py_UCS4 end = PyUnicode_READ(kind, characters, at);
        if (end != (Py_UCS4)(x < n - 1 ? ',' : '-'))
            return -1;
        ++at;
    }
    if (at == length || PyUnicode_READ(kind, characters, at) != '>')
        return -1;
    network->n_indices = names->n_indices;
    int rank = 0;
    while (++at < length) {
        const Py_UCS4 c = PyUnicode_READ(kind, characters, at);
        if (c == ' ')
            continue;
        const unsigned slot = find_slot(names, c);
        if (rank == MAX_RANK || !names->characters[slot])
            return -1;
        for (int other = 0; other < rank; ++other)
            if (result[other] == names->numbers[slot])
                return -1;
        result[rank++] = names->numbers[slot];
    }
    return rank;
}

/* The axes of the result that are longer than 1, in C order. */
static void lay_out_result(const LargeNetwork *network, const int *result, int rank,
                           npy_intp *shape)
{
    Node *node = &network->nodes[2 * network->n_operands - 2];
    long step = 1;
    node->rank = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
        const long extent = network->extents[result[axis]];
        shape[axis] = extent;
        if (extent != 1)
            node->axes[node->rank++] = (Axis){result[axis], step};
        step *= extent;
    }
    node->n_entries = step;
}

/* Contract a network that was read. Returns an array, NotImplemented, or NULL with an
   exception. */
static PyObject *contract_into_new(LargeNetwork *network, int type, int rank,
                                   const npy_intp *shape, int is_chosen)
{
    PyObject *array = NULL;
    const int failed = find_large_order(network);
    const double n_bytes = network->n_bytes_of_entry;
    int n_threads = -1;
    Node *result = &network->nodes[2 * network->n_operands - 2];
    if (failed) {
        PyErr_NoMemory();
    } else if (network->max_step > MAX_INDICES ||
               (network->n_points > MAX_POINTS && !is_chosen) ||
               network->max_intermediate * n_bytes >= CHECKED_BYTES ||
               result->n_entries * n_bytes >= LARGE_BYTES) {
        array = Py_NewRef(Py_NotImplemented);
    } else if ((n_threads = find_n_threads(network->n_points)) > 0) {
        array = PyArray_SimpleNew(rank, shape, type);
        if (array != NULL) {
            const double start_ns = read_clock_ns();
            int is_full;
            result->data = PyArray_DATA((PyArrayObject *)array);
            Py_BEGIN_ALLOW_THREADS
            is_full = contract_large_network(network, n_threads) == 0;
            Py_END_ALLOW_THREADS
            spend_ns(start_ns);
            if (!is_full) {
                Py_CLEAR(array);
                PyErr_NoMemory();
            }
        }
    }
    free_large_order(network);
    return array != NULL && PyArray_Check(array) ? PyArray_Return((PyArrayObject *)array)
                                                 : array;
}

/* The number of axes of all operands; -1 if they are no arrays of one type that the kernel
   reads, or have no entries. */
static long count_axes(PyObject *operands)
{
    long n_axes = 0;
    for (Py_ssize_t x = 0; x < PyTuple_GET_SIZE(operands); ++x) {
        PyObject *operand = PyTuple_GET_ITEM(operands, x);
        if (!PyArray_CheckExact(operand))
            return -1;
        PyArrayObject *array = (PyArrayObject *)operand;
        const int type = PyArray_TYPE((PyArrayObject *)PyTuple_GET_ITEM(operands, 0));
        if (!is_known(type) || !is_readable(array, type) || PyArray_SIZE(array) == 0)
            return -1;
        n_axes += PyArray_NDIM(array);
    }
    return n_axes;
}

PyObject *compute_large(PyObject *subscripts, PyObject *operands, int is_chosen)
{
    const Py_ssize_t n = PyTuple_GET_SIZE(operands);
    const long n_axes = n < 2 || n > MAX_OPERANDS ? -1 : count_axes(operands);
    if (n_axes < 0 || (is_budget_spent() && !is_chosen))
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *first = (PyArrayObject *)PyTuple_GET_ITEM(operands, 0);
    const int type = PyArray_TYPE(first);
    Names names = {.n_slots = 2};
    while (names.n_slots < 2 * n_axes)
        names.n_slots *= 2;
    names.characters = calloc(names.n_slots, sizeof(Py_UCS4));
    names.numbers = malloc(names.n_slots * sizeof(int));
    Axis *axes = malloc((n_axes + MAX_RANK) * sizeof(Axis));
    LargeNetwork network = {
        .n_operands = n,
        .is_single = is_single(type),
        .is_complex = is_complex(type),
        .n_bytes_of_entry = PyArray_ITEMSIZE(first),
        .extents = malloc((n_axes + 1) * sizeof(long)),
        .nodes = calloc(2 * n, sizeof(Node)),
    };
    PyObject *value = NULL;
    if (names.characters && names.numbers && axes && network.extents && network.nodes) {
        int result[MAX_RANK];
        npy_intp shape[MAX_RANK];
        PyArrayObject **arrays = (PyArrayObject **)&PyTuple_GET_ITEM(operands, 0);
        const int rank = read_call(subscripts, arrays, &names, axes, &network, result);
        network.nodes[2 * n - 2].axes = axes + n_axes;
        for (int x = 0; x < n && rank >= 0; ++x)
            for (int y = 0; y < network.nodes[x].rank; ++y)
                network.nodes[x].n_entries *= network.extents[network.nodes[x].axes[y].index];
        if (rank >= 0) {
            lay_out_result(&network, result, rank, shape);
            value = contract_into_new(&network, type, rank, shape, is_chosen);
        } else {
            value = Py_NewRef(Py_NotImplemented);
        }
    } else {
        PyErr_NoMemory();
    }
    free(names.characters);
    free(names.numbers);
    free(axes);
    free(network.extents);
    free(network.nodes);
    return value;
}
