/* Contractions of arrays of numpy: the Python module `_pairwise`.

   contract(indices, a, b, out, n_threads) writes one contraction; with a sixth argument,
   of affine functions of a and b. einsum(subscripts, operands) is a whole call: it reads
   the subscripts, makes the result, unless it is given, and fills it, in a microsecond for
   small arrays. It takes the calls that most programs consist of, and returns
   NotImplemented for all others, also for wrong ones: Python computes these, or says what
   is wrong.
*/

#define _GNU_SOURCE /* sched_getaffinity */
#include "calls.h"

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "network.h"
#include "pairwise.h"

/* Multiplications below which the right choice between this kernel and numpy gains less
   than it takes to make it in Python. */
#define SMALL 4096
/* Multiplications of a call for which no kernel of its own would pay off, about 30 µs, and
   those that take as long as an entry is read or written. */
#define SHORT 600000
#define ENTRY_POINTS 5
/* Multiplications that are not worth asking for the number of threads. */
#define SERIAL 100000
/* Calls of any size are computed here until they have taken that long together: what
   Python loads to choose among kernels takes a tenth of it. */
#define BUDGET_NS 250000000

/* Multiplications of a network in several steps: about a second. */
#define MAX_POINTS 1e10

#define N_LETTERS 128

static long long spent_ns;

int is_known(int type)
{
    return type == NPY_FLOAT || type == NPY_DOUBLE || type == NPY_CFLOAT ||
           type == NPY_CDOUBLE;
}

/* Half precision is added up in single precision, which Python does. */
static int is_number(int type)
{
    return PyTypeNum_ISNUMBER(type) && type != NPY_HALF;
}

int is_single(int type) { return type == NPY_FLOAT || type == NPY_CFLOAT; }

int is_complex(int type) { return type == NPY_CFLOAT || type == NPY_CDOUBLE; }

int is_readable(PyArrayObject *array, int type)
{
    const long size = PyArray_ITEMSIZE(array);
    if (PyArray_TYPE(array) != type || !PyArray_ISALIGNED(array) ||
        PyArray_ISBYTESWAPPED(array))
        return 0;
    for (int axis = 0; axis < PyArray_NDIM(array); ++axis)
        if (PyArray_STRIDE(array, axis) % size)
            return 0;
    return 1;
}

/* Add the axes that an index has in the array of that number. */
static void add_axes(Index *index, int which, PyArrayObject *array, uint64_t axes)
{
    const long size = PyArray_ITEMSIZE(array);
    for (int axis = 0; axes && axis < PyArray_NDIM(array); ++axis, axes >>= 1)
        if (axes & 1) {
            const long n = PyArray_DIM(array, axis);
            if (n == 1)
                continue;
            index->is_in[which] = 1;
            index->strides[which] += PyArray_STRIDE(array, axis) / size;
            index->extent = index->extent == 1 || index->extent == n ? n : -1;
        }
}

