/* Networks of some operands: the order of contractions, and its execution.

   For pqrs,pi,qj,rk,sl->ijkl, with operands numbered 0 to 4, the best order contracts
   0 with 1, the product with 2, and so on. A set of operands has one product, whatever
   the order within it: its indices are those that other operands or the result have. So
   the best order of a set follows from the best orders of its parts, for all sets of a
   few operands. For more, the pair is contracted next that leaves the fewest entries.

   Source: Pfeifer, Haegeman and Verstraete 2014, Faster identification of optimal
   contraction sequences for tensor networks, section II; Gray and Kourtis 2021,
   Hyper-optimized tensor network contraction, section 4.1 (greedy).
*/

#include "network.h"
#include "pairwise.h"

#include <float.h>
#include <stdlib.h>

/* Multiplications that take as long as an entry that is written and read again. */
#define PER_ENTRY 8
/* Multiplications from which on sums over indices of one operand alone are taken first. */
#define SHORT_SUMS 4096
/* So many operands are contracted in the best order ... */
#define FEW 8
/* ... and so many, if a search of all orders is short beside the contraction: it looks at
   3^n / 2 ways to split a set, each of which takes as long as some 100 multiplications. */
#define MANY 12
#define PER_SPLIT 100

double count_entries(const Network *network, uint64_t has)
{
    double n = 1;
    for (; has; has &= has - 1)
        n *= network->extents[__builtin_ctzll(has)];
    return n;
}

/* Note a step, and its share of the work. Returns the number of the product. */
static int add_step(Network *network, int k, int first, int second, uint64_t both,
                    uint64_t has)
{
    network->steps[k] = (Step){{first, second}, has};
    network->n_points += count_entries(network, both);
    const double n_entries = count_entries(network, has);
    if (k < network->n_operands - 2 && n_entries > network->max_intermediate)
        network->max_intermediate = n_entries;
    return network->n_operands + k;
}

/* The best steps, of all orders. */
typedef struct {
    uint64_t has;  /* indices of the product of the set */
    double cost;   /* of contracting it */
    unsigned part; /* contracted apart from the rest */
} Set;

static int add_steps_of(Network *network, const Set *sets, unsigned set, int *n_steps)
{
    if ((set & (set - 1)) == 0)
        return __builtin_ctz(set);
    const unsigned part = sets[set].part, rest = set & ~part;
    const int first = add_steps_of(network, sets, part, n_steps);
    const int second = add_steps_of(network, sets, rest, n_steps);
    return add_step(network, (*n_steps)++, first, second, sets[part].has | sets[rest].has,
                    sets[set].has);
}

static int find_best_order(Network *network)
{
    const unsigned n_sets = 1u << network->n_operands, all = n_sets - 1;
    Set *sets = malloc(n_sets * sizeof(Set));
    uint64_t *any = malloc(n_sets * sizeof(uint64_t)); /* indices of the operands */
    if (sets == NULL || any == NULL) {
        free(sets);
        free(any);
        return -1;
    }
    any[0] = 0;
    for (unsigned set = 1; set <= all; ++set)
        any[set] = any[set & (set - 1)] | network->operands[__builtin_ctz(set)].has;
    for (unsigned set = 1; set <= all; ++set) {
        Set *this = &sets[set];
        if ((set & (set - 1)) == 0) { /* a single operand keeps what it has */
            *this = (Set){any[set], 0, 0};
            continue;
        }
        *this = (Set){any[set] & (any[all & ~set] | network->result.has), DBL_MAX, 0};
        const double n_entries = count_entries(network, this->has);
        const unsigned lowest = set & -set;
        for (unsigned part = (set - 1) & set; part; part = (part - 1) & set) {
            const unsigned rest = set & ~part;
            if (!(part & lowest) || sets[part].cost + sets[rest].cost >= this->cost)
                continue; /* each split once */
            const double cost = sets[part].cost + sets[rest].cost +
                                count_entries(network, sets[part].has | sets[rest].has) +
                                PER_ENTRY * n_entries;
            if (cost < this->cost)
                this->cost = cost, this->part = part;
        }
    }
    int n_steps = 0;
    network->n_points = network->max_intermediate = 0;
    add_steps_of(network, sets, all, &n_steps);
    free(sets);
    free(any);
    return 0;
}

/* Indices of a product: those that another tensor has, too. */
static uint64_t has_after(uint64_t a, uint64_t b, uint64_t once, uint64_t twice)
{
    return (a | b) & ~((a & b & twice) | ((a ^ b) & once));
}

