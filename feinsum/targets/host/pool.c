/* The thread pool of the host target: one for the process, built once.

   A region runs `body` over the groups 0 ... n-1. The caller takes part. It begins
   alone and calls the other threads when the work has taken longer than it costs to
   wake them, or at once if the last region of the same kernel did. OpenMP's runtime
   is not used: libgomp hangs in a forked child after its first region. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE 4096
#define SPIN_NS 20000   /* how long a thread looks for more work before it sleeps */
#define ROUNDS 5        /* regions that measure what a wake-up costs */
#define PATIENCE_NS 500000 /* a wake-up that takes longer waits for other processes */
#define MOST_PLACED 256 /* threads whose processors are chosen */

typedef void (*body_t)(void *const *slots, int64_t first, int64_t past, char *scratch);

typedef struct {
  char *start;
  size_t size;
} memory_t;

static struct {
  body_t body;
  void *const *slots;
  int64_t n, chunk;
  size_t scratch_bytes;
} region;

/* The groups of one thread, which others take from when they have done their own.
   Neighbours go to one thread, since they often read neighbouring memory: two threads
   that take turns in it read 26 GB/s where two halves are read at 40 (Zen 4). */
typedef struct {
  _Alignas(64) _Atomic int64_t next;
  int64_t past;
} share_t;

static share_t *shares;

static int n_threads = 1, n_workers;
static int64_t threshold_ns;
static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static _Atomic uint64_t epoch;
static _Atomic int is_open, n_inside, n_asleep, has_failed;

static pthread_t workers[MOST_PLACED];
static int caller_cpu = -1;

static __thread memory_t scratch, arena;
static pthread_key_t at_exit;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Stores past the caches are not ordered by the release of an atomic. */
static inline void finish_stores(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_sfence();
#endif
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void release(void *unused) {
  (void) unused;
  free(scratch.start);
  free(arena.start);
  scratch = arena = (memory_t) {0};
}

/* Memory of this thread, kept from one run to the next: its pages are there. */
static char *reserve(memory_t *memory, size_t size) {
  if (memory->start && size <= memory->size) return memory->start;
  free(memory->start);
  size = size / PAGE * PAGE + PAGE;
  memory->start = aligned_alloc(PAGE, size);
  memory->size = memory->start ? size : 0;
  pthread_setspecific(at_exit, memory->start);
  return memory->start;
}

EXPORT char *feinsum_arena(size_t size) { return reserve(&arena, size); }

static char *own_scratch(void) {
  static char none[1];
  return region.scratch_bytes ? reserve(&scratch, region.scratch_bytes) : none;
}

/* Groups `first` and later, divided among all threads. */
static void divide(int64_t first) {
  int64_t n = region.n - first, n_each = n / n_threads, n_more = n % n_threads;
  for (int k = 0; k < n_threads; ++k) {
    shares[k].next = first;
    shares[k].past = first += n_each + (k < n_more);
  }
}

/* Takes chunks until there are none, its own ones first. */
static void take_chunks(int me) {
  char *own = own_scratch();
  if (!own) {
    has_failed = 1;
    return;
  }
  for (int k = 0; k < n_threads; ++k) {
    share_t *share = &shares[(me + k) % n_threads];
    for (;;) {
      int64_t first = atomic_fetch_add(&share->next, region.chunk);
      if (first >= share->past) break;
      int64_t past = first + region.chunk;
      region.body(region.slots, first, past < share->past ? past : share->past, own);
    }
  }
  finish_stores();
}

static void *work(void *number) {
  uint64_t seen = 0;
  int me = (int) (intptr_t) number;
  for (;;) {
    int64_t until = now_ns() + SPIN_NS;
    while (!(is_open && epoch != seen) && now_ns() < until) relax();
    if (!(is_open && epoch != seen)) {
      pthread_mutex_lock(&lock);
      ++n_asleep;
      while (!(is_open && epoch != seen)) pthread_cond_wait(&wake, &lock);
      --n_asleep;
      pthread_mutex_unlock(&lock);
    }
    /* Once inside, an open region stays as it is until this thread has left it. Here
       and in wait_for_workers, each side writes its flag before it reads the other's:
       the atomics must be sequentially consistent. */
    ++n_inside;
    if (is_open) {
      seen = epoch;
      take_chunks(me);
    }
    --n_inside;
  }
  return NULL;
}

static void start_workers(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  /* signals are for the caller */
  while (n_workers < n_threads - 1) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, (void *) (intptr_t) (n_workers + 1))) break;
    pthread_detach(thread);
    if (n_workers < MOST_PLACED) workers[n_workers] = thread;
    ++n_workers;
    caller_cpu = -1;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Keeps the other threads off the processor of the caller. A thread that is woken lands
   where its waker runs, and Linux moves it away some milliseconds later: until then
   both take turns, and a region takes as long as one of them would alone. */
