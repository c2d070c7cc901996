// Times kernels beside OpenBLAS, by turns, on one or two threads each:
// bench THREADS FILE[+OTHER]:NAME:M:N:K:TRANS_A:TRANS_B:BATCH:STRIDE_A:STRIDE_B…
// FILE is what run.c takes; OTHER is one that takes the place of OpenBLAS. A line of the output has the name, the ratio
// of OpenBLAS's time to the kernels', and both times in µs: medians over the turns of the shortest of each turn. On one
// thread it is CPU time.
#define _GNU_SOURCE
#include "prelude.h"
#include <cblas.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef void kernel(const gp_arg *, u32, u32, const u32 *);
extern kernel *kernels[];
void openblas_set_num_threads(int);

enum { TURNS = 11 };
static int threads;

typedef struct { kernel *k; u32 groups, count, max_taken; gp_arg args[8]; } pass;

static pass *work;
static _Atomic u32 epoch, next, done, active;

// take runs groups as the device's pool does: at most half of what is left.
static void take(void) {
	pass *p = work;
	u32 grid[3] = {p->groups, 1, 1}, first = atomic_load(&next);
	while (first < p->groups) {
		u32 half = (p->groups - first + 1) / 2, n = half < p->max_taken ? half : p->max_taken;
		if (!atomic_compare_exchange_weak(&next, &first, first + n)) continue;
		p->k(p->args, first, first + n, grid);
		first = atomic_load(&next);
	}
}

static void *worker(void *none) {
	for (u32 seen = 0;; seen++) {
		while (atomic_load(&epoch) == seen)
			if (atomic_load(&active)) sched_yield();
			else nanosleep(&(struct timespec){0, 100000}, NULL);
		take();
		atomic_fetch_add(&done, 1);
	}
	return none;
}

static void run(pass *p, u32 n) {
	for (u32 i = 0; i < n; i++) {
		work = p + i;
		if (threads == 1) {
			u32 grid[3] = {work->groups, 1, 1};
			work->k(work->args, 0, work->groups, grid);
			continue;
		}
		atomic_store(&next, 0);
		atomic_store(&done, 0);
		atomic_fetch_add(&epoch, 1);
		take();
		while (atomic_load(&done) == 0) sched_yield();
	}
}

static double now(void) {
	struct timespec t;
	clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t); // others may use the machine
	return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static u32 number(FILE *f) {
	u32 x;
	if (fread(&x, 4, 1, f) != 1) abort();
	return x;
}

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// job is a file of run.c.
typedef struct { char *at[8]; u32 buffers, passes; pass p[4]; } job;

static job load(const char *file) {
	FILE *f = fopen(file, "rb");
	if (!f) abort();
	job w = {.buffers = number(f)};
	for (u32 i = 0; i < w.buffers; i++) {
		u32 bytes = number(f);
		w.at[i] = aligned_alloc(64, (bytes + 64) / 64 * 64);
		memset(w.at[i], 0, bytes);
		if (bytes && fread(w.at[i], (bytes + 3) / 4 * 4, 1, f) != 1) abort();
	}
	w.passes = number(f);
	for (u32 i = 0; i < w.passes; i++) {
		pass *p = &w.p[i];
		p->k = kernels[number(f)], p->groups = number(f), p->count = number(f);
		p->max_taken = (p->groups + 4 * threads - 1) / (4 * threads);
		for (u32 j = 0; j < p->count; j++) {
			u32 b = number(f), offset = number(f), size = number(f);
			p->args[j] = (gp_arg){w.at[b] + offset, size};
		}
	}
	fclose(f);
	return w;
}

static void release(job *w) {
	for (u32 i = 0; i < w->buffers; i++) free(w->at[i]);
}

static void bench(char *line) {
	char name[100], file[1000];
	int m, n, k, ta, tb, batch, sa, sb;
	if (sscanf(line, "%999[^:]:%99[^:]:%d:%d:%d:%d:%d:%d:%d:%d", file, name, &m, &n, &k, &ta, &tb, &batch, &sa, &sb) != 10) abort();
	char *beside = strchr(file, '+');
	if (beside) *beside++ = 0;
	job w = load(file), other = beside ? load(beside) : (job){0};
	float *a = (float *)w.at[0], *b = (float *)w.at[1], *c = calloc((size_t)batch * m * n, 4);
	double ours[TURNS], theirs[TURNS];
	for (int turn = 0; turn < TURNS; turn++)
		for (int side = 0; side < 2; side++) {
			double begin = now(), best = 1e18;
			int native = side == 0 || beside;
			if (native && threads > 1) atomic_store(&active, 1);
			// The threads of the other side fall asleep in the first half.
			for (int runs = 0; runs < 4 || now() < begin + 40000; runs++) {
				double t = now();
				if (side == 0) run(w.p, w.passes);
				else if (beside) run(other.p, other.passes);
				else
					for (int q = 0; q < batch; q++)
						cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, 1,
							a + (size_t)q * sa, ta ? m : k, b + (size_t)q * sb, tb ? k : n, 0, c + (size_t)q * m * n, n);
				double end = now();
				if (runs > 0 && t > begin + 20000 && end - t < best) best = end - t;
			}
			atomic_store(&active, 0);
			(side == 0 ? ours : theirs)[turn] = best;
		}
	qsort(ours, TURNS, sizeof *ours, compare);
	qsort(theirs, TURNS, sizeof *theirs, compare);
	printf("%-40s %.2f  %.0f %.0f  %.0f GFLOP/s\n", name, theirs[TURNS / 2] / ours[TURNS / 2], ours[TURNS / 2], theirs[TURNS / 2],
		2e-3 * batch * m * n * k / ours[TURNS / 2]);
	fflush(stdout);
	release(&w), release(&other);
	free(c);
}

int main(int argc, char **argv) {
	pthread_t t;
#ifdef __x86_64__
	syscall(SYS_arch_prctl, 0x1023, 18); // ARCH_REQ_XCOMP_PERM for the tile registers of AMX, if the CPU has them
#endif
	threads = atoi(argv[1]);
	openblas_set_num_threads(threads);
	if (threads > 1) pthread_create(&t, NULL, worker, NULL);
	for (int i = 2; i < argc; i++) bench(argv[i]);
}