static PyObject *contract(PyObject *module, PyObject *const *arguments, Py_ssize_t n)
{
    (void)module;
    if (n < 5 || n > 6 || !PyBytes_Check(arguments[0]) || !PyArray_Check(arguments[1]) ||
        !PyArray_Check(arguments[2]) || !PyArray_Check(arguments[3]) ||
        (n == 6 && !PyTuple_Check(arguments[5]))) {
        PyErr_SetString(PyExc_TypeError,
                        "expected contract(indices, a, b, out, n_threads[, functions])");
        return NULL;
    }
    Affine functions[2];
    if (n == 6 && !PyArg_ParseTuple(arguments[5], "dddd", &functions[0].scale,
                                    &functions[0].shift, &functions[1].scale,
                                    &functions[1].shift))
        return NULL;
    PyArrayObject *arrays[3];
    for (int x = 0; x < 3; ++x)
        arrays[x] = (PyArrayObject *)arguments[x + 1];
    const long n_threads = PyLong_AsLong(arguments[4]);
    if (n_threads == -1 && PyErr_Occurred())
        return NULL;
    const int type = PyArray_TYPE(arrays[2]);
    if (!is_known(type) || !is_readable(arrays[0], type) ||
        !is_readable(arrays[1], type) || !is_readable(arrays[2], type) ||
        !PyArray_ISWRITEABLE(arrays[2])) {
        PyErr_SetString(PyExc_TypeError,
                        "expected aligned arrays of one dtype: float32, float64, "
                        "complex64 or complex128; the result writable");
        return NULL;
    }
    if (n == 6 && is_complex(type)) {
        PyErr_SetString(PyExc_TypeError, "affine functions are of real arrays");
        return NULL;
    }
    const Py_ssize_t n_bytes = PyBytes_GET_SIZE(arguments[0]);
    const long n_indices = n_bytes / (3 * sizeof(uint64_t));
    if (n_bytes % (3 * sizeof(uint64_t)) || n_indices > MAX_INDICES) {
        PyErr_SetString(PyExc_ValueError, "expected three integers for each index");
        return NULL;
    }
    const char *masks = PyBytes_AS_STRING(arguments[0]);
    Index indices[MAX_INDICES];
    uint64_t seen[3] = {0, 0, 0};
    int is_empty = 0, is_wrong = 0;
    for (long k = 0; k < n_indices; ++k) {
        uint64_t axes[3];
        memcpy(axes, masks + k * sizeof(axes), sizeof(axes));
        indices[k] = (Index){.extent = 1};
        for (int x = 0; x < 3; ++x) {
            add_axes(&indices[k], x, arrays[x], axes[x]);
            seen[x] |= axes[x];
        }
        is_empty |= indices[k].extent == 0;
        /* the result may lack an index, but not broadcast it */
        is_wrong |= indices[k].extent < 0 || (axes[2] && !axes[0] && !axes[1]) ||
                    (axes[2] && !indices[k].is_in[2] && indices[k].extent > 1);
    }
    for (int x = 0; x < 3; ++x) {
        const int rank = PyArray_NDIM(arrays[x]);
        is_wrong |= rank > 64 || seen[x] != (rank == 64 ? ~0ull : (1ull << rank) - 1);
    }
    if (is_wrong) {
        PyErr_SetString(PyExc_ValueError,
                        "the indices do not fit the shapes of the arrays");
        return NULL;
    }
    if (is_empty) {
        if (PyArray_FillWithScalar(arrays[2], Py_False) < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    const void *a = PyArray_DATA(arrays[0]), *b = PyArray_DATA(arrays[1]);
    void *out = PyArray_DATA(arrays[2]);
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = n == 6 ? contract_affine(is_single(type), indices, n_indices, a, b, out,
                                      (int)n_threads, functions)
                    : contract_strided(is_single(type), is_complex(type), indices,
                                       n_indices, a, b, out, (int)n_threads);
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* A call: its operands, and the index of each axis of these and of the result. */
typedef struct {
    PyArrayObject *operands[MAX_OPERANDS];
    int ranks[MAX_OPERANDS + 1];
    unsigned char indices[MAX_OPERANDS + 1][MAX_RANK];
    int is_chosen; /* Python has decided that it is to be computed here */
    PyArrayObject *out; /* the array for the result; NULL if none is given */
    Network network;
} Call;

#define RESULT MAX_OPERANDS

/* Append the indices of an ellipsis, which are named by their distance from its end, with
   numbers that are no letters. Returns 0 if they are too many. */
static int append_ellipsis(Call *call, int term, int n)
{
    if (n < 0 || call->ranks[term] + n > MAX_RANK)
        return 0;
    for (; n > 0; --n)
        call->indices[term][call->ranks[term]++] = n;
    return 1;
}

/* Axes of an operand that the letters of its term leave for an ellipsis. */
static int count_other_axes(const char *term, int rank)
{
    for (; *term && *term != ',' && *term != '-'; ++term)
        rank -= *term != ' ' && *term != '.';
    return rank;
}

/* Read the terms: "ij,jk->ik", or "ij,jk" with the letters that occur once, sorted; an
   ellipsis stands for further axes.

   Returns 0 if they are written in another way, or do not fit the ranks. */
static int parse(PyObject *subscripts, Call *call)
{
    const char *text = (const char *)PyUnicode_1BYTE_DATA(subscripts), *start = text;
    const int n_operands = call->network.n_operands;
    signed char n_uses[N_LETTERS] = {0};
    int term = 0, n_ellipsis = -1, has_ellipsis = 0; /* the widest; whether this term */
    memset(call->ranks, 0, sizeof(call->ranks));
    for (; *text; ++text) {
        const char c = *text;
        if (c == ' ')
            continue;
        if (c == ',' && term + 1 < n_operands) {
            ++term;
            start = text + 1, has_ellipsis = 0;
        } else if (c == '-' && text[1] == '>' && term == n_operands - 1) {
            ++text;
            term = RESULT, has_ellipsis = 0;
        } else if (c == '.' && text[1] == '.' && text[2] == '.') {
            text += 2;
            const int n = term == RESULT ? n_ellipsis
                                         : count_other_axes(
                                               start, PyArray_NDIM(call->operands[term]));
            if (has_ellipsis++ || !append_ellipsis(call, term, n))
                return 0;
            n_ellipsis = n > n_ellipsis ? n : n_ellipsis;
        } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            const int is_result = term == RESULT;
            if (call->ranks[term] == MAX_RANK || (is_result && n_uses[(int)c] <= 0))
                return 0; /* a letter of the result that is unknown, or repeated */
            call->indices[term][call->ranks[term]++] = c;
            n_uses[(int)c] = is_result ? -1 : n_uses[(int)c] ? 2 : 1;
        } else {
            return 0;
        }
    }
    if (term == n_operands - 1) {
        if (n_ellipsis > 0 && !append_ellipsis(call, RESULT, n_ellipsis))
            return 0;
        for (int c = 0; c < N_LETTERS; ++c)
            if (n_uses[c] == 1) {
                if (call->ranks[RESULT] == MAX_RANK)
                    return 0;
                call->indices[RESULT][call->ranks[RESULT]++] = c;
            }
    } else if (term != RESULT || (n_ellipsis >= 0 && !has_ellipsis)) {
        return 0;
    }
    for (int x = 0; x < n_operands; ++x)
        if (call->ranks[x] != PyArray_NDIM(call->operands[x]))
            return 0;
    return 1;
}

/* The bytes from the first entry of an array to the end of its last one. */
static void find_bytes(PyArrayObject *array, const char **first, const char **end)
{
    *first = PyArray_BYTES(array);
    *end = *first + PyArray_ITEMSIZE(array);
    for (int axis = 0; axis < PyArray_NDIM(array); ++axis) {
        const long length = (PyArray_DIM(array, axis) - 1) * PyArray_STRIDE(array, axis);
        if (length < 0)
            *first += length;
        else
            *end += length;
    }
}

/* Whether the kernel may write the result to an array: no operand lies among its bytes. */
static int is_writable(PyArrayObject *out, const Call *call)
{
    const int type = PyArray_TYPE(call->operands[0]);
    if (!PyArray_ISWRITEABLE(out) || !is_readable(out, type) ||
        PyArray_NDIM(out) > MAX_RANK)
        return 0;
    const char *first, *end, *other_first, *other_end;
    find_bytes(out, &first, &end);
    for (int x = 0; x < call->network.n_operands; ++x) {
        find_bytes(call->operands[x], &other_first, &other_end);
        if (first < other_end && other_first < end)
            return 0;
    }
    return 1;
}

/* Find the extent of each index, and its stride in each tensor; letters become numbers.

   An axis of extent 1 is broadcast: the operand has not got that index. Returns 0 if the
   extents do not match. */
static int match(Call *call)
{
    Network *network = &call->network;
    signed char number[N_LETTERS];
    memset(number, -1, sizeof(number));
    network->n_indices = 0;
    for (int x = 0; x < network->n_operands; ++x) {
        const npy_intp *shape = PyArray_DIMS(call->operands[x]);
        const npy_intp *strides = PyArray_STRIDES(call->operands[x]);
        /* of the dtypes that only views are made of, entries may have no bytes */
        const long n_bytes = PyArray_ITEMSIZE(call->operands[x]);
        const long size = n_bytes ? n_bytes : 1;
        Tensor *tensor = &network->operands[x];
        tensor->data = PyArray_DATA(call->operands[x]);
        tensor->has = 0;
        for (int axis = 0; axis < call->ranks[x]; ++axis) {
            signed char *known = &number[call->indices[x][axis]];
            if (*known < 0) {
                if (network->n_indices == MAX_LETTERS)
                    return 0;
                network->extents[network->n_indices] = 1;
                *known = network->n_indices++;
            }
            const int k = *known;
            call->indices[x][axis] = k;
            for (int other = 0; other < axis; ++other)
                if (call->indices[x][other] == k && shape[other] != shape[axis])
                    return 0; /* nothing is broadcast along a diagonal */
            if (shape[axis] == 1)
                continue;
            if (network->extents[k] != 1 && network->extents[k] != shape[axis])
                return 0;
            network->extents[k] = shape[axis];
            const long before = tensor->has >> k & 1 ? tensor->steps[k] : 0;
            tensor->steps[k] = before + strides[axis] / size;
            tensor->has |= 1ull << k;
        }
    }
    if (call->out != NULL && PyArray_NDIM(call->out) != call->ranks[RESULT])
        return 0;
    long step = 1;
    network->result.has = 0;
    for (int axis = call->ranks[RESULT] - 1; axis >= 0; --axis) {
        const int k = number[call->indices[RESULT][axis]];
        call->indices[RESULT][axis] = k;
        network->result.has |= 1ull << k;
        network->result.steps[k] = step;
        step *= network->extents[k];
        if (call->out == NULL)
            continue;
        if (PyArray_DIM(call->out, axis) != network->extents[k])
            return 0;
        network->result.steps[k] =
            PyArray_STRIDE(call->out, axis) / PyArray_ITEMSIZE(call->out);
    }
    return 1;
}

/* The transposed or diagonal view of a single operand without a sum. */
static PyObject *make_view(const Call *call)
{
    PyArrayObject *array = call->operands[0];
    npy_intp shape[MAX_RANK], strides[MAX_RANK];
    for (int axis = 0; axis < call->ranks[RESULT]; ++axis) {
        shape[axis] = call->network.extents[call->indices[RESULT][axis]];
        strides[axis] = 0;
        for (int own = 0; own < call->ranks[0]; ++own)
            if (call->indices[0][own] == call->indices[RESULT][axis])
                strides[axis] += PyArray_STRIDE(array, own);
    }
    PyArray_Descr *dtype = PyArray_DESCR(array);
    Py_INCREF(dtype);
    PyObject *view = PyArray_NewFromDescr(
        &PyArray_Type, dtype, call->ranks[RESULT], shape, strides, PyArray_DATA(array),
        PyArray_FLAGS(array) & NPY_ARRAY_WRITEABLE, NULL);
    if (view == NULL)
        return NULL;
    Py_INCREF(array);
    if (PyArray_SetBaseObject((PyArrayObject *)view, (PyObject *)array) < 0) {
        Py_DECREF(view);
        return NULL;
    }
    PyArray_UpdateFlags((PyArrayObject *)view, NPY_ARRAY_UPDATE_ALL);
    return PyArray_Return((PyArrayObject *)view);
}

/* The value of a function of a module of Python, which is loaded the first time. */
static PyObject *call_python(const char *module, const char *function,
                             PyObject *arguments)
{
    if (arguments == NULL)
        return NULL;
    PyObject *loaded = PyImport_ImportModule(module);
    PyObject *called = loaded ? PyObject_GetAttrString(loaded, function) : NULL;
    PyObject *value = called ? PyObject_CallObject(called, arguments) : NULL;
    Py_XDECREF(called);
    Py_XDECREF(loaded);
    Py_DECREF(arguments);
    return value;
}

static PyObject *make_result(const Call *call, double n_bytes)
{
    npy_intp shape[MAX_RANK];
    const int rank = call->ranks[RESULT];
    for (int axis = 0; axis < rank; ++axis)
        shape[axis] = call->network.extents[call->indices[RESULT][axis]];
    PyArray_Descr *dtype = PyArray_DESCR(call->operands[0]);
    if (call->out != NULL)
        return Py_NewRef(call->out);
    if (n_bytes < LARGE_BYTES)
        return PyArray_NewFromDescr(&PyArray_Type, PyArray_DescrFromType(dtype->type_num),
                                    rank, shape, NULL, NULL, 0, NULL);
    PyObject *extents = PyArray_IntTupleFromIntp(rank, shape);
    if (extents == NULL)
        return NULL;
    PyObject *result = call_python("feinsum.result_memory", "make_aligned",
                                   Py_BuildValue("(NO)", extents, dtype));
    if (result != NULL && !PyArray_CheckExact(result)) {
        PyErr_SetString(PyExc_TypeError, "expected an array for a result");
        Py_CLEAR(result);
    }
    return result;
}

/* What the number of threads depends on. */
typedef struct {
    char variables[2][16];
    int n_cores;
} Setting;

/* Returns 0 if a value of a variable is longer than any number of threads. */
static int read_setting(Setting *setting)
{
    static const char *const names[2] = {"FEINSUM_NUM_THREADS", "OMP_NUM_THREADS"};
    memset(setting, 0, sizeof(*setting));
    for (int k = 0; k < 2; ++k) {
        const char *value = getenv(names[k]);
        if (value != NULL && strlen(value) >= sizeof(setting->variables[k]))
            return 0;
        strcpy(setting->variables[k], value != NULL ? value : "");
    }
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
        setting->n_cores = CPU_COUNT(&allowed);
#endif
    return 1;
}

int find_n_threads(double n_points)
{
    static Setting last;
    static long last_n = 0; /* Python takes as long as a product of 60 x 60 matrices */
    Setting setting;
    if (n_points < SERIAL)
        return 1;
    const int is_read = read_setting(&setting);
    if (is_read && last_n > 0 && memcmp(&setting, &last, sizeof(last)) == 0)
        return last_n;
    PyObject *value = call_python("feinsum.threads", "get_n_threads", PyTuple_New(0));
    const long n = value ? PyLong_AsLong(value) : -1;
    Py_XDECREF(value);
    last = setting;
    last_n = is_read ? n : 0;
    return n;
}

/* What computes a call. */
typedef enum { KERNEL, NUMPY, PYTHON } Way;

/* The kernel; numpy's loops for other numbers; Python where a choice pays off. */
static Way choose_way(const Call *call, int is_kernels, int are_integers,
                      double n_entries)
{
    const Network *network = &call->network;
    const int n_operands = network->n_operands;
    const int is_over = is_budget_spent() && !call->is_chosen;
    if (n_operands == 1 && is_kernels)
        return KERNEL; /* memory limits a sum: no kernel of its own is faster */
    if (is_over && network->n_points + ENTRY_POINTS * n_entries > SHORT)
        return PYTHON;
    if (n_operands > 2 && network->n_points > MAX_POINTS)
        return PYTHON; /* which searches for longer, and can be interrupted */
    if (!is_kernels) { /* Python converts operands of several dtypes for the kernel */
        const int is_for_numpy = are_integers || network->n_points <= SMALL;
        /* numpy 2.4 corrupts memory for some empty products of longdouble */
        const int is_empty = n_operands == 2 && network->n_points == 0;
        return n_operands <= 2 && is_for_numpy && !is_empty ? NUMPY : PYTHON;
    }
    return KERNEL;
}

void spend_ns(double start_ns) { spent_ns += read_clock_ns() - start_ns; }

int is_budget_spent(void) { return spent_ns >= BUDGET_NS; }

/* numpy.einsum(subscripts, *operands, out=result) in C order; result is NULL, or an array
   of which this takes the reference. */
static PyObject *call_numpy(PyObject *subscripts, PyArrayObject *const *operands,
                            int n_operands, PyObject *result)
{
    const double start_ns = read_clock_ns();
    PyObject *module = PyImport_ImportModule("numpy");
    PyObject *function = module ? PyObject_GetAttrString(module, "einsum") : NULL;
    PyObject *names = Py_BuildValue("(s)", "out"), *value = NULL;
    if (function && names) {
        PyObject *arguments[MAX_OPERANDS + 2] = {subscripts};
        int n = 1;
        for (int x = 0; x < n_operands; ++x)
            arguments[n++] = (PyObject *)operands[x];
        arguments[n] = result;
        value = PyObject_Vectorcall(function, arguments, n, result ? names : NULL);
    }
    /* with order="C", numpy would read the operands in that order, too: slowly */
    if (value && PyArray_Check(value) && !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)value))
        Py_SETREF(value, PyArray_NewCopy((PyArrayObject *)value, NPY_CORDER));
    Py_XDECREF(result);
    Py_XDECREF(names);
    Py_XDECREF(function);
    Py_XDECREF(module);
    spend_ns(start_ns);
    return value;
}