static void find_greedy_order(Network *network)
{
    int numbers[MAX_OPERANDS], n = network->n_operands;
    uint64_t has[MAX_OPERANDS];
    for (int x = 0; x < n; ++x)
        numbers[x] = x, has[x] = network->operands[x].has;
    network->n_points = network->max_intermediate = 0;
    for (int k = 0; n > 1; ++k) {
        /* indices that exactly one tensor has, or exactly two, with the result */
        uint64_t one = network->result.has, two = 0, more = 0;
        for (int x = 0; x < n; ++x) {
            more |= two & has[x];
            two |= one & has[x];
            one |= has[x];
        }
        const uint64_t once = one & ~two, twice = two & ~more;
        int first = 0, second = 1, is_joint = 0;
        double best = DBL_MAX;
        for (int i = 0; i < n; ++i)
            for (int j = i + 1; j < n; ++j) {
                const int shares = (has[i] & has[j]) != 0;
                if (shares < is_joint)
                    continue; /* outer products last */
                const double gain =
                    count_entries(network, has_after(has[i], has[j], once, twice)) -
                    count_entries(network, has[i]) - count_entries(network, has[j]);
                if (shares > is_joint || gain < best)
                    first = i, second = j, best = gain, is_joint = shares;
            }
        const uint64_t both = has[first] | has[second];
        const uint64_t product = has_after(has[first], has[second], once, twice);
        numbers[first] =
            add_step(network, k, numbers[first], numbers[second], both, product);
        has[first] = product;
        --n;
        numbers[second] = numbers[n], has[second] = has[n];
    }
}

int find_order(Network *network)
{
    const int n = network->n_operands;
    if (n <= FEW)
        return find_best_order(network);
    find_greedy_order(network);
    double n_splits = 0.5;
    for (int k = 0; k < n; ++k)
        n_splits *= 3;
    if (n <= MANY && network->n_points > PER_SPLIT * n_splits)
        return find_best_order(network);
    return 0;
}

/* The indices of a step, whose second operand may be missing. Returns their number. */
static int list_indices(const Network *network, const Tensor *a, const Tensor *b,
                        const Tensor *c, Index *indices)
{
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
    return n;
}

