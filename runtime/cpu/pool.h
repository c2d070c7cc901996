// A pool of threads that runs lists of commands: kernels and copies.

#ifndef GPUPIPE_CPU_POOL_H
#define GPUPIPE_CPU_POOL_H

#include <stdint.h>

// gp_arg is a kernel's argument: a range of a buffer. The prelude of kernels declares it in the same way.
typedef struct {
	void *at;
	unsigned long long bytes;
} gp_arg;

// gp_kernel runs the workgroups first … last-1 of a dispatch of grid[0]·grid[1]·grid[2] workgroups.
typedef void (*gp_kernel)(const gp_arg *args, uint32_t first, uint32_t last, const uint32_t *grid);

// gp_command is a dispatch, or a copy if kernel is NULL. Its groups may run on different threads at once.
typedef struct {
	gp_kernel kernel;
	const gp_arg *args;
	uint32_t grid[3];
	uint32_t groups;    // workgroups, or blocks of GP_COPY_BLOCK bytes of a copy
	uint32_t max_taken; // groups that a thread takes at a time; at least 1
	void *to;
	const void *from;
	uint64_t bytes;
	// The shortest times so far of the command on one thread and on all, in nanoseconds. 0: unknown.
	uint32_t alone, together, runs;
} gp_command;

#define GP_COPY_BLOCK (256 << 10) // bytes

typedef struct gp_pool gp_pool;

// gp_pool_new returns a pool of that many threads, of which the caller of gp_pool_run is one. The pool has fewer
// threads if the system refuses them. Threads wait actively for a moment while at most cores threads of all pools run.
// It returns NULL without memory.
gp_pool *gp_pool_new(int threads, int cores);

// gp_pool_threads returns the number of threads.
int gp_pool_threads(const gp_pool *p);

// gp_pool_run runs n commands, each after the one before. It stores the time of each in nanoseconds, unless times is
// NULL. Only one thread may call it at a time.
void gp_pool_run(gp_pool *p, gp_command *commands, uint32_t n, uint64_t *times);

// gp_pool_copy copies between ranges that do not overlap.
void gp_pool_copy(gp_pool *p, void *to, const void *from, uint64_t bytes);

// gp_pool_free ends the threads.
void gp_pool_free(gp_pool *p);

#endif