/* Write the result of a network to an array. Returns 0, or -1 if there is no memory. */
static int fill(Network *network, PyArrayObject *result, double n_entries, int n_threads)
{
    network->result.data = PyArray_DATA(result);
    if (network->n_points == 0)
        return PyArray_FillWithScalar(result, Py_False);
    if (network->n_points + n_entries <= SMALL)
        return contract_network(network, 1);
    const double start_ns = read_clock_ns();
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = contract_network(network, n_threads);
    Py_END_ALLOW_THREADS
    spend_ns(start_ns);
    return failed;
}

/* The result of sums and products, or NotImplemented. */
static PyObject *compute(PyObject *subscripts, Call *call, int is_kernels)
{
    Network *network = &call->network;
    const int type = PyArray_TYPE(call->operands[0]), n_operands = network->n_operands;
    network->is_single = is_single(type);
    network->is_complex = is_complex(type);
    network->n_bytes_of_entry = PyArray_ITEMSIZE(call->operands[0]);
    network->max_intermediate = 0;
    uint64_t all = 0, several = 0;
    double n_entries = 0;
    int are_integers = 1;
    for (int x = 0; x < n_operands; ++x) {
        several |= all & network->operands[x].has;
        all |= network->operands[x].has;
        n_entries += PyArray_SIZE(call->operands[x]);
        are_integers = are_integers && PyArray_ISINTEGER(call->operands[x]);
    }
    network->result.has &= all; /* without axes of extent 1 */
    network->n_points = count_entries(network, all);
    if (n_operands > 2 && network->n_points > 0 && is_kernels && find_order(network))
        return PyErr_NoMemory();
    const double n_result = count_entries(network, network->result.has);
    const double n_bytes = n_result * network->n_bytes_of_entry;
    const uint64_t lone = all & ~several & ~network->result.has;
    const Way way = choose_way(call, is_kernels, are_integers, n_entries + n_result);
    if (way == PYTHON || (n_bytes >= CHECKED_BYTES && call->out == NULL) ||
        network->max_intermediate * network->n_bytes_of_entry >= CHECKED_BYTES)
        Py_RETURN_NOTIMPLEMENTED;
    PyObject *result = NULL;
    /* numpy is slower where it reduces into a given array */
    if (way == KERNEL || (is_kernels && n_operands > 1 && n_bytes >= LARGE_BYTES))
        result = make_result(call, n_bytes);
    if (way == NUMPY && !PyErr_Occurred())
        result = call_numpy(subscripts, call->operands, n_operands, result);
    /* of two operands, which are summed over the indices of one alone first */
    const double n_points =
        n_operands == 2 && lone ? count_entries(network, all & ~lone) + n_entries
                                : network->n_points;
    const int n_threads = way == NUMPY || result == NULL ? 0 : find_n_threads(n_points);
    if (n_threads < 0)
        Py_CLEAR(result);
    if (n_threads > 0 &&
        fill(network, (PyArrayObject *)result, n_entries, n_threads)) {
        Py_CLEAR(result);
        PyErr_NoMemory();
    }
    /* numpy's scalar in place of rank 0 */
    if (result != NULL && PyArray_Check(result) && call->out == NULL)
        result = PyArray_Return((PyArrayObject *)result);
    return result;
}

