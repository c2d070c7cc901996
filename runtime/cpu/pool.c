//go:build linux && cgo

#define _GNU_SOURCE
#include "pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Each thread has a share of a command's groups, which lie side by side: threads that take the same share of each
// command find in their core's cache what they wrote before. A thread takes some groups at a time, at most half of what
// is left of a share, so that all threads end at about the same time. When its share is empty, it takes from the
// others.
//
// The leader, which calls gp_pool_run, publishes a command by a ticket for each share: the command's index and the next
// group to be taken. Threads take groups by a compare-exchange of a share's ticket, so a group always belongs to the
// command that the same word names. A thread accesses the commands only while it counts as inside, and the leader
// returns from a run when none is inside.

#define NO_COMMAND 0xffffffffu
#define SPIN_NS 50000       // how long a thread waits actively
#define SHORT_NS 50000      // a command that takes less on all threads may be faster on one
#define RETRY 256           // runs after which the slower of both is tried again

// gp_share is the ticket of a thread's groups, in a cache line of its own.
typedef struct {
	_Alignas(64) _Atomic uint64_t ticket;
} gp_share;

// gp_worker is a thread that is not the leader.
typedef struct {
	gp_pool *pool;
	pthread_t thread;
	int share;
} gp_worker;

struct gp_pool {
	int threads, started, cores;
	int count; // of shares
	gp_share *shares; // the leader's is the first
	gp_worker *workers;
	gp_command *commands; // of the run
	_Alignas(64) _Atomic uint32_t done; // groups of the published command that are complete
	_Atomic uint32_t waiting;           // the leader sleeps until done changes
	_Alignas(64) _Atomic uint32_t inside;
	_Alignas(64) _Atomic uint32_t epoch; // changes when there is something new for the workers
	_Atomic uint32_t sleeping;           // workers that sleep until epoch changes
	_Atomic int closing;
};

// running is the number of threads of all pools that are in a run.
static _Atomic int running;

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
	__asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

// spin waits actively for a moment until *word is no longer value (or is, if until), and reports whether that came
// true.
static int spin(gp_pool *p, _Atomic uint32_t *word, uint32_t value, int until) {
	if (atomic_load(&running) > p->cores)
		return 0;
	uint64_t end = now() + SPIN_NS;
	do {
		for (int i = 0; i < 64; i++) {
			if ((atomic_load_explicit(word, memory_order_acquire) == value) == until)
				return 1;
			relax();
		}
	} while (now() < end);
	return 0;
}

// run runs the groups first … last-1.
static void run(const gp_command *c, uint32_t first, uint32_t last) {
	if (c->kernel) {
		c->kernel(c->args, first, last, c->grid);
		return;
	}
	uint64_t from = (uint64_t)first * GP_COPY_BLOCK, to = (uint64_t)last * GP_COPY_BLOCK;
	memcpy((char *)c->to + from, (const char *)c->from + from, (to < c->bytes ? to : c->bytes) - from);
}

static uint32_t command_of(uint64_t ticket) { return (uint32_t)(ticket >> 32); }
static uint32_t group_of(uint64_t ticket) { return (uint32_t)ticket; }

// first_group returns the first group of a share. Those of the next share follow its last.
static uint32_t first_group(const gp_pool *p, uint32_t groups, int share) {
	return (uint32_t)((uint64_t)groups * (uint64_t)share / (uint64_t)p->count);
}

// publish begins a command, or NO_COMMAND.
static void publish(gp_pool *p, uint32_t command, uint32_t groups) {
	for (int s = 0; s < p->count; s++)
		atomic_store(&p->shares[s].ticket, (uint64_t)command << 32 | first_group(p, groups, s));
}

// take runs groups of a share until none is left of the published command. The caller is the leader, or counts as
// inside.
static void take(gp_pool *p, int share) {
	_Atomic uint64_t *ticket = &p->shares[share].ticket;
	uint64_t t = atomic_load(ticket);
	while (command_of(t) != NO_COMMAND) {
		const gp_command *c = &p->commands[command_of(t)];
		uint32_t groups = c->groups, first = group_of(t), end = first_group(p, groups, share + 1);
		if (first >= end)
			return;
		uint32_t half = (end - first + 1) / 2, n = half < c->max_taken ? half : c->max_taken;
		if (!atomic_compare_exchange_weak(ticket, &t, t + n))
			continue;
		run(c, first, first + n);
		if (atomic_fetch_add(&p->done, n) + n == groups && atomic_load(&p->waiting))
			futex_wake(&p->done, 1);
		t = atomic_load(ticket);
	}
}

// work takes the groups of a thread's share, then what is left of the others.
static void work(gp_pool *p, int share) {
	for (int i = 0; i < p->count; i++)
		take(p, (share + i) % p->count);
}

// flush_denormals makes the calling thread read and write denormal numbers as zero, as GPUs do: cores compute with them
// a hundred times slower. It returns the state to restore.
static uint64_t flush_denormals(void) {
	uint64_t before = 0;
#if defined(__SSE2__)
	before = __builtin_ia32_stmxcsr();
	__builtin_ia32_ldmxcsr((unsigned)before | 0x8040);
#elif defined(__aarch64__)
	__asm__ volatile("mrs %0, fpcr" : "=r"(before));
	__asm__ volatile("msr fpcr, %0" : : "r"(before | 1u << 24));
#endif
	return before;
}

