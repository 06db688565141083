/* Networks of a few operands: the best order of contractions, and its execution.

   For pqrs,pi,qj,rk,sl->ijkl, with operands numbered 0 to 4, the best order contracts
   0 with 1, the product with 2, and so on: the tree of the sets {0, 1}, {0, 1, 2}, ...
   A set of operands has one product, whatever the order within it: its indices are those
   that other operands or the result have. So the best tree of a set follows from the best
   trees of its parts.

   Source: Pfeifer, Haegeman and Verstraete 2014, Faster identification of optimal
   contraction sequences for tensor networks, section II.
*/

#include "network.h"
#include "pairwise.h"

#include <float.h>
#include <stdlib.h>

/* Multiplications that take as long as an entry that is written and read again. */
#define PER_ENTRY 8

double count_entries(const Network *network, uint64_t has)
{
    double n = 1;
    for (; has; has &= has - 1)
        n *= network->extents[__builtin_ctzll(has)];
    return n;
}

void find_order(Network *network)
{
    const int n = network->n_operands, all = (1 << n) - 1;
    uint64_t any[1 << MAX_OPERANDS];
    double costs[1 << MAX_OPERANDS], points[1 << MAX_OPERANDS];
    any[0] = 0;
    for (int set = 1; set <= all; ++set)
        any[set] = any[set & (set - 1)] | network->operands[__builtin_ctz(set)].has;
    for (int set = 1; set <= all; ++set) {
        network->products[set] = any[set] & (any[all & ~set] | network->result.has);
        costs[set] = points[set] = 0;
        if ((set & (set - 1)) == 0) { /* a single operand keeps what it has */
            network->products[set] = any[set];
            continue;
        }
        costs[set] = DBL_MAX;
        const double n_entries = count_entries(network, network->products[set]);
        const int lowest = set & -set;
        for (int part = (set - 1) & set; part; part = (part - 1) & set) {
            const int rest = set & ~part;
            if (!(part & lowest) || costs[part] + costs[rest] >= costs[set])
                continue; /* each split once */
            const double n_points =
                count_entries(network, network->products[part] | network->products[rest]);
            const double cost =
                costs[part] + costs[rest] + n_points + PER_ENTRY * n_entries;
            if (cost < costs[set]) {
                costs[set] = cost;
                points[set] = points[part] + points[rest] + n_points;
                network->parts[set] = part;
            }
        }
    }
    network->n_points = points[all];
    network->max_intermediate = 0;
    int left[MAX_OPERANDS] = {all}, n_left = 1; /* sets to visit, from the root down */
    while (n_left) {
        const int set = left[--n_left];
        if ((set & (set - 1)) == 0)
            continue;
        if (set != all) {
            const double n_entries = count_entries(network, network->products[set]);
            if (n_entries > network->max_intermediate)
                network->max_intermediate = n_entries;
        }
        left[n_left++] = network->parts[set];
        left[n_left++] = set & ~network->parts[set];
    }
}

static int contract_pair(const Network *network, const Tensor *a, const Tensor *b,
                         const Tensor *c, int n_threads)
{
    Index indices[MAX_LETTERS];
    int n = 0;
    for (uint64_t left = a->has | b->has; left; left &= left - 1) {
        const int k = __builtin_ctzll(left);
        const Tensor *tensors[3] = {a, b, c};
        indices[n].extent = network->extents[k];
        for (int x = 0; x < 3; ++x) {
            const int is_in = tensors[x]->has >> k & 1;
            indices[n].is_in[x] = is_in;
            indices[n].strides[x] = is_in ? tensors[x]->steps[k] : 0;
        }
        ++n;
    }
    return contract_strided(network->is_single, network->is_complex, indices, n, a->data,
                            b->data, c->data, n_threads);
}

/* The index along which the entries of a tensor lie next to each other; -1 if none. */
static int find_unit(const Tensor *tensor)
{
    for (uint64_t left = tensor->has; left; left &= left - 1)
        if (tensor->steps[__builtin_ctzll(left)] == 1)
            return __builtin_ctzll(left);
    return -1;
}

