/* Networks of hundreds of operands: nodes have lists of indices, where those of a few
   operands have bits.

   The pair of neighbours is contracted next whose product has the fewest entries beside
   its own. In a chain ab,bc,cd with extents 2, 9, 3, 9, the first two become a matrix of
   6 entries where they had 45, a gain of 39; the last two would gain 81 - 27 - 27. A heap
   has the gains of all pairs of neighbours. A product changes those of its own
   neighbours alone, so n operands take about n log n steps. Entries of the heap whose
   nodes are gone are skipped when they come up.

   Source: Gray and Kourtis 2021, Hyper-optimized tensor network contraction, section 4.1.
*/

#include "large_network.h"
#include "pairwise.h"

#include <stdlib.h>
#include <string.h>

/* Pairs of the nodes of one index: all of them, where it is an edge of few. */
#define FEW_HOLDERS 16

typedef struct {
    double cost;
    int nodes[2];
} Candidate;

typedef struct {
    LargeNetwork *network;
    /* Of each index: its nodes that are left, from `first` on, and how many these are; the
       result counts as one. */
    int *holders, *first, *n_holders, *n_uses;
    int *stamps, stamp; /* of each index: marks of the last node that was looked at */
    char *is_gone;      /* of each node */
    Candidate *heap;
    int n_candidates, n_allocated;
} Search;

static int push(Search *search, double cost, int a, int b)
{
    if (search->n_candidates == search->n_allocated) {
        const int n = 2 * search->n_allocated + 64;
        Candidate *heap = realloc(search->heap, n * sizeof(Candidate));
        if (heap == NULL)
            return -1;
        search->heap = heap, search->n_allocated = n;
    }
    int at = search->n_candidates++;
    for (; at > 0 && search->heap[(at - 1) / 2].cost > cost; at = (at - 1) / 2)
        search->heap[at] = search->heap[(at - 1) / 2];
    search->heap[at] = (Candidate){cost, {a, b}};
    return 0;
}