static void restore_denormals(uint64_t before) {
#if defined(__SSE2__)
	__builtin_ia32_ldmxcsr((unsigned)before);
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
	(void)before;
#endif
}

static void *work_until_closed(void *worker) {
	gp_pool *p = ((gp_worker *)worker)->pool;
	int share = ((gp_worker *)worker)->share;
	pthread_setname_np(pthread_self(), "gpupipe-cpu");
	flush_denormals();
	while (!atomic_load(&p->closing)) {
		uint32_t seen = atomic_load(&p->epoch);
		atomic_fetch_add(&p->inside, 1);
		work(p, share);
		atomic_fetch_sub(&p->inside, 1);
		if (spin(p, &p->epoch, seen, 0))
			continue;
		atomic_fetch_add(&p->sleeping, 1);
		while (atomic_load(&p->epoch) == seen)
			futex_wait(&p->epoch, seen);
		atomic_fetch_sub(&p->sleeping, 1);
	}
	return NULL;
}

static void announce(gp_pool *p) {
	atomic_fetch_add(&p->epoch, 1);
	if (atomic_load(&p->sleeping))
		futex_wake(&p->epoch, INT_MAX);
}

// together runs a command on all threads.
static void together(gp_pool *p, uint32_t index) {
	uint32_t groups = p->commands[index].groups;
	atomic_store(&p->done, 0);
	publish(p, index, groups);
	announce(p);
	work(p, 0);
	if (spin(p, &p->done, groups, 1))
		return;
	atomic_store(&p->waiting, 1);
	for (uint32_t done; (done = atomic_load(&p->done)) != groups;)
		futex_wait(&p->done, done);
	atomic_store(&p->waiting, 0);
}

// shared reports whether to run a command on all threads: a short one may be faster on one. Each is tried once, and the
// faster is kept. The result is the same.
static int shared(const gp_pool *p, const gp_command *c) {
	if (p->threads == 1 || c->groups == 1)
		return 0;
	if (!c->together || c->together >= SHORT_NS)
		return 1;
	if (!c->alone)
		return 0;
	int faster = c->together <= c->alone;
	return c->runs % RETRY == RETRY - 1 ? !faster : faster;
}

static void keep_least(uint32_t *least, uint64_t took) {
	if (took == 0)
		took = 1;
	if (took > UINT32_MAX)
		took = UINT32_MAX;
	if (!*least || took < *least)
		*least = (uint32_t)took;
}

void gp_pool_run(gp_pool *p, gp_command *commands, uint32_t n, uint64_t *times) {
	uint64_t state = flush_denormals();
	atomic_fetch_add(&running, p->threads);
	p->commands = commands;
	uint64_t began = now();
	for (uint32_t i = 0; i < n; i++) {
		gp_command *c = &commands[i];
		int all = shared(p, c);
		if (all)
			together(p, i);
		else
			run(c, 0, c->groups);
		uint64_t ended = now();
		keep_least(all ? &c->together : &c->alone, ended - began);
		c->runs++;
		if (times)
			times[i] = ended - began;
		began = ended;
	}
	publish(p, NO_COMMAND, 0);
	for (int i = 0; atomic_load(&p->inside); i++) {
		if (i < 1000)
			relax();
		else
			sched_yield();
	}
	atomic_fetch_sub(&running, p->threads);
	restore_denormals(state);
}

void gp_pool_copy(gp_pool *p, void *to, const void *from, uint64_t bytes) {
	uint64_t groups = (bytes + GP_COPY_BLOCK - 1) / GP_COPY_BLOCK;
	gp_command c = {.to = to, .from = from, .bytes = bytes, .groups = (uint32_t)groups, .max_taken = 1};
	gp_pool_run(p, &c, bytes > 0, NULL);
}

gp_pool *gp_pool_new(int threads, int cores) {
	gp_pool *p = aligned_alloc(64, (sizeof(gp_pool) + 63) / 64 * 64);
	gp_worker *workers = calloc((size_t)threads, sizeof *workers);
	gp_share *shares = aligned_alloc(64, (size_t)threads * sizeof *shares);
	if (!p || !workers || !shares) {
		free(p);
		free(workers);
		free(shares);
		return NULL;
	}
	memset(p, 0, sizeof *p);
	p->workers = workers;
	p->shares = shares;
	p->count = threads;
	p->cores = cores;
	publish(p, NO_COMMAND, 0);
	// Signals are for Go's threads, except those that a thread raises itself.
	sigset_t all, before;
	sigfillset(&all);
	const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		sigdelset(&all, own[i]);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (p->started < threads - 1) {
		gp_worker *w = &workers[p->started];
		w->pool = p;
		w->share = p->started + 1;
		if (pthread_create(&w->thread, NULL, work_until_closed, w) != 0)
			break;
		p->started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	p->threads = p->started + 1;
	return p;
}

int gp_pool_threads(const gp_pool *p) { return p->threads; }

void gp_pool_free(gp_pool *p) {
	atomic_store(&p->closing, 1);
	announce(p);
	for (int i = 0; i < p->started; i++)
		pthread_join(p->workers[i].thread, NULL);
	free(p->workers);
	free(p->shares);
	free(p);
}