/* Lay out a product: its batch first, then what the one operand has, then the other,
   each in the order of that operand, so that it is written in runs. But next to each
   other lie the entries that do so in the operand `next` that it is multiplied with, if
   these are summed, or in the result: that step reads and writes vectors. */
static void lay_out(const Network *network, const Tensor *a, const Tensor *b,
                    const Tensor *next, Tensor *c)
{
    const uint64_t groups[3] = {c->has & a->has & b->has, c->has & a->has & ~b->has,
                                c->has & b->has & ~a->has};
    int order[MAX_LETTERS], n = 0, unit = next == NULL ? -1 : find_unit(next);
    const int is_kept = unit >= 0 && network->result.has >> unit & 1;
    const int last = find_unit(&network->result);
    if (unit < 0 || !(c->has >> unit & 1) || (is_kept && last >= 0 && c->has >> last & 1))
        unit = last;
    for (int group = 0; group < 3; ++group) {
        const Tensor *from = group == 2 ? b : a;
        const int first = n;
        for (uint64_t left = groups[group]; left; left &= left - 1) {
            const int k = __builtin_ctzll(left);
            int at = n;
            if (k == unit)
                continue;
            for (; at > first && labs(from->steps[order[at - 1]]) < labs(from->steps[k]);
                 --at)
                order[at] = order[at - 1];
            order[at] = k;
            ++n;
        }
    }
    if (unit >= 0 && c->has >> unit & 1)
        order[n++] = unit;
    long step = 1;
    while (n) {
        const int k = order[--n];
        c->steps[k] = step;
        step *= network->extents[k];
    }
}

/* Contract a set of operands to a tensor. If the set is a single operand, or if its
   tensor has no data, that is set, and to be freed. `next` is the operand with which it
   is multiplied, or NULL. */
static int contract_set(const Network *network, int set, const Tensor *next, Tensor *to,
                        int n_threads)
{
    if ((set & (set - 1)) == 0) {
        *to = network->operands[__builtin_ctz(set)];
        return 0;
    }
    const int sets[2] = {network->parts[set], set & ~network->parts[set]};
    Tensor operands[2] = {{.data = NULL}, {.data = NULL}};
    int failed = 0;
    for (int x = 0; x < 2 && !failed; ++x) {
        const int other = sets[!x], is_operand = (other & (other - 1)) == 0;
        failed = contract_set(network, sets[x],
                              is_operand ? &network->operands[__builtin_ctz(other)] : NULL,
                              &operands[x], n_threads);
    }
    if (!failed && to->data == NULL) {
        to->has = network->products[set];
        lay_out(network, &operands[0], &operands[1], next, to);
        const double n_entries = count_entries(network, to->has);
        const size_t n_lines = n_entries * network->n_bytes_of_entry / 64 + 1;
        to->data = aligned_alloc(64, n_lines * 64);
        failed = to->data == NULL;
    }
    if (!failed)
        failed = contract_pair(network, &operands[0], &operands[1], to, n_threads);
    for (int x = 0; x < 2; ++x)
        if (sets[x] & (sets[x] - 1))
            free(operands[x].data);
    return failed ? -1 : 0;
}

int contract_network(const Network *network, int n_threads)
{
    Tensor result = network->result;
    if (network->n_operands == 1) { /* a sum */
        static const double one[2] = {1, 0};
        static const float single_one[2] = {1, 0};
        const Tensor unit = {
            .data = network->is_single ? (void *)single_one : (void *)one};
        return contract_pair(network, network->operands, &unit, &result, n_threads);
    }
    const Tensor *operands = network->operands;
    if (network->n_operands == 2)
        return contract_pair(network, &operands[0], &operands[1], &result, n_threads);
    return contract_set(network, (1 << network->n_operands) - 1, NULL, &result,
                        n_threads);
}