static int has_value(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL && *value;
}

static PyObject *einsum(PyObject *module, PyObject *const *arguments, Py_ssize_t n)
{
    (void)module;
    if (n < 2 || n > 4 || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(
            PyExc_TypeError,
            "expected einsum(subscripts, operands, is_chosen=False, out=None)");
        return NULL;
    }
    const Py_ssize_t n_operands = PyTuple_GET_SIZE(arguments[1]);
    const int is_chosen = n > 2 && arguments[2] == Py_True;
    PyObject *out = n > 3 && arguments[3] != Py_None ? arguments[3] : NULL;
    if (n_operands < 1 || !PyUnicode_Check(arguments[0]) || has_value("FEINSUM_DEVICE") ||
        has_value("FEINSUM_EFFORT") ||
        (n_operands > 2 && has_value("FEINSUM_INTERMEDIATE_BYTES")))
        Py_RETURN_NOTIMPLEMENTED;
    if (out != NULL && !PyArray_CheckExact(out))
        Py_RETURN_NOTIMPLEMENTED;
    if (n_operands > MAX_OPERANDS || !PyUnicode_IS_COMPACT_ASCII(arguments[0]))
        return out != NULL ? Py_NewRef(Py_NotImplemented)
                           : compute_large(arguments[0], arguments[1], is_chosen);
    Call call;
    call.network.n_operands = n_operands;
    call.is_chosen = is_chosen;
    call.out = (PyArrayObject *)out;
    int is_kernels = 1, is_numpys = 1;
    for (int x = 0; x < n_operands; ++x) {
        PyObject *operand = PyTuple_GET_ITEM(arguments[1], x);
        if (!PyArray_CheckExact(operand))
            Py_RETURN_NOTIMPLEMENTED;
        call.operands[x] = (PyArrayObject *)operand;
        const int type = PyArray_TYPE(call.operands[0]);
        is_kernels = is_kernels && is_known(type) && is_readable(call.operands[x], type);
        is_numpys = is_numpys && is_number(PyArray_TYPE(call.operands[x]));
    }
    if (out != NULL && !(is_kernels && is_writable(call.out, &call)))
        Py_RETURN_NOTIMPLEMENTED;
    if (!parse(arguments[0], &call) || !match(&call))
        Py_RETURN_NOTIMPLEMENTED;
    if (out == NULL && n_operands == 1 && call.ranks[RESULT] == call.network.n_indices)
        return make_view(&call); /* nothing is summed */
    return is_numpys ? compute(arguments[0], &call, is_kernels)
                     : Py_NewRef(Py_NotImplemented);
}

static PyObject *set_spent_s(PyObject *module, PyObject *seconds)
{
    (void)module;
    const double value = PyFloat_AsDouble(seconds);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    spent_ns = (long long)(value * 1e9);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"contract", (PyCFunction)(void (*)(void))contract, METH_FASTCALL,
     "contract(indices, a, b, out, n_threads): write the contraction of a and b to "
     "out."},
    {"einsum", (PyCFunction)(void (*)(void))einsum, METH_FASTCALL,
     "einsum(subscripts, operands, is_chosen=False, out=None): the result, or "
     "NotImplemented."},
    {"set_spent_s", set_spent_s, METH_O,
     "set_spent_s(seconds): what calls are taken to have spent so far."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_pairwise", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__pairwise(void)
{
    import_array();
    if (start_pairwise())
        return PyErr_NoMemory();
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "VECTOR_BYTES", count_vector_bytes()))
        Py_CLEAR(module);
    return module;
}