static void make_room(void) {
  int cpu = sched_getcpu();
  cpu_set_t others;
  if (cpu < 0 || cpu == caller_cpu) return;
  caller_cpu = cpu;
  if (sched_getaffinity(0, sizeof others, &others)) return;
  if (CPU_COUNT(&others) < n_threads || n_workers > MOST_PLACED) return;
  CPU_CLR(cpu, &others);
  for (int k = 0; k < n_workers; ++k)
    pthread_setaffinity_np(workers[k], sizeof others, &others);
}

static void call_workers(void) {
  start_workers();
  make_room();
  ++epoch;
  is_open = 1;
  if (n_asleep) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
  }
}

static void wait_for_workers(void) {
  is_open = 0;
  while (n_inside) relax();
}

/* Chunk by chunk, until none is left (true) or the threads are worth waking. */
static int is_done_alone(char *own, int64_t start_ns) {
  for (int64_t first = 0; first < region.n; first += region.chunk) {
    if (first && now_ns() - start_ns > threshold_ns) {
      divide(first);
      return 0;
    }
    int64_t past = first + region.chunk;
    region.body(region.slots, first, past < region.n ? past : region.n, own);
  }
  finish_stores();
  return 1;
}

/* Runs a region; `work_ns` remembers how much there was to do the last time.
   0, or 1 if there was no memory. */
EXPORT int feinsum_parallel(body_t body, void *const *slots, int64_t n,
                            size_t scratch_bytes, _Atomic int64_t *work_ns) {
  if (n <= 0) return 0;
  /* A second caller computes alone rather than wait for the threads of the first. */
  if (n == 1 || n_threads == 1 || pthread_mutex_trylock(&owner)) {
    char none[1], *own = scratch_bytes ? reserve(&scratch, scratch_bytes) : none;
    if (!own) return 1;
    body(slots, 0, n, own);
    finish_stores();
    return 0;
  }
  region.body = body;
  region.slots = slots;
  region.n = n;
  /* Chunks of one group each took nearly twice as long for many small groups. */
  region.chunk = 1 + n / (64 * (int64_t) n_threads);
  region.scratch_bytes = scratch_bytes;
  has_failed = 0;
  divide(0);
  char *own = own_scratch();
  int64_t start_ns = now_ns(), share = 1;
  if (!own) {
    has_failed = 1;
  } else if (*work_ns > 2 * threshold_ns || !is_done_alone(own, start_ns)) {
    share = n_workers + 1;
    call_workers();
    take_chunks(0);
    wait_for_workers();
  }
  *work_ns = share * (now_ns() - start_ns);
  int status = has_failed;
  pthread_mutex_unlock(&owner);
  return status;
}

typedef int (*entry_t)(void *const *slots, void *parallel, void *arena);

/* Calls an entry point with arrays of numpy for some of its arguments, since to ask
   each array for its address takes Python longer than a small kernel runs. `places`
   are the slots that hold objects; in each of these the address of the entries stands
   `offset` bytes from the beginning. */
EXPORT int feinsum_call(entry_t entry, void **slots, const int64_t *places,
                        int64_t n_places, int64_t offset) {
  for (int64_t k = 0; k < n_places; ++k) {
    void **slot = slots + places[k];
    *slot = *(void **) ((char *) *slot + offset);
  }
  return entry(slots, (void *) feinsum_parallel, (void *) feinsum_arena);
}

static void do_nothing(void *const *slots, int64_t first, int64_t past, char *own) {
  (void) slots, (void) first, (void) past, (void) own;
}

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
  return (x > y) - (x < y);
}

/* How long it takes until one that sleeps takes part: the median of some rounds.
   It holds for the whole process, which may have started while others had the
   processors. So it is bounded. */
static void measure_threshold(void) {
  int64_t times[ROUNDS];
  for (int k = 0; k < ROUNDS; ++k) {
    struct timespec pause = {0, 3 * SPIN_NS};
    nanosleep(&pause, NULL);
    int64_t start_ns = now_ns();
    region.body = do_nothing;
    region.n = region.chunk = 1;
    region.scratch_bytes = 0;
    divide(0);
    call_workers();
    while (n_workers && !shares[0].next && now_ns() - start_ns < PATIENCE_NS) relax();
    wait_for_workers();
    times[k] = now_ns() - start_ns;
  }
  qsort(times, ROUNDS, sizeof *times, compare);
  int64_t middle_ns = times[ROUNDS / 2];
  threshold_ns = middle_ns < PATIENCE_NS ? middle_ns : PATIENCE_NS;
}

/* Threads do not survive a fork: the child starts its own when it needs them. */
static void forget_workers(void) {
  n_workers = 0;
  caller_cpu = -1;
  is_open = n_inside = n_asleep = 0;
  owner = lock = (pthread_mutex_t) PTHREAD_MUTEX_INITIALIZER;
  wake = (pthread_cond_t) PTHREAD_COND_INITIALIZER;
}

/* Once for the process. The answer is the threshold in nanoseconds. */
EXPORT int64_t feinsum_start(int n) {
  shares = aligned_alloc(sizeof *shares, n * sizeof *shares);
  n_threads = shares ? n : 1;
  pthread_key_create(&at_exit, release);
  pthread_atfork(NULL, NULL, forget_workers);
  if (n_threads > 1) measure_threshold();
  return threshold_ns;
}