static int contract_pair(const Network *network, const Tensor *a, const Tensor *b,
                         const Tensor *c, int n_threads)
{
    Index indices[MAX_LETTERS];
    const int n = list_indices(network, a, b, c, indices);
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

/* The index of a product whose entries lie next to each other: that which does so in the
   operand `next` that it is multiplied with, if this is summed, or in the result. So that
   step reads and writes vectors. */
static int find_unit_of(const Network *network, const Tensor *next, const Tensor *c)
{
    const int unit = next == NULL ? -1 : find_unit(next);
    const int is_kept = unit >= 0 && network->result.has >> unit & 1;
    const int last = find_unit(&network->result);
    if (unit < 0 || !(c->has >> unit & 1) || (is_kept && last >= 0 && c->has >> last & 1))
        return last;
    return unit;
}

/* Lay out a product: its batch first, then what the one operand has, then the other,
   each in the order of that operand, so that it is written in runs; last the index `unit`,
   if it is not negative. */
static void lay_out(const Network *network, const Tensor *a, const Tensor *b, int unit,
                    Tensor *c)
{
    const uint64_t groups[3] = {c->has & a->has & b->has, c->has & a->has & ~b->has,
                                c->has & b->has & ~a->has};
    int order[MAX_LETTERS], n = 0;
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

/* The operand with which the product of a step is multiplied; NULL if that is another
   product. */
static const Tensor *find_next(const Network *network, int number)
{
    for (int k = 0; k < network->n_operands - 1; ++k)
        for (int x = 0; x < 2; ++x)
            if (network->steps[k].operands[x] == number) {
                const int other = network->steps[k].operands[!x];
                return other < network->n_operands ? &network->operands[other] : NULL;
            }
    return NULL;
}

static int allocate(const Network *network, Tensor *tensor)
{
    const size_t n_lines =
        count_entries(network, tensor->has) * network->n_bytes_of_entry / 64 + 1;
    tensor->data = aligned_alloc(64, n_lines * 64);
    return tensor->data == NULL ? -1 : 0;
}

/* The sum of an operand over some of its indices. */
static int sum_over(const Network *network, const Tensor *operand, uint64_t indices,
                    Tensor *sum, int n_threads)
{
    const Tensor none = {.data = NULL};
    if (sum->data == NULL) {
        sum->has = operand->has & ~indices;
        lay_out(network, operand, &none, -1, sum);
        if (allocate(network, sum))
            return -1;
    }
    Index list[MAX_LETTERS];
    const int n = list_indices(network, operand, &none, sum, list);
    return sum_strided(network->is_single, network->is_complex, list, n, operand->data,
                       sum->data, n_threads);
}

/* Whether a product of two reads an operand with all indices as fast as its sum over those
   that the other one lacks: along the index whose entries lie next to each other. */
static int is_summed_in_passing(const Network *network, const Tensor *operand,
                                const Tensor *other, uint64_t lone)
{
    const int unit = find_unit(operand);
    if (unit < 0 || other->has & ~operand->has)
        return 0;
    const int is_in_other = other->has >> unit & 1;
    if (network->result.has >> unit & 1)
        return network->result.steps[unit] == 1 && !is_in_other;
    return lone >> unit & 1 || (is_in_other && other->steps[unit] == 1);
}

/* Replace operands by their sums over indices that nothing else has. Returns the number of
   sums, whose memory is to be freed, or -1 if there is none. */
static int sum_lone_indices(Network *network, Tensor *sums, int n_threads)
{
    const int n = network->n_operands;
    uint64_t all = network->result.has, several = network->result.has;
    int n_sums = 0;
    for (int x = 0; x < n; ++x) {
        several |= all & network->operands[x].has;
        all |= network->operands[x].has;
    }
    for (int x = 0; x < n; ++x) {
        Tensor *operand = &network->operands[x], *sum = &sums[n_sums];
        const uint64_t lone = operand->has & ~several;
        if (lone == 0 || (n == 2 && is_summed_in_passing(network, operand,
                                                         &network->operands[!x], lone)))
            continue;
        sum->data = NULL;
        ++n_sums;
        if (sum_over(network, operand, lone, sum, n_threads)) {
            for (int k = 0; k < n_sums; ++k)
                free(sums[k].data);
            return -1;
        }
        *operand = *sum;
    }
    return n_sums;
}

/* Whether a step multiplies entry by entry of the result, without a sum. */
static int is_by_entry(const Network *network, const Tensor *products, int k)
{
    uint64_t has = 0;
    for (int x = 0; x < 2; ++x) {
        const int number = network->steps[k].operands[x];
        has |= number < network->n_operands ? network->operands[number].has
                                            : products[number - network->n_operands].has;
    }
    return has == network->result.has;
}

/* Let the last steps that multiply entry by entry write to the result, which they then
   read and write in place: they need no intermediates, and turn no entries twice. */
static void find_steps_in_place(const Network *network, Tensor *products)
{
    const int n = network->n_operands;
    for (int k = 0; k < n - 1; ++k)
        products[k].has = network->steps[k].has;
    for (int k = n - 2; k >= 0 && is_by_entry(network, products, k);) {
        products[k] = network->result;
        const int *operands = network->steps[k].operands;
        k = -1;
        for (int x = 0; x < 2 && k < 0; ++x)
            if (operands[x] >= n && products[operands[x] - n].has == network->result.has)
                k = operands[x] - n;
    }
}

static void free_product(const Network *network, Tensor *product)
{
    if (product->data != network->result.data)
        free(product->data);
    product->data = NULL;
}

static int run_steps(const Network *network, Tensor *products, int n_threads)
{
    const int n = network->n_operands;
    find_steps_in_place(network, products);
    for (int k = 0; k < n - 1; ++k) {
        const Step *step = &network->steps[k];
        const Tensor *operands[2];
        for (int x = 0; x < 2; ++x)
            operands[x] = step->operands[x] < n ? &network->operands[step->operands[x]]
                                                : &products[step->operands[x] - n];
        Tensor *product = &products[k];
        if (k == n - 2) {
            *product = network->result;
        } else if (product->data == NULL) {
            const Tensor *next = find_next(network, n + k);
            lay_out(network, operands[0], operands[1],
                    find_unit_of(network, next, product), product);
            if (allocate(network, product))
                return -1;
        }
        if (contract_pair(network, operands[0], operands[1], product, n_threads))
            return -1;
        for (int x = 0; x < 2; ++x)
            if (step->operands[x] >= n)
                free_product(network, &products[step->operands[x] - n]);
    }
    return 0;
}

int contract_network(Network *network, int n_threads)
{
    const Tensor *operands = network->operands;
    if (network->n_operands == 1)
        return sum_over(network, operands, operands->has & ~network->result.has,
                        &network->result, n_threads);
    Tensor products[MAX_OPERANDS], sums[MAX_OPERANDS];
    const int n_sums =
        network->n_points > SHORT_SUMS ? sum_lone_indices(network, sums, n_threads) : 0;
    int failed = n_sums < 0;
    if (network->n_operands == 2) {
        failed = failed || contract_pair(network, &operands[0], &operands[1],
                                         &network->result, n_threads);
    } else {
        for (int k = 0; k < network->n_operands - 1; ++k)
            products[k].data = NULL;
        failed = failed || run_steps(network, products, n_threads);
        for (int k = 0; k < network->n_operands - 2; ++k)
            free_product(network, &products[k]); /* those that a failure left */
    }
    for (int k = 0; k < n_sums; ++k)
        free(sums[k].data);
    return failed;
}