static Candidate pop(Search *search)
{
    Candidate *heap = search->heap;
    const Candidate best = heap[0], last = heap[--search->n_candidates];
    const int n = search->n_candidates;
    int at = 0;
    for (int child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && heap[child + 1].cost < heap[child].cost;
        if (heap[child].cost >= last.cost)
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return best;
}

/* Mark the indices of a pair: afterwards those of `a` alone have the stamp, and those of
   both the stamp plus one. */
static void mark(Search *search, const Node *a, const Node *b)
{
    search->stamp += 2;
    for (int x = 0; x < a->rank; ++x)
        search->stamps[a->axes[x].index] = search->stamp;
    for (int x = 0; x < b->rank; ++x)
        search->stamps[b->axes[x].index] +=
            search->stamps[b->axes[x].index] == search->stamp;
}

/* Whether a product has an index of one or both of a marked pair: one that further nodes
   or the result have. */
static int is_kept(const Search *search, int index)
{
    return search->n_uses[index] > 1 + (search->stamps[index] == search->stamp + 1);
}

static int push_pair(Search *search, int first, int second)
{
    const LargeNetwork *network = search->network;
    const Node *a = &network->nodes[first], *b = &network->nodes[second];
    double n_entries = 1;
    mark(search, a, b);
    for (int x = 0; x < a->rank; ++x)
        if (is_kept(search, a->axes[x].index))
            n_entries *= network->extents[a->axes[x].index];
    for (int x = 0; x < b->rank; ++x) {
        const int index = b->axes[x].index;
        if (search->stamps[index] != search->stamp + 1 && is_kept(search, index))
            n_entries *= network->extents[index];
    }
    return push(search, n_entries - a->n_entries - b->n_entries, first, second);
}

/* Take a node out of the lists of its indices. */
static void remove_node(Search *search, int number)
{
    const Node *node = &search->network->nodes[number];
    search->is_gone[number] = 1;
    for (int x = 0; x < node->rank; ++x) {
        const int index = node->axes[x].index;
        int *holders = search->holders + search->first[index];
        int at = 0;
        while (holders[at] != number)
            ++at;
        holders[at] = holders[--search->n_holders[index]];
        --search->n_uses[index];
    }
}

/* The axes of the product of a marked pair: those of the batch first, then those of one
   operand, then of the other, so that it is written in runs. Returns -1 without memory. */
static int make_product(Search *search, const Node *a, const Node *b, Node *product)
{
    const LargeNetwork *network = search->network;
    const int both = search->stamp + 1;
    Axis *axes = malloc((a->rank + b->rank + 1) * sizeof(Axis));
    if (axes == NULL)
        return -1;
    int n = 0;
    for (int group = 0; group < 3; ++group) {
        const Node *from = group == 2 ? b : a;
        for (int x = 0; x < from->rank; ++x) {
            const int index = from->axes[x].index;
            if ((search->stamps[index] == both) == (group == 0) && is_kept(search, index))
                axes[n++].index = index;
        }
    }
    long step = 1;
    product->n_entries = 1;
    for (int x = n; x-- > 0;) {
        axes[x].stride = step;
        step *= network->extents[axes[x].index];
        product->n_entries *= network->extents[axes[x].index];
    }
    product->axes = axes;
    product->rank = n;
    return 0;
}

/* Note a step, whose product takes the place of its operands. */
static int contract_next(Search *search, int k, int first, int second)
{
    LargeNetwork *network = search->network;
    const Node *a = &network->nodes[first], *b = &network->nodes[second];
    const int number = network->n_operands + k, is_last = k == network->n_operands - 2;
    Node *product = &network->nodes[number];
    mark(search, a, b);
    double n_points = a->n_entries;
    int n_indices = a->rank;
    for (int x = 0; x < b->rank; ++x)
        if (search->stamps[b->axes[x].index] != search->stamp + 1) {
            n_points *= network->extents[b->axes[x].index];
            ++n_indices;
        }
    network->steps[k][0] = first, network->steps[k][1] = second;
    network->n_points += n_points;
    if (n_indices > network->max_step)
        network->max_step = n_indices;
    if (is_last)
        return 0;
    if (make_product(search, a, b, product))
        return -1;
    if (product->n_entries > network->max_intermediate)
        network->max_intermediate = product->n_entries;
    remove_node(search, first);
    remove_node(search, second);
    for (int x = 0; x < product->rank; ++x) {
        const int index = product->axes[x].index;
        search->holders[search->first[index] + search->n_holders[index]++] = number;
        ++search->n_uses[index];
    }
    return 0;
}

/* The pairs of a node with its neighbours; with those of smaller numbers alone, where all
   nodes are asked. */
static int push_neighbours(Search *search, int number, int are_smaller)
{
    const Node *node = &search->network->nodes[number];
    for (int x = 0; x < node->rank; ++x) {
        const int index = node->axes[x].index, n = search->n_holders[index];
        const int *holders = search->holders + search->first[index];
        for (int y = n > FEW_HOLDERS ? n - FEW_HOLDERS : 0; y < n; ++y)
            if (holders[y] != number && (!are_smaller || holders[y] < number) &&
                push_pair(search, number, holders[y]))
                return -1;
    }
    return 0;
}

static int run_search(Search *search)
{
    LargeNetwork *network = search->network;
    const int n = network->n_operands;
    int k = 0;
    for (int number = 0; number < n; ++number)
        if (push_neighbours(search, number, 1))
            return -1;
    while (k < n - 1 && search->n_candidates) {
        const Candidate next = pop(search);
        if (search->is_gone[next.nodes[0]] || search->is_gone[next.nodes[1]])
            continue;
        if (contract_next(search, k, next.nodes[0], next.nodes[1]))
            return -1;
        if (k++ < n - 2 && push_neighbours(search, n + k - 1, 0))
            return -1;
    }
    /* what is left has no index in common: the smallest first */
    for (int number = 0; k < n - 1 && number < n + k; ++number)
        if (!search->is_gone[number] &&
            push(search, network->nodes[number].n_entries, number, number))
            return -1;
    for (; k < n - 1; ++k) {
        const int first = pop(search).nodes[0], second = pop(search).nodes[0];
        if (contract_next(search, k, first, second))
            return -1;
        if (k < n - 2 && push(search, network->nodes[n + k].n_entries, n + k, n + k))
            return -1;
    }
    return 0;
}

/* The lists of the nodes that have an index. */
static void fill_holders(Search *search)
{
    const LargeNetwork *network = search->network;
    const Node *result = &network->nodes[2 * network->n_operands - 2];
    for (int number = 0; number < network->n_operands; ++number)
        for (int x = 0; x < network->nodes[number].rank; ++x)
            ++search->n_uses[network->nodes[number].axes[x].index];
    for (int index = 0, at = 0; index < network->n_indices; ++index) {
        search->first[index] = at;
        at += search->n_uses[index];
    }
    for (int number = 0; number < network->n_operands; ++number)
        for (int x = 0; x < network->nodes[number].rank; ++x) {
            const int index = network->nodes[number].axes[x].index;
            search->holders[search->first[index] + search->n_holders[index]++] = number;
        }
    for (int x = 0; x < result->rank; ++x)
        ++search->n_uses[result->axes[x].index];
}

int find_large_order(LargeNetwork *network)
{
    const int n = network->n_operands, n_indices = network->n_indices;
    size_t n_axes = 0;
    for (int number = 0; number < n; ++number)
        n_axes += network->nodes[number].rank;
    for (int number = n; number < 2 * n - 2; ++number)
        network->nodes[number] = (Node){NULL, 0, NULL, 0};
    network->n_points = network->max_intermediate = network->max_step = 0;
    network->steps = malloc(n * sizeof(*network->steps));
    /* four numbers of each index, the lists of their nodes, and one mark of each node */
    int *numbers = calloc(4 * n_indices + n_axes + 1, sizeof(int));
    Search search = {.network = network, .stamp = 1, .is_gone = calloc(2 * n, 1)};
    int failed = network->steps == NULL || numbers == NULL || search.is_gone == NULL;
    if (!failed) {
        search.first = numbers;
        search.n_holders = numbers + n_indices;
        search.n_uses = numbers + 2 * n_indices;
        search.stamps = numbers + 3 * n_indices;
        search.holders = numbers + 4 * n_indices;
        fill_holders(&search);
        failed = run_search(&search);
    }
    free(search.heap);
    free(search.is_gone);
    free(numbers);
    return failed ? -1 : 0;
}

void free_large_order(LargeNetwork *network)
{
    for (int number = network->n_operands; number < 2 * network->n_operands - 2; ++number)
        free(network->nodes[number].axes);
    free(network->steps);
}

/* Contract a pair.

   places: of each index, its number in the step plus one; zero again afterwards. */
static int contract_nodes(const LargeNetwork *network, const Node *const nodes[3],
                          Index *indices, int *places, int n_threads)
{
    int n = 0;
    for (int x = 0; x < 3; ++x)
        for (int y = 0; y < nodes[x]->rank; ++y) {
            const Axis axis = nodes[x]->axes[y];
            int *place = &places[axis.index];
            if (*place == 0) {
                indices[n] = (Index){.extent = network->extents[axis.index]};
                *place = ++n;
            }
            indices[*place - 1].strides[x] = axis.stride;
            indices[*place - 1].is_in[x] = 1;
        }
    for (int x = 0; x < 2; ++x)
        for (int y = 0; y < nodes[x]->rank; ++y)
            places[nodes[x]->axes[y].index] = 0;
    return contract_strided(network->is_single, network->is_complex, indices, n,
                            nodes[0]->data, nodes[1]->data, nodes[2]->data, n_threads);
}

int contract_large_network(const LargeNetwork *network, int n_threads)
{
    const int n = network->n_operands;
    int *places = calloc(network->n_indices + 1, sizeof(int));
    Index *indices = malloc((network->max_step + 1) * sizeof(Index));
    int failed = places == NULL || indices == NULL;
    for (int k = 0; k < n - 1 && !failed; ++k) {
        Node *product = &network->nodes[n + k];
        const Node *const nodes[3] = {&network->nodes[network->steps[k][0]],
                                      &network->nodes[network->steps[k][1]], product};
        if (k < n - 2) {
            const size_t n_bytes = product->n_entries * network->n_bytes_of_entry;
            product->data = aligned_alloc(64, (n_bytes / 64 + 1) * 64);
        }
        failed = product->data == NULL ||
                 contract_nodes(network, nodes, indices, places, n_threads);
        for (int x = 0; x < 2; ++x)
            if (network->steps[k][x] >= n) {
                Node *used = &network->nodes[network->steps[k][x]];
                free(used->data);
                used->data = NULL;
            }
    }
    for (int number = n; number < 2 * n - 2; ++number)
        free(network->nodes[number].data); /* those that a failure left */
    free(places);
    free(indices);
    return failed ? -1 : 0;
}
