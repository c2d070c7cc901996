// Times the passes of kernels on one thread: passes FILE:NAME:GFLOP…, FILE as of run.c. Before each run it reads memory
// that a core's cache cannot hold, so that operands come from further away, as in training. A line of the output has
// the name, GFLOP a second of processor time, and µs for each pass: the least of many runs, all kernels by turns.
#define _GNU_SOURCE
#include "prelude.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void kernel(const gp_arg *, u32, u32, const u32 *);
extern kernel *kernels[];

typedef struct { kernel *k; u32 groups, count; gp_arg args[8]; double least; } pass;
typedef struct { char *at[8], name[100]; double gflop; u32 passes; pass p[4]; } job;

enum { MOST = 200, COLD = 3 << 20 };

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static u32 number(FILE *f) {
	u32 x;
	if (fread(&x, 4, 1, f) != 1) abort();
	return x;
}

static job load(const char *line) {
	job w = {0};
	char file[1000];
	if (sscanf(line, "%999[^:]:%99[^:]:%lf", file, w.name, &w.gflop) != 3) abort();
	FILE *f = fopen(file, "rb");
	if (!f) abort();
	u32 buffers = number(f);
	for (u32 i = 0; i < buffers; i++) {
		u32 bytes = number(f);
		w.at[i] = aligned_alloc(64, (bytes + 64) / 64 * 64);
		memset(w.at[i], 0, (bytes + 64) / 64 * 64);
		if (bytes && fread(w.at[i], (bytes + 3) / 4 * 4, 1, f) != 1) abort();
	}
	w.passes = number(f);
	for (u32 i = 0; i < w.passes; i++) {
		pass *p = &w.p[i];
		p->k = kernels[number(f)], p->groups = number(f), p->count = number(f), p->least = 1e9;
		for (u32 j = 0; j < p->count; j++) {
			u32 b = number(f), offset = number(f), size = number(f);
			p->args[j] = (gp_arg){w.at[b] + offset, size};
		}
	}
	fclose(f);
	return w;
}

int main(int argc, char **argv) {
	static job jobs[MOST];
	static u64 cold[COLD / 8];
	int n = argc - 1 < MOST ? argc - 1 : MOST;
	for (int i = 0; i < n; i++) jobs[i] = load(argv[i + 1]);
	for (int turn = 0; turn < 25; turn++)
		for (int i = 0; i < n; i++)
			for (int again = 0; again < 2; again++) {
				for (u64 q = 0; q < COLD / 8; q += 8) cold[q]++;
				for (u32 p = 0; p < jobs[i].passes; p++) {
					pass *x = &jobs[i].p[p];
					u32 grid[3] = {x->groups, 1, 1};
					double t = now();
					x->k(x->args, 0, x->groups, grid);
					t = now() - t;
					if (t < x->least) x->least = t;
				}
			}
	for (int i = 0; i < n; i++) {
		double sum = 0;
		for (u32 p = 0; p < jobs[i].passes; p++) sum += jobs[i].p[p].least;
		printf("%-44s %6.1f GFLOP/s ", jobs[i].name, jobs[i].gflop / sum);
		for (u32 p = 0; p < jobs[i].passes; p++) printf(" %6.0f", jobs[i].p[p].least * 1e6);
		printf("  last %6.1f\n", jobs[i].gflop / jobs[i].p[jobs[i].passes - 1].least);
	}
}
