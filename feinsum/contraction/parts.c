/* Threads that wait for parts; made when the first call needs them. One call at a time
   has them: others run alone, as they would share the cores anyway. */

#define _GNU_SOURCE /* processors of threads */
#include "parts.h"

#include <pthread.h>
#include <sched.h>

static struct {
    pthread_mutex_t lock, one_call;
    pthread_cond_t has_work, is_done;
    int n_threads, n_placed; /* see leave_processor */
    pthread_t threads[MAX_THREADS];
    Run run;
    const void *problem;
    Part *parts;
    int n_parts, n_taken, n_left, failed;
} pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .one_call = PTHREAD_MUTEX_INITIALIZER,
    .has_work = PTHREAD_COND_INITIALIZER,
    .is_done = PTHREAD_COND_INITIALIZER,
};

static void take_parts(void) /* with the lock */
{
    while (pool.n_taken < pool.n_parts) {
        const Part *part = &pool.parts[pool.n_taken++];
        pthread_mutex_unlock(&pool.lock);
        int failed = pool.run(pool.problem, part);
        pthread_mutex_lock(&pool.lock);
        pool.failed |= failed;
        if (--pool.n_left == 0)
            pthread_cond_signal(&pool.is_done);
    }
}

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        take_parts();
        pthread_cond_wait(&pool.has_work, &pool.lock);
    }
    return NULL;
}

/* The child of a fork has one thread, and no lock that another one held. */
static void forget_threads(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_mutex_init(&pool.one_call, NULL);
    pthread_cond_init(&pool.has_work, NULL);
    pthread_cond_init(&pool.is_done, NULL);
    pool.n_threads = pool.n_placed = pool.n_parts = pool.n_taken = 0;
}

/* Keep the waiting threads off the processor of the caller. Where threads of a BLAS still
   spin on all others, Linux would wake ours behind the caller, which computes alone. */
static void leave_processor(void) /* with the lock */
{
#ifdef __linux__
    static cpu_set_t allowed;
    static int processor = -1;
    cpu_set_t now;
    const int here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof(now), &now))
        return;
    if (here != processor || !CPU_EQUAL(&now, &allowed))
        pool.n_placed = 0;
    processor = here, allowed = now;
    if (CPU_COUNT(&now) > 1)
        CPU_CLR(here, &now);
    for (; pool.n_placed < pool.n_threads; ++pool.n_placed)
        pthread_setaffinity_np(pool.threads[pool.n_placed], sizeof(now), &now);
#endif
}

int run_parts(Run run, const void *problem, Part *parts, int n_parts)
{
    if (n_parts == 1 || pthread_mutex_trylock(&pool.one_call)) {
        int failed = 0;
        for (int k = 0; k < n_parts; ++k)
            failed |= run(problem, &parts[k]);
        return failed;
    }
    pthread_mutex_lock(&pool.lock);
    while (pool.n_threads < n_parts - 1 && pool.n_threads < MAX_THREADS) {
        pthread_t *thread = &pool.threads[pool.n_threads];
        if (pthread_create(thread, NULL, work, NULL))
            break;
        pthread_detach(*thread);
        ++pool.n_threads;
    }
    leave_processor();
    pool.run = run, pool.problem = problem, pool.parts = parts;
    pool.n_parts = pool.n_left = n_parts, pool.n_taken = pool.failed = 0;
    pthread_cond_broadcast(&pool.has_work);
    take_parts();
    while (pool.n_left)
        pthread_cond_wait(&pool.is_done, &pool.lock);
    int failed = pool.failed;
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.one_call);
    return failed;
}

int start_parts(void) { return pthread_atfork(NULL, NULL, forget_threads); }
